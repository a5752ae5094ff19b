"""One file per model: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from molflt.data.sources import StructureDataset
from molflt.errors import InputError
from molflt.model import model_file
from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import (
    METADATA_KEY,
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    LoadedModel,
    ModelMetadata,
    TrainingData,
    load_model,
    read_metadata,
    save_model,
    set_frequencies,
)
from molflt.prediction.predictor import predict

Altered = Callable[..., Path]


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as handle:
        names = list(handle.keys())
        return {name: handle.get_tensor(name) for name in names}, json.loads(handle.metadata()[METADATA_KEY])


@pytest.fixture
def altered(model_path: Path, tmp_path: Path) -> Altered:
    """Write a copy of the model after ``change(tensors, metadata)``."""

    def write(change: Callable[[dict[str, torch.Tensor], dict[str, Any]], object]) -> Path:
        tensors, metadata = _read(model_path)
        change(tensors, metadata)
        path = tmp_path / "altered.safetensors"
        save_file(tensors, path, metadata={METADATA_KEY: json.dumps(metadata)})
        return path

    return write


def _refuses(path: Path, *words: str) -> None:
    """Both ways in give one InputError of one line that names the file and says what to do."""
    with pytest.raises(InputError) as caught:
        load_model(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 500
    for word in words:
        assert word in message


def _metadata(config: ModelConfig) -> ModelMetadata:
    return ModelMetadata(
        config=config,
        seed=7,
        target="y_relaxed",
        elements=[1, 29],
        standardiser={},
        training_data=TrainingData(path="x", fingerprint="y", n_structures=1),
        validation={},
        epoch=0,
    )


def tiny(attention: Any) -> ModelConfig:
    return ModelConfig.model_validate(
        {"dim": 8, "n_heads": 2, "n_layers": 2, "ffn_dim": 8, "n_rbf": 4, "attention": attention}
    )


@pytest.mark.parametrize(
    "attention",
    [
        {"moment_channels": 2},
        {"far_rank": 1, "isolated_atoms": 8.0, "frequencies": "exact", "sigma_max": 4.0},
        {
            "mechanism": "sampled",
            "far_rank": "m",
            "n_features": 6,
            "redraw_every": 5,
            "l_max": 2,
            "moment_channels": 0,
        },
        {"mechanism": "sampled", "spectrum": "free", "radii": "random", "directions": "random", "moment_channels": 2},
        "local",
        "performer",
        "softmax",
    ],
    ids=str,
)
def test_round_trip_gives_bit_equal_energies(attention: Any, val_set: StructureDataset, tmp_path: Path) -> None:
    check_round_trip(tiny(attention), val_set, tmp_path)


def check_round_trip(config: ModelConfig, structures: StructureDataset, folder: Path) -> None:
    torch.manual_seed(1)
    model = EnergyModel(config, seed=7).eval()
    model.standardiser.mean.fill_(-1.23456789)
    model.standardiser.references[29] = 0.1 + 1e-12
    path = folder / "model.safetensors"
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        save_model(path, model, _metadata(config))
        again = load_model(path)
        assert again.model.dtype == dtype
        assert again.metadata.config == config
        before, _ = predict(LoadedModel(model, again.metadata, path), structures)
        after, _ = predict(again, structures)
        np.testing.assert_array_equal(before.energies, after.energies)
        for name, value in model.state_dict().items():
            assert torch.equal(value, again.model.state_dict()[name]), name


def test_keys_that_do_nothing_are_not_written(tmp_path: Path) -> None:
    """They would be refused: a free spectrum has no use for the atoms that training counts, nor exact for ε."""
    config = tiny({"mechanism": "sampled", "spectrum": "free"})
    config.attention.isolated_atoms = 7.5
    model = EnergyModel(tiny({"tolerance": 1e-3}))
    set_frequencies(model, "exact")
    for one, idle in ((EnergyModel(config), "isolated_atoms"), (model, "tolerance")):
        save_model(tmp_path / "model.safetensors", one, _metadata(one.config))
        assert idle not in _read(tmp_path / "model.safetensors")[1]["config"]["attention"]
        load_model(tmp_path / "model.safetensors")


def test_metadata_says_where_the_model_comes_from(model_path: Path, tiny_data: Path) -> None:
    metadata = read_metadata(model_path)
    assert metadata.schema_version == SCHEMA_VERSION
    assert metadata.target == "y_relaxed"
    assert metadata.units == {"energy": "eV", "length": "Å"}
    assert set(metadata.elements) <= {1, 6, 7, 8, 28, 29, 78}
    assert metadata.training_data.n_structures == 28
    assert metadata.training_data.path == str(tiny_data / "train.lmdb")
    assert set(metadata.validation) >= {"val/energy_mae", "val/energy_rmse", "val/ewt", "other/energy_mae"}
    assert metadata.versions["torch"] == torch.__version__
    assert metadata == load_model(model_path).metadata


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.0001, 0.01, 0.1, 0.5, 0.999])
def test_truncated(share: float, model_path: Path, tmp_path: Path) -> None:
    content = model_path.read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(content[: int(share * len(content))])
    _refuses(path, "truncated", "copy it again")


@pytest.mark.parametrize(
    "content",
    [
        np.random.default_rng(0).bytes(5000),
        b"\xff" * 64,
        pickle.dumps({"weights": [1, 2, 3]}),
        b"hello, this is text",
        (8).to_bytes(8, "little") + b'{"a":1}}',
        (2**62).to_bytes(8, "little") + b"{}",
    ],
    ids=["random", "ones", "pickle", "text", "bad header", "huge header"],
)
def test_other_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(content)
    _refuses(path, "not a model file")


def test_folder_and_missing_file(tmp_path: Path) -> None:
    _refuses(tmp_path, "is a folder", "best.safetensors")
    _refuses(tmp_path / "absent.safetensors", "no such file", "best.safetensors")


def test_other_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    _refuses(path, "not a molflt model", "molflt train")
    save_file({"x": torch.zeros(2)}, path, metadata={"format": "pt"})
    _refuses(path, "not a molflt model")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"schema_version": "x"}', '{"schema_version": 7}', '{"schema_version": 1e999}',
     "[" * 100_000, '{"schema_version": 7, "target": "\\ud800"}'],
    ids=lambda text: text[:25],
)  # fmt: skip
def test_damaged_metadata(text: str, model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"
    save_file(_read(model_path)[0], path, metadata={METADATA_KEY: text})
    _refuses(path, "metadata is damaged", "train again")
    with pytest.raises(InputError, match="damaged"):
        read_metadata(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("seed", 2**70),
        ("elements", [0]),
        ("elements", [10**9]),
        ("target", "__class__"),
        ("config", {}),
        ("epoch", "many"),
        ("surprise", 1),
    ],
)
def test_metadata_out_of_range(key: str, value: Any, altered: Altered) -> None:
    path = altered(lambda tensors, metadata: metadata.update({key: value}))
    # An empty configuration is one of defaults: the weights then do not fit.
    _refuses(path, "train again")


def test_newer_schema_asks_for_an_upgrade(altered: Altered) -> None:
    def change(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        metadata.update(schema_version=SCHEMA_VERSION + 1, surprise={"of": "the future"})

    _refuses(altered(change), f"schema {SCHEMA_VERSION + 1}", "upgrade molflt")


@pytest.mark.parametrize("schema", [-1, 0, 1, OLDEST_SCHEMA - 1])
def test_a_schema_before_the_first_release_asks_for_training(schema: int, altered: Altered) -> None:
    _refuses(altered(lambda t, m: m.update(schema_version=schema)), f"schema {schema}", "train again")


SCHEMA_6 = {
    "combine": "product", "far_field": True, "far_rank": 0, "frequencies": "auto", "order": "auto", "tolerance": 1e-3,
    "l_max": None, "far_dim": None, "moment_channels": None, "n_basis": 4, "sigma_min": 1.0, "sigma_max": 9.0,
    "isolated_atoms": 8.0, "n_frequencies": 6, "directions": "averaged", "radii": "random", "proposal": "own",
    "means": False, "spectrum": "gaussian", "periodic_radius": 7.0, "kernel": "posrf-orf", "n_features": 6,
    "redraw_every": 3, "n_landmarks": 3, "n_samples": 2, "sampling": "biased", "positional_mask": False,
    "dense_cutoff": 5.0, "mechanism": "fourier",
}  # fmt: skip
"""All keys that any attention had in schema 6, far from their defaults."""
FAR = {"n_basis": 4, "sigma_min": 1.0, "sigma_max": 9.0, "isolated_atoms": 8.0}
SAMPLED = {**FAR, "mechanism": "sampled", "n_frequencies": 6, "radii": "random", "proposal": "own"}


def as_read(altered: Altered, old: dict[str, Any]) -> Any:
    """The attention that a file of schema 6 with these keys is said to have."""

    def change(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        metadata.update(schema_version=6)
        metadata["config"]["attention"] = {**SCHEMA_6, **old}

    metadata = read_metadata(altered(change))
    assert metadata.schema_version == 6
    return metadata.config.attention


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {**FAR, "tolerance": 1e-3}),
        ({"frequencies": "exact", "far_dim": 8, "moment_channels": 0}, {**FAR, "frequencies": "exact",
          "far_dim": 8, "moment_channels": 0}),
        ({"far_rank": "m"}, {**FAR, "tolerance": 1e-3, "far_rank": "m", "n_features": 6, "redraw_every": 3}),
        ({"far_field": False, "far_rank": 1, "moment_channels": 5}, {"mechanism": "local", "moment_channels": 5}),
        ({"frequencies": "sampled", "l_max": 2}, {**SAMPLED, "periodic_radius": 7.0, "l_max": 2}),
        ({"frequencies": "sampled", "directions": "random", "means": True},
         {**SAMPLED, "periodic_radius": 7.0, "directions": "random", "means": True}),
        ({"frequencies": "sampled", "spectrum": "free"},
         {"mechanism": "sampled", "sigma_min": 1.0, "sigma_max": 9.0, "n_frequencies": 6, "radii": "random",
          "spectrum": "free", "periodic_radius": 7.0}),
        ({"mechanism": "kernelised", "far_field": False},
         {"mechanism": "kernelised", "n_features": 6, "redraw_every": 3}),
        ({"mechanism": "softmax", "frequencies": "sampled"}, {"mechanism": "softmax", "dense_cutoff": 5.0}),
    ],
    ids=str,
)  # fmt: skip
def test_schema_6_keeps_the_keys_that_act(old: dict[str, Any], new: dict[str, Any], altered: Altered) -> None:
    """That the energies stay is in tests/golden."""
    assert as_read(altered, old) == tiny(new).attention


@pytest.mark.parametrize(
    "damage",
    [{"mechanism": "fourrier"}, {"mechanism": ["fourier"]}, {"mechanism": 5}, {"far_rank": "m", "kernel": 5},
     {"far_rank": "m", "kernel": ["-"]}, {"n_basis": "many"}, {"sigma_min": None}, {"far_field": None, "order": {}}],
    ids=str,
)  # fmt: skip
def test_damage_in_schema_6(damage: dict[str, Any], altered: Altered) -> None:
    with pytest.raises(InputError, match=r"metadata is damaged .*; .*train again"):
        as_read(altered, damage)


def test_what_is_written_is_of_the_present_schema(altered: Altered, tmp_path: Path) -> None:
    """Also of a model that was read from an older file."""
    older = load_model(altered(lambda t, m: m.update(schema_version=6)))
    save_model(tmp_path / "again.safetensors", older.model, older.metadata)
    assert read_metadata(tmp_path / "again.safetensors").schema_version == SCHEMA_VERSION


def test_tensors_missing_surplus_or_misshapen(altered: Altered) -> None:
    _refuses(altered(lambda t, m: t.pop("energy_head.factor")), "missing: energy_head.factor", "train again")
    _refuses(altered(lambda t, m: t.update(extra=torch.zeros(1))), "unknown: extra", "train again")
    _refuses(altered(lambda t, m: t.update({"energy_head.factor": torch.zeros(4)})), "(4,)", "(3,)")
    integers = {"energy_head.factor": torch.zeros(3, dtype=torch.int64)}
    _refuses(altered(lambda t, m: t.update(integers)), "energy_head.factor", "int64")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers(value: float, altered: Altered) -> None:
    _refuses(altered(lambda t, m: t["encoder.norm.weight"].fill_(value)), "encoder.norm.weight", "NaN")


@pytest.mark.parametrize(
    "sizes",
    [{"dim": 10**9}, {"dim": 2 * 10**18}, {"dim": 65_536}, {"ffn_dim": 10**10}, {"ffn_dim": 262_144},
     {"n_rbf": 10**12}, {"n_layers": 10**9}, {"attention.n_basis": 10**10},
     {"attention.far_rank": "m", "attention.n_features": 10**12}, {"attention.moment_channels": 65_536}],
    ids=str,
)  # fmt: skip
def test_absurd_sizes_allocate_nothing(sizes: dict[str, Any], altered: Altered) -> None:
    # Were memory taken for these, the test run would not survive them.
    _refuses(altered(lambda t, m: _update(m["config"], sizes)), "train again")


def _update(config: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (config[section] if section else config)[name] = value


@pytest.mark.parametrize(
    "sizes",
    [{"n_layers": 1024}, {"dim": 65_536, "n_heads": 1, "attention.far_rank": "m"},
     {"attention.far_rank": "m", "attention.n_features": 65_536, "dim": 4096, "n_heads": 1}],
    ids=str,
)  # fmt: skip
def test_nothing_is_built_that_takes_long(
    sizes: dict[str, Any], altered: Altered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More layers than tensors; and random features, which are drawn even where no memory is taken for weights."""
    path = altered(lambda t, m: _update(m["config"], sizes))

    def build(*_: Any) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr(model_file, "EnergyModel", build)
    _refuses(path, "do not fit the sizes")


