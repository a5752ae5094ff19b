"""YAML and overrides in, a checked configuration out, and errors that name the key."""

import pytest

from molflt.attention.registry import attention_config
from molflt.errors import InputError
from molflt.training.config import preset_config
from molflt.training.yaml import load_config
from tests.training.runs import written


@pytest.fixture
def tiny_yaml(tmp_path):
    return written(preset_config("tiny"), tmp_path)


def _message(path, *overrides):
    with pytest.raises(InputError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_yaml_explains_every_key(tiny_yaml):
    for line in tiny_yaml.read_text(encoding="utf-8").splitlines():
        if line and not line.endswith((":", ".lmdb")) and not line.startswith("#"):
            assert "  # " in line, line


@pytest.mark.parametrize(
    "text",
    ["/a/" + "long folder/" * 20 + "x.lmdb", "a: b", "a # b", "${oc.env:HOME}", "ü Å", "'q\"", "yes", "1e5", " lead",
     "null", "~", "[x]", "{a}", "*a", "&b", "!x", "%y", "@z", "back\\slash", "C:\\data"],
)  # fmt: skip
def test_any_path_and_split_name_survives_yaml(text, tmp_path):
    config = preset_config("tiny")
    config.data.train = text
    config.data.val = {text.replace("/", "_"): text}
    assert load_config(written(config, tmp_path)) == config


@pytest.mark.parametrize("value", [1e-12, 1e-6, 0.1, 1 / 3, 3e300, 5.0])
def test_numbers_survive_yaml(value, tmp_path):
    config = preset_config("tiny")
    config.optimiser.lr = value
    assert load_config(written(config, tmp_path)).optimiser.lr == value


@pytest.mark.parametrize(
    ("override", "right"),
    [
        ("trainer.max_epoch=1", "trainer.max_epochs"),
        ("modle.dim=3", "model"),
        ("model.attention.n_feature=3", "model.attention.n_features"),
        ("optimizer.lr=1e-3", "optimiser"),
        ("max_epochs=3", "trainer.max_epochs"),
        ("sed=1", "seed"),
        ("data.valid=x", "data.val"),
    ],
)
def test_misspelt_key_suggests_the_right_one(override, right, tiny_yaml):
    message = _message(tiny_yaml, override)
    assert "there is no such key" in message
    assert message.endswith(f"did you mean {right}?")


def test_every_mistake_is_named_at_once(tiny_yaml):
    message = _message(tiny_yaml, "trainer.max_epoch=1", "model.dim=x", "seed=-1")
    assert "trainer.max_epoch:" in message
    assert "model.dim: must be a valid integer, not 'x'" in message
    assert "seed: must be greater than or equal to 0, not -1" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.max_epochs=abc", "trainer.max_epochs: must be a valid integer, not 'abc'"),
        ("trainer.max_epochs=0", "trainer.max_epochs: must be greater than or equal to 1, not 0"),
        ("trainer.max_steps=0", "must be -1 (no limit) or at least 1"),
        ("trainer.precision=16", "'32-true', '64-true' or 'bf16-mixed', not 16"),
        ("trainer=&a {b: *a}", "trainer.b: there is no such key"),
        ("trainer=3", "trainer: must be a mapping of keys to values, not 3"),
        ("optimiser.betas=[0.9]", "optimiser.betas.1: is missing"),
        ("model.dim=10", "dim (10) must be a multiple of n_heads (8)"),
        ("model.attention=fltt", "did you mean flt? choose one of flt, molflt, "),
        ("model.attention.tolerance=x", "\n  model.attention.tolerance: must be a valid number, not 'x'"),
        ("data.target=energ", "choose one of y_relaxed, y_init, energy"),
        ("data.val={}", "data.val"),
        ("data.val={train: x}", "'train' cannot name a validation split"),
        ("data.val={a/b: x}", "'a/b' cannot name a validation split"),
        ("loss.force_weight=1", "y_relaxed is constant along a relaxation"),
        ("data.target=U0", "Its name in the data is data.label"),
        ("data.references={Xx: 1.0}", "Xx: no element"),
        ("trainer.best_by=both", "trainer.best_by=both needs loss.force_weight above 0"),
        (
            "data={train: a, val: b, references: {H: 1.0}, standardise: structure}",
            "data.references needs data.standard",
        ),
    ],
)
def test_wrong_values(override, expected, tiny_yaml):
    message = _message(tiny_yaml, override)
    assert str(tiny_yaml) in message
    assert expected in message


