"""One file per model: what goes in comes out, and nothing else gets in."""

import importlib.metadata
import json
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from molflt.errors import InputError
from molflt.model import file as model_file
from molflt.model.energy import EnergyModel
from molflt.model.file import (
    METADATA_KEY,
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    load_model,
    load_models,
    read_metadata,
    save_model,
    save_models,
    set_frequencies,
)
from molflt.prediction.predict import predict
from tests.model.files import altered, check_round_trip, content_of, metadata_of, tiny


@pytest.fixture
def alter(model_path, tmp_path):
    """The trained model's file after ``change(tensors, metadata)``."""
    return partial(altered, model_path, tmp_path)


def _refuses(path, *words):
    """Loading gives one InputError of one line that names the file and says what to do."""
    with pytest.raises(InputError) as caught:
        load_model(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 500
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "attention",
    [
        {"moment_channels": 2},
        {"vector_channels": 8},
        {"far_rank": 1, "isolated_atoms": 8.0, "frequencies": "exact", "sigma_max": 4.0},
        {"far_rank": "m", "n_features": 6, "redraw_every": 5},
        {"spectrum": "sampled", "n_basis": 5, "far_rank": 1, "moment_channels": 0},
        {"spectrum": "both"},
        {"mechanism": "undamped", "spectrum": "free"},
        {"mechanism": "undamped", "far_rank": "m", "kernel": "oprf-fastfood"},
        *("local", "performer", "softmax", "flt-concat", "ra-rpe", "lara-rpe", "relu", "trigrf-qmc"),
    ],
    ids=str,
)
def test_round_trip_gives_bit_equal_energies(attention, val_set, tmp_path):
    check_round_trip(tiny(attention), val_set, tmp_path)


def test_keys_that_do_nothing_are_not_written(tmp_path):
    """They would be refused: nothing is redrawn, exact has no ε, and a free spectrum does not count atoms."""
    drawn, exact = (EnergyModel(tiny(keys)) for keys in ("flt", {"tolerance": 1e-3}))
    free = EnergyModel(tiny({"mechanism": "undamped", "spectrum": "free"}))
    drawn.config.attention.redraw_every, free.config.attention.isolated_atoms = 5, 7.5
    set_frequencies(exact, "exact")
    for one, idle in ((drawn, "redraw_every"), (exact, "tolerance"), (free, "isolated_atoms")):
        save_model(tmp_path / "model.safetensors", one, metadata_of(one.config))
        assert idle not in content_of(tmp_path / "model.safetensors")[1]["config"]["attention"]
        load_model(tmp_path / "model.safetensors")


def test_metadata_says_where_the_model_comes_from(model_path, tiny_data):
    metadata = read_metadata(model_path)
    assert metadata.schema_version == SCHEMA_VERSION
    assert metadata.target == "y_relaxed"
    assert metadata.units == {"energy": "eV", "length": "Å"}
    assert set(metadata.elements) <= {1, 6, 7, 8, 28, 29, 78}
    assert metadata.training_data.n_structures == 28
    assert metadata.training_data.path == str(tiny_data / "train.lmdb")
    assert set(metadata.validation) >= {"val/energy_mae", "val/energy_rmse", "val/ewt", "other/energy_mae"}
    assert metadata.versions["torch"] == importlib.metadata.version("torch")
    assert metadata == load_model(model_path).metadata


def test_folder_and_missing_file(tmp_path):
    _refuses(tmp_path, "is a folder", "best.safetensors")
    _refuses(tmp_path / "absent.safetensors", "no such file", "best.safetensors")


def test_other_safetensors(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    _refuses(path, "not a molflt model", "molflt train")
    save_file({"x": torch.zeros(2)}, path, metadata={"format": "pt"})
    _refuses(path, "not a molflt model")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"schema_version": "x"}', '{"schema_version": 10}', '{"schema_version": 1e999}',
     "[" * 100_000, '{"schema_version": 10, "target": "\\ud800"}'],
    ids=lambda text: text[:25],
)  # fmt: skip
def test_damaged_metadata(text, model_path, tmp_path):
    path = tmp_path / "damaged.safetensors"
    save_file(content_of(model_path)[0], path, metadata={METADATA_KEY: text})
    _refuses(path, "metadata is damaged", "train again")
    with pytest.raises(InputError, match="damaged"):
        read_metadata(path)


UNCERTAINTY = {
    "n_members": 1,
    "floor": 1,
    "multiples": [1, 2, 3, 4],
    "coverage": [1] * 4,
    "data": "",
    "n_structures": 9,
}
OUT_OF_RANGE = [
    *(("seed", value) for value in (-1, 2**70)),
    *(("elements", value) for value in ([0], [10**9])),
    *[("target", "__class__"), ("epoch", "many"), ("surprise", 1)],
    # A configuration of defaults, which the weights do not fit.
    ("config", {}),
    *(("schema_version", value) for value in (-1, 0, 1, OLDEST_SCHEMA - 1)),
    *(("uncertainty", UNCERTAINTY | {"multiples": value}) for value in ([1.0], [1, 2, 3, -1])),
    *(("uncertainty", UNCERTAINTY | wrong) for wrong in ({"floor": -1}, {"n_members": 0}, {"coverage": [2] * 4})),
]