@pytest.mark.parametrize(
    "values",
    [{"cutoff": 1e6}, {"cutoff": float("inf")}, {"attention.sigma_min": 1e-9}, {"attention.sigma_max": 1e300},
     {"attention": {"mechanism": "sampled", "periodic_radius": 1e9}},
     {"attention": {"mechanism": "softmax", "dense_cutoff": 1e9}}],
    ids=str,
)  # fmt: skip
def test_absurd_lengths_are_refused(values: dict[str, Any], altered: Altered) -> None:
    # Images of atoms and waves are counted by them.
    _refuses(altered(lambda t, m: _update(m["config"], values)), "metadata is damaged", "train again")


def test_metadata_of_megabytes(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_to_be_called(text: str) -> None:
        raise AssertionError("it was parsed")

    path = tmp_path / "long.safetensors"
    save_file(_read(model_path)[0], path, metadata={METADATA_KEY: "[" + "[]," * 1_000_000 + "[]]"})
    monkeypatch.setattr(model_file.json, "loads", not_to_be_called)
    _refuses(path, "metadata is damaged", "characters")


def _write_header(path: Path, header: dict[str, Any] | str, data: bytes, length: int | None = None) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    "lie",
    ["overlap", "beyond the end", "backwards", "negative", "2^63", "shape", "shape that wraps", "dtype",
     "dtype unknown", "twice", "length beyond", "length 2^63", "data behind"],
)  # fmt: skip
def test_headers_that_lie(lie: str, model_path: Path, tmp_path: Path) -> None:
    raw = model_path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:end]), raw[end:]
    name = "encoder.norm.weight"
    start, stop = header[name]["data_offsets"]
    changes: dict[str, dict[str, Any]] = {
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


def test_loading_never_unpickles(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("a model file was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    load_model(model_path)
    read_metadata(model_path)


def test_interrupted_write_leaves_the_old_file(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, loaded.model, loaded.metadata)
    before = path.read_bytes()

    class InterruptedWriteError(Exception):
        pass

    def half(self: Path, content: bytes) -> int:
        with open(self, "wb") as handle:
            handle.write(content[: len(content) // 2])
        raise InterruptedWriteError

    monkeypatch.setattr(Path, "write_bytes", half)
    changed = copy.deepcopy(loaded.model)
    changed.standardiser.mean.fill_(99.0)
    with pytest.raises(InterruptedWriteError):
        save_model(path, changed, loaded.metadata)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("frequencies", ["auto", "exact", "lattice", "quadrature", "mesh"])
def test_methods_agree_on_a_trained_model(
    frequencies: Any, model_path: Path, val_set: StructureDataset, tiny_data: Path
) -> None:
    # lattice needs a lattice, quadrature must cope with one: all take isolated and periodic structures
    def energies(method: Any) -> np.ndarray:
        other = load_model(model_path, method)
        other.model.double()
        return predict(other, val_set)[0].energies

    reference = energies(None)
    tolerance = load_model(model_path).model.config.attention.tolerance
    assert np.abs(energies(frequencies) - reference).max() <= 100 * tolerance * reference.std()


def test_switching_method_is_recorded(loaded: LoadedModel, tmp_path: Path) -> None:
    set_frequencies(loaded.model, "exact")
    assert loaded.model.config.attention.frequencies == "exact"
    metadata = loaded.metadata.model_copy(update={"config": loaded.model.config})
    save_model(tmp_path / "exact.safetensors", loaded.model, metadata)
    assert read_metadata(tmp_path / "exact.safetensors").config.attention.frequencies == "exact"


@pytest.mark.parametrize("attention", [{"mechanism": "sampled"}, {"mechanism": "sampled", "l_max": 2}], ids=str)
def test_an_estimator_refuses_another_method(attention: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="mechanism=sampled, an estimator that is part of it"):
        set_frequencies(EnergyModel(tiny(attention)), "exact")


@pytest.mark.parametrize("name", ["sampled", "exakt"])
def test_no_model_takes_a_method_that_is_none(name: Any, model_path: Path) -> None:
    with pytest.raises(InputError, match=f"frequencies={name}: no such method; choose one of auto, exact"):
        load_model(model_path, name)


@pytest.mark.parametrize("attention", ["performer", "softmax", "local"])
def test_model_without_far_field_refuses_a_method(attention: str) -> None:
    for frequencies in ("auto", "exact"):
        with pytest.raises(InputError, match="no Fourier far field"):
            set_frequencies(EnergyModel(tiny(attention)), frequencies)


def test_schema_number_is_written_down() -> None:
    # Whoever changes the layout of the file changes this number, and keeps reading the one before.
    assert (model_file.OLDEST_SCHEMA, model_file.SCHEMA_VERSION) == (6, 7)