@pytest.mark.parametrize(
    "override", ["trainer.max_epochs", "=3", "a..b=3", "[=3", "a.=1", "data.train={a", "seed=\udce9"]
)
def test_malformed_overrides_are_quoted(override, tiny_yaml):
    message = _message(tiny_yaml, override)
    assert f"override '{override}'" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "content",
    [b"", b"a: [", b"\x00\x01", b"seed: 0\nseed: 1\n", b"\xff\xfe\x00", b"1: 2\n", b"data: 3",
     b"seed: 1", b"data: {train: x}", b"x: !!python/object/apply:os.system [ls]", b"seed: &s 1\nseed: *s"],
)  # fmt: skip
def test_other_files(content, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_bytes(content)
    assert str(path) in _message(path)


def test_a_list_a_folder_and_nothing(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- a\n- b\n", encoding="utf-8")
    assert (
        _message(path) == f"{path}: must be a mapping of keys to values ('molflt config tiny'); give data by --train"
    )
    assert "molflt config tiny" in _message(tmp_path / "absent.yaml")
    assert "is a folder" in _message(tmp_path)


def test_overrides_change_what_they_name_and_nothing_else(tiny_yaml):
    config = load_config(tiny_yaml, ["trainer.max_epochs=3", "optimiser.lr=1e-4", "data.train=a=b.lmdb"])
    expected = preset_config("tiny")
    expected.trainer.max_epochs = 3
    expected.optimiser.lr = 1e-4
    expected.data.train = "a=b.lmdb"
    assert config == expected


def test_overrides_of_sections_and_splits(tiny_yaml):
    config = load_config(tiny_yaml, ["trainer={max_epochs: 3, val_every: 2}", "data.val={mine: x.lmdb}"])
    assert (config.trainer.max_epochs, config.trainer.val_every) == (3, 2)
    assert config.trainer.deterministic == preset_config("tiny").trainer.deterministic
    assert config.data.val == {"mine": "x.lmdb"}
    assert load_config(tiny_yaml, ["data.val=x.lmdb"]).data.val == {"val": "x.lmdb"}
    assert load_config(tiny_yaml, ["data.val.more=x.lmdb"]).data.val["more"] == "x.lmdb"


def test_attention_by_name_and_then_in_part(tiny_yaml):
    for name in ("flt", "local", "performer", "softmax"):
        assert load_config(tiny_yaml, [f"model.attention={name}"]).model.attention == attention_config(name)
    softmax = load_config(tiny_yaml, ["model.attention.mechanism=softmax"]).model.attention
    assert softmax == attention_config(mechanism="softmax")
    config = load_config(tiny_yaml, ["model.attention=local", "model.attention.moment_channels=16"])
    assert (config.model.attention.mechanism, config.model.attention.moment_channels) == ("local", 16)
    short = tiny_yaml.with_name("short.yaml")
    short.write_text("data: {train: a.lmdb, val: b.lmdb}\nmodel: {attention: performer}\n", encoding="utf-8")
    assert load_config(short, ["model.attention.n_features=32"]).model.attention.mechanism == "kernelised"


def test_paper_presets_are_trained_as_in_the_paper():
    for name in ("paper-flt-10l", "paper-flt-12l", "paper-performer-12l"):
        config = preset_config(name)
        optimiser = config.optimiser
        assert (optimiser.name, optimiser.betas, optimiser.eps) == ("adam", (0.9, 0.98), 1e-6)
        assert (optimiser.lr, optimiser.warmup_steps, optimiser.schedule) == (3e-4, 10_000, "linear")
        assert (config.trainer.max_steps, config.model.attention_dropout) == (500_000, 0.1)
