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
from molflt.literature.names import KERNELS
from molflt.model import model_file
from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import (
    METADATA_KEY,
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


def _tiny(**attention: Any) -> ModelConfig:
    sizes = {"n_basis": 4, "n_features": 8, "n_frequencies": 8}
    return ModelConfig.model_validate(
        {"dim": 16, "n_heads": 2, "n_layers": 2, "ffn_dim": 16, "n_rbf": 8, "attention": {**sizes, **attention}}
    )


@pytest.mark.parametrize(
    "attention",
    [
        {},
        {"far_rank": 1},
        {"far_rank": "m", "frequencies": "sampled"},
        {"frequencies": "sampled", "spectrum": "free", "radii": "random", "directions": "random"},
        {"combine": "concat", "frequencies": "sampled"},
        {"mechanism": "softmax"},
        {"mechanism": "randomised"},
        {"mechanism": "randomised", "positional_mask": True},
        {"far_field": False},
        *({"mechanism": "kernelised", "kernel": kernel, "n_features": 12} for kernel in KERNELS),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_gives_bit_equal_energies(
    attention: dict[str, Any], dtype: torch.dtype, val_set: StructureDataset, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    config = _tiny(**attention)
    model = EnergyModel(config, seed=7).eval()
    model.standardiser.mean.fill_(-1.23456789)
    model.standardiser.references[29] = 0.1 + 1e-12
    model.to(dtype)
    path = tmp_path / "model.safetensors"
    save_model(path, model, _metadata(config))
    again = load_model(path)
    assert again.model.dtype == dtype
    before, _ = predict(LoadedModel(model, again.metadata, path), val_set)
    after, _ = predict(again, val_set)
    np.testing.assert_array_equal(before.energies, after.energies)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


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
    ["", "{", "[]", "null", "3", '{"schema_version": "x"}', '{"schema_version": 1}', '{"schema_version": 1e999}',
     '{"schema_version": 0}', "[" * 100_000, '{"schema_version": -1}',
     '{"schema_version": 4, "target": "\\ud800"}'],
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


def _as_of_an_early_schema(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if ".moments." in name]:
        del tensors[name]
    tensors.update({"radial.gamma": torch.ones(119 * 119), "radial.beta": torch.zeros(119 * 119)})


def test_a_file_of_the_first_schema_is_read(altered: Altered) -> None:
    def change(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        _as_of_an_early_schema(tensors)
        metadata.update(schema_version=1)
        metadata.pop("labels")

    assert load_model(altered(change)).metadata.labels is None


def test_before_the_third_schema_the_far_field_carried_all_values(altered: Altered) -> None:
    def change(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        _as_of_an_early_schema(tensors)
        metadata.update(schema_version=2)
        metadata["config"]["attention"].pop("far_dim")

    config = load_model(altered(change)).metadata.config
    assert config.attention.far_dim == config.dim

    def own_values(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        change(tensors, metadata)
        metadata["config"]["attention"]["far_dim"] = 8

    _refuses(altered(own_values), "far_dim", "train again")


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
    ("section", "sizes"),
    [
        (None, {"dim": 10**9}),
        (None, {"dim": 2 * 10**18}),
        (None, {"ffn_dim": 10**10}),
        (None, {"n_rbf": 10**12}),
        (None, {"n_layers": 10**9}),
        ("attention", {"n_basis": 10**10}),
        ("attention", {"n_features": 10**12}),
        ("attention", {"n_frequencies": 10**10, "frequencies": "sampled"}),
    ],
    ids=str,
)
def test_absurd_sizes_allocate_nothing(section: str | None, sizes: dict[str, Any], altered: Altered) -> None:
    # Were memory taken for these, the test run would not survive them.
    path = altered(lambda t, m: (m["config"][section] if section else m["config"]).update(sizes))
    _refuses(path)


def test_more_layers_than_tensors_are_not_built(altered: Altered, monkeypatch: pytest.MonkeyPatch) -> None:
    path = altered(lambda t, m: m["config"].update({"n_layers": 1024}))

    def build(*_: Any) -> None:
        raise AssertionError("a thousand layers were made")

    monkeypatch.setattr(model_file, "EnergyModel", build)
    _refuses(path, "do not fit the sizes")


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (None, {"cutoff": 1e6}),
        (None, {"cutoff": float("inf")}),
        ("attention", {"sigma_min": 1e-9}),
        ("attention", {"sigma_max": 1e300}),
        ("attention", {"periodic_radius": 1e9}),
        ("attention", {"dense_cutoff": 1e9}),
    ],
    ids=str,
)
def test_absurd_lengths_are_refused(section: str | None, values: dict[str, Any], altered: Altered) -> None:
    # images of atoms and waves are counted by them
    path = altered(lambda t, m: (m["config"][section] if section else m["config"]).update(values))
    _refuses(path, "metadata is damaged", "train again")


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


@pytest.mark.parametrize("combine", ["product", "concat"])
def test_sampled_model_refuses_another_method(combine: str) -> None:
    model = EnergyModel(_tiny(frequencies="sampled", combine=combine))
    with pytest.raises(InputError, match="trained with frequencies=sampled"):
        set_frequencies(model, "exact")
    set_frequencies(model, "sampled")


@pytest.mark.parametrize("frequencies", ["sampled", "quadrature"])
def test_budgeted_model_refuses_another_method(frequencies: Any) -> None:
    model = EnergyModel(_tiny(frequencies=frequencies, l_max=2))
    with pytest.raises(InputError, match="budget"):
        set_frequencies(model, "exact")


def test_no_model_becomes_sampled() -> None:
    with pytest.raises(InputError, match="estimator"):
        set_frequencies(EnergyModel(_tiny()), "sampled")


@pytest.mark.parametrize("attention", [{"mechanism": "kernelised"}, {"mechanism": "softmax"}, {"far_field": False}])
@pytest.mark.parametrize("frequencies", ["auto", "exact", "sampled"])
def test_model_without_far_field_refuses_a_method(attention: dict[str, Any], frequencies: Any) -> None:
    with pytest.raises(InputError, match="no Fourier far field"):
        set_frequencies(EnergyModel(_tiny(**attention)), frequencies)


def test_schema_number_is_written_down() -> None:
    # Whoever changes the layout of the file changes this number, and keeps reading the old one.
    assert model_file.SCHEMA_VERSION == 6