@pytest.mark.parametrize(("key", "value"), OUT_OF_RANGE, ids=str)
def test_metadata_out_of_range(key, value, alter):
    load_model(alter(lambda t, m: m.update(uncertainty=UNCERTAINTY)))
    _refuses(alter(lambda t, m: m.update({key: value})), key.removesuffix("_version"), "train again")


def test_newer_schema_asks_for_an_upgrade(alter):
    values = {"schema_version": SCHEMA_VERSION + 1, "surprise": {"of": "the future"}}
    _refuses(alter(lambda t, m: m.update(values)), f"schema {SCHEMA_VERSION + 1}", "upgrade molflt")


def test_tensors_missing_surplus_or_misshapen(alter):
    _refuses(alter(lambda t, m: t.pop("energy_head.factor")), "missing: energy_head.factor", "train again")
    _refuses(alter(lambda t, m: t.update(extra=torch.zeros(1))), "unknown: extra", "train again")
    _refuses(alter(lambda t, m: t.update({"energy_head.factor": torch.zeros(4)})), "(4,)", "(3,)")
    integers = {"energy_head.factor": torch.zeros(3, dtype=torch.int64)}
    _refuses(alter(lambda t, m: t.update(integers)), "energy_head.factor", "int64")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers(value, alter):
    _refuses(alter(lambda t, m: t["encoder.norm.weight"].fill_(value)), "encoder.norm.weight", "NaN")


@pytest.mark.parametrize(
    "sizes",
    [{"dim": 10**9}, {"dim": 2 * 10**18}, {"dim": 65_536}, {"ffn_dim": 10**10}, {"ffn_dim": 262_144},
     {"n_rbf": 10**12}, {"n_layers": 10**9}, {"attention.n_basis": 10**10},
     {"attention.far_rank": "m", "attention.n_features": 10**12}, {"attention.moment_channels": 65_536}],
    ids=str,
)  # fmt: skip
def test_absurd_sizes_allocate_nothing(sizes, alter):
    # Were memory taken for these, the test run would not survive them.
    _refuses(alter(lambda t, m: _update(m["config"], sizes)), "train again")


def _update(config, values):
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (config[section] if section else config)[name] = value


@pytest.mark.parametrize(
    "sizes",
    [{"n_layers": 1024}, {"dim": 65_536, "n_heads": 1, "attention.far_rank": "m"},
     {"attention.far_rank": "m", "attention.n_features": 65_536, "dim": 4096, "n_heads": 1},
     {"attention": {"mechanism": "kernelised", "kernel": "posrf-fastfood"}, "dim": 8000, "n_heads": 1},
     {"attention": {"mechanism": "concat", "n_features": 2, "n_frequencies": 4000}}],
    ids=str,
)  # fmt: skip
def test_nothing_is_built_that_takes_long(sizes, alter, monkeypatch):
    """More layers than tensors; and random features, which are drawn even where no memory is taken for weights."""
    path = alter(lambda t, m: _update(m["config"], sizes))

    def build(*_):
        raise AssertionError("it was built")

    monkeypatch.setattr(model_file, "EnergyModel", build)
    _refuses(path, "do not fit the sizes")


@pytest.mark.parametrize(
    "values",
    [{"cutoff": 1e-300}, {"attention.tolerance": 1e-300},
     {"cutoff": 1e6}, {"cutoff": float("inf")}, {"attention.sigma_min": 1e-9}, {"attention.sigma_max": 1e300},
     {"attention": {"mechanism": "softmax", "dense_cutoff": 1e9}},
     {"attention": {"mechanism": "undamped", "periodic_radius": 1e9}},
     {"attention": {"mechanism": "concat", "n_frequencies": 65_536}}],
    ids=str,
)  # fmt: skip
def test_absurd_values_are_refused(values, alter):
    # Images of atoms and waves are counted by them.
    ((name, value),) = values.items()
    key = [*value][-1] if isinstance(value, dict) else name.rpartition(".")[2]
    _refuses(alter(lambda t, m: _update(m["config"], values)), "metadata is damaged", key, "train again")


def test_metadata_of_megabytes(model_path, tmp_path, monkeypatch):
    def not_to_be_called(text):
        raise AssertionError("it was parsed")

    path = tmp_path / "long.safetensors"
    save_file(content_of(model_path)[0], path, metadata={METADATA_KEY: "[" + "[]," * 1_000_000 + "[]]"})
    monkeypatch.setattr(model_file.json, "loads", not_to_be_called)
    _refuses(path, "metadata is damaged", "characters")


def _write_header(path, header, data, length=None):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    "lie",
    ["overlap", "beyond the end", "backwards", "negative", "2^63", "shape", "shape that wraps", "dtype",
     "dtype unknown", "twice", "length beyond", "length 2^63", "data behind"],
)  # fmt: skip
def test_headers_that_lie(lie, model_path, tmp_path):
    raw = model_path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:end]), raw[end:]
    name = "encoder.norm.weight"
    start, stop = header[name]["data_offsets"]
    changes = {
        "overlap": {"data_offsets": [0, stop - start]},
        "beyond the end": {"data_offsets": [start, stop + len(data)]},
        "backwards": {"data_offsets": [stop, start]},
        "negative": {"data_offsets": [-8, stop]},
        "2^63": {"data_offsets": [start, 2**63]},
        "shape": {"shape": [10**9]},
        "shape that wraps": {"shape": [2**32, 2**32]},
        "dtype": {"dtype": "F64"},
        "dtype unknown": {"dtype": "O8"},
    }
    header[name].update(changes.get(lie, {}))
    text = json.dumps(header)
    if lie == "twice":
        again = {**header[name], "data_offsets": [0, stop - start]}
        text = f'{text[:-1]}, "{name}": {json.dumps(again)}}}'
    if lie == "data behind":
        data += bytes(64)
    path = tmp_path / "lie.safetensors"
    _write_header(path, text, data, {"length beyond": len(text) + 10**6, "length 2^63": 2**63}.get(lie))
    _refuses(path, "not a model file")


def test_loading_never_unpickles(model_path, monkeypatch):
    def forbidden(*arguments, **options):
        raise AssertionError("a model file was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    load_model(model_path)
    read_metadata(model_path)


def test_switching_method_is_recorded(loaded, tmp_path):
    set_frequencies(loaded.model, "exact")
    assert loaded.model.config.attention.frequencies == "exact"
    metadata = loaded.metadata.model_copy(update={"config": loaded.model.config})
    save_model(tmp_path / "exact.safetensors", loaded.model, metadata)
    assert read_metadata(tmp_path / "exact.safetensors").config.attention.frequencies == "exact"


@pytest.mark.parametrize("name", ["sampled", "exakt"])
def test_no_model_takes_a_method_that_is_none(name, model_path):
    with pytest.raises(InputError, match=f"frequencies={name}: no such method; choose one of auto, exact"):
        load_model(model_path, name)


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        *((name, "no Fourier far field") for name in ("kernelised", "softmax", "local")),
        *((name, f"mechanism={name}, an estimator that is part of it") for name in ("undamped", "concat")),
    ],
)
def test_models_that_take_no_method(mechanism, why):
    for frequencies in ("auto", "exact"):
        with pytest.raises(InputError, match=why):
            set_frequencies(EnergyModel(tiny({"mechanism": mechanism})), frequencies)


@pytest.fixture
def ensemble(two, tmp_path):
    """Two models in one file."""
    save_models(tmp_path / "two.safetensors", two)
    return tmp_path / "two.safetensors"


def test_an_ensemble_in_one_file(ensemble, loaded, val_set):
    """Both models as they were; the first is what a reader of single metadata sees."""
    first, second = load_models(ensemble)
    assert (first.metadata.seed, second.metadata.seed) == (loaded.metadata.seed, 8)
    assert read_metadata(ensemble).seed == loaded.metadata.seed
    assert torch.equal(second.model.energy_head.factor, 1.5 * loaded.model.energy_head.factor)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(first.model.state_dict()[name], tensor)
    np.testing.assert_array_equal(predict(first, val_set).energies, predict(loaded, val_set).energies)
    _refuses(ensemble, "is an ensemble of 2 models", f"{ensemble}#0")


@pytest.mark.parametrize("change", ["lost", "surplus", "undeclared", "skipped"])
def test_a_damaged_ensemble(change, ensemble, tmp_path):
    """A tensor of the second lost or too many; metadata of one member lost, so that its tensors are nobody's."""
    with safe_open(ensemble, framework="pt") as handle:
        tensors, texts = {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata()  # noqa: SIM118
    if change == "lost":
        del tensors[next(name for name in tensors if name.startswith("1/"))]
    elif change == "surplus":
        tensors["1/more"] = torch.zeros(1)
    elif change == "undeclared":
        del texts[f"{METADATA_KEY}-1"]
    else:
        texts[f"{METADATA_KEY}-2"] = texts.pop(f"{METADATA_KEY}-1")
    save_file(tensors, tmp_path / "damaged.safetensors", metadata=texts)
    _refuses(tmp_path / "damaged.safetensors", *(["'molflt-1'"] if change == "skipped" else ["do not fit"]))


def test_a_file_has_a_limited_number_of_members(loaded, tmp_path):
    with pytest.raises(InputError, match="33 members; a file holds at most 32"):
        save_models(tmp_path / "many.safetensors", [loaded] * 33)
    assert list(tmp_path.iterdir()) == []
