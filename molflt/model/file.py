"""One file per model or ensemble: safetensors weights with JSON metadata.

Loading never unpickles and runs no code. The first member of an ensemble is stored as a single model is; the k-th of
the others has its metadata under ``molflt-k`` and its tensors under ``k/NAME``.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch.nn import functional

from molflt.attention.config import KernelKeys, MatricesConfig
from molflt.data.labels import LabelSpec, Target
from molflt.data.quality.domain import Domain
from molflt.errors import InputError, in_line, ordinary_file
from molflt.files import atomic_file
from molflt.model.config import ModelConfig, Uncertainty
from molflt.model.energy import EnergyModel, set_frequencies
from molflt.vocabulary import MAX_ATOMIC_NUMBER, MethodName

SCHEMA_VERSION = 11
OLDEST_SCHEMA = 10
METADATA_KEY = "molflt"
MOST_MEMBERS = 32
"""Most members in one file."""
_MOST_METADATA = 1 << 20
"""Most characters; a few thousand are usual, and as Python objects they take a hundred times their size."""
_DRAWN_ANYWAY = 1 << 20
"""Random numbers that a model may draw however small its file; some distributions take two hundred bytes for each."""
_REMEDY = "the file was altered or is damaged: copy it again or train again"


class TrainingData(BaseModel):
    """Provenance of a model: the data that it was trained on."""

    model_config = ConfigDict(extra="forbid")

    path: str
    fingerprint: str
    n_structures: int


class Origin(BaseModel):
    """The model that a fine-tuned one started from, and the parts taken from it."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(description="as it was named")
    fingerprint: str = Field(description="of its file")
    trained_on: TrainingData
    target: Target
    taken_over: int = Field(description="tensors")
    fresh: list[str] = Field(description="parts with tensors that were not there, or of another size")
    new_elements: list[str]
    elements: list[int] = Field(
        [], description="atomic numbers that its weights were trained on; empty: not recorded"
    )
    frozen: list[str] = Field(description="parts that were not trained further")


class ModelMetadata(BaseModel):
    """Metadata of a model in its file."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    schema_version: int = Field(SCHEMA_VERSION, ge=1)
    config: ModelConfig
    seed: int = Field(ge=0, lt=2**63, description="of the random frequencies and features")
    target: Target = Field(description="the field the model was trained on, see molflt.vocabulary")
    units: dict[str, str] = Field(default_factory=lambda: {"energy": "eV", "length": "Å"})
    elements: list[Annotated[int, Field(ge=1, le=MAX_ATOMIC_NUMBER)]] = Field(
        description="atomic numbers in the training set"
    )
    standardiser: dict[str, Any] = Field(description="the statistics, for reading; the ones in use are tensors")
    training_data: TrainingData
    domain: Domain | None = Field(None, description="what training structures look like; None: not recorded")
    uncertainty: Uncertainty | None = Field(None, description="of the file's predictions; None: not measured")
    fine_tuned_from: Origin | None = None
    labels: LabelSpec | None = Field(None, description="where the label was; None: under the target's name, in eV")
    validation: dict[str, float] = Field(description="metrics of the weights in this file")
    epoch: int
    versions: dict[str, str] = Field(default_factory=lambda: library_versions())

    @property
    def label_spec(self) -> LabelSpec:
        """Default source of the label: that of training."""
        return self.labels or LabelSpec(target=self.target)

    @property
    def trained_elements(self) -> list[int]:
        """Atomic numbers that the weights were trained on, also before fine-tuning."""
        return sorted({*self.elements, *(self.fine_tuned_from.elements if self.fine_tuned_from else ())})


@dataclass
class LoadedModel:
    """A model with the metadata of its file.

    Attributes:
        model: the weights.
        metadata: from the file.
        path: of the file.
        name: the name under which it was loaded, such as ``pretrained:fg``; by default the path.
    """

    model: EnergyModel
    metadata: ModelMetadata
    path: Path
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or str(self.path)


def library_versions() -> dict[str, str]:
    """Versions of the software that computes the weights."""
    versions = {"python": platform.python_version()}
    for name in ("molflt", "torch", "torch-geometric", "lightning", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def save_model(path: str | Path, model: EnergyModel, metadata: ModelMetadata) -> None:
    """Write a model file of the present schema, atomically.

    Raises:
        OSError: the system refuses; it names the file.
    """
    save_models(path, [LoadedModel(model, metadata, Path(path))])


def save_models(path: str | Path, members: Sequence[LoadedModel]) -> None:
    """Write an ensemble to one file of the present schema, atomically.

    Raises:
        InputError: more members than a file may have.
        OSError: the system refuses; it names the file.
    """
    if len(members) > MOST_MEMBERS:
        raise InputError(f"{path}: {len(members)} members; a file holds at most {MOST_MEMBERS}")
    texts, tensors = {}, {}
    for k, member in enumerate(members):
        texts[_key(k)] = member.metadata.model_copy(update={"schema_version": SCHEMA_VERSION}).model_dump_json()
        for name, tensor in member.model.state_dict().items():
            tensors[_prefix(k) + name] = tensor.detach().cpu().contiguous()
    with atomic_file(path) as temporary:
        temporary.write_bytes(to_bytes(tensors, metadata=texts))


def read_metadata(path: str | Path) -> ModelMetadata:
    """Read the metadata of a model file without weights; for an ensemble, the first member's.

    Raises:
        InputError: the file is missing, truncated, no model file, or of a schema that this molflt does not read.
    """
    with _open(Path(path)) as handle:
        return _parse_metadata(Path(path), handle.metadata(), 0)


def load_model(path: str | Path, frequencies: MethodName | None = None) -> LoadedModel:
    """Load the only model of a file, see :func:`load_models`.

    Raises:
        InputError: as :func:`load_models`, or the file holds an ensemble.
    """
    members = load_models(path, frequencies)
    if len(members) > 1:
        raise InputError(f"{path}: is an ensemble of {len(members)} models; give one of them, such as {path}#0")
    return members[0]


def load_models(path: str | Path, frequencies: MethodName | None = None) -> list[LoadedModel]:
    """Load the models of a file, in evaluation mode, on the CPU.

    For ``frequencies`` see :func:`molflt.model.energy.set_frequencies`.

    Raises:
        InputError: the file cannot be used, or its far field cannot be evaluated by another method.
    """
    path = Path(path)
    with _open(path) as handle:
        raw = handle.metadata() or {}
        n = 1 + sum(_key(k) in raw for k in range(1, MOST_MEMBERS))
        return [_load(path, handle, k, n, _parse_metadata(path, raw, k), frequencies) for k in range(n)]


def _load(
    path: Path, handle: Any, k: int, n: int, metadata: ModelMetadata, frequencies: MethodName | None
) -> LoadedModel:
    """Load the ``k``-th of the ``n`` members of an open file."""
    prefix, others = _prefix(k), () if k else tuple(map(_prefix, range(1, n)))
    names = [name for name in handle.keys() if name.startswith(prefix) and not name.startswith(others)]  # noqa: SIM118
    shapes = {name.removeprefix(prefix): tuple(handle.get_slice(name).get_shape()) for name in names}
    expected = _expected_tensors(path, metadata, shapes)
    weights = {
        name: _checked(path, name, tensor, handle.get_tensor(prefix + name)) for name, tensor in expected.items()
    }
    model = EnergyModel(metadata.config, metadata.seed)
    # A model trained in double precision stays in double precision; the constructor makes single precision.
    model.to(weights["energy_head.factor"].dtype)
    model.load_state_dict(weights)
    if frequencies is not None:
        set_frequencies(model, frequencies)
    return LoadedModel(model.train(mode=False), metadata, path)


def _key(k: int) -> str:
    """Return the key of a member's metadata."""
    return f"{METADATA_KEY}-{k}" if k else METADATA_KEY


def _prefix(k: int) -> str:
    """Return the prefix of the names of a member's tensors."""
    return f"{k}/" if k else ""


def _open(path: Path) -> Any:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the model file in it, such as {path / 'best.safetensors'}")
    ordinary_file(path, "a trained model is RUN_DIR/best.safetensors")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: not a model file, or a truncated one ({error}); copy it again, or give RUN_DIR/best.safetensors"
        ) from error


def _parse_metadata(path: Path, raw: dict[str, str] | None, k: int) -> ModelMetadata:
    """Parse the metadata of the ``k``-th member."""
    if not raw or _key(k) not in raw:
        raise InputError(
            f"{path}: a safetensors file, but not a molflt model (it has no '{_key(k)}' metadata); "
            "models are made by 'molflt train'"
        )
    if len(raw[_key(k)]) > _MOST_METADATA:
        raise InputError(f"{path}: its metadata is damaged (longer than {_MOST_METADATA:,} characters); {_REMEDY}")
    try:
        content = json.loads(raw[_key(k)])
        schema = int(content["schema_version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: its metadata is damaged ({_reason(error)}); {_REMEDY}") from error
    if schema > SCHEMA_VERSION:
        raise InputError(
            f"{path}: written with model schema {schema}, this molflt reads up to {SCHEMA_VERSION}; upgrade molflt"
        )
    if schema < OLDEST_SCHEMA:
        raise InputError(
            f"{path}: written with model schema {schema}, before the first release; this molflt reads from "
            f"{OLDEST_SCHEMA} on: train again"
        )
    try:
        return ModelMetadata.model_validate(_without_retired_keys(content))
    # UnicodeEncodeError: a word with half of a surrogate pair
    except (ValidationError, UnicodeEncodeError) as error:
        reason = _reason(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"{path}: its metadata is damaged ({reason}); {_REMEDY}") from error


def _without_retired_keys(content: dict[str, Any]) -> dict[str, Any]:
    """Remove retired keys, which said how to compute a model and never changed the result."""
    config = content.get("config")
    attention = config.get("attention") if isinstance(config, dict) else None
    if isinstance(attention, dict):
        attention.pop("order", None)
        if attention.get("frequencies") == "quadrature":
            attention["frequencies"] = "auto"
    return content


def _expected_tensors(
    path: Path, metadata: ModelMetadata, shapes: dict[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """Return a model's state on the meta device, once the file is known to hold such tensors.

    The sizes that a file states are not trusted: no memory is allocated before they have been compared with its
    tensors.
    """
    found, config = shapes.keys(), metadata.config
    n_values = sum(map(math.prod, shapes.values()))
    if config.n_layers > len(found) or _values_drawn(config) > max(_DRAWN_ANYWAY, 4 * n_values):
        raise InputError(f"{path}: the weights do not fit the sizes in the file's configuration; {_REMEDY}")
    try:
        with torch.device("meta"):
            expected = EnergyModel(config, metadata.seed).state_dict()
    except (RuntimeError, ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path}: its configuration makes no model ({_reason(error)}); {_REMEDY}") from error
    if found != expected.keys():
        missing, surplus = sorted(expected.keys() - found), sorted(found - expected.keys())
        raise InputError(
            f"{path}: the weights do not fit the configuration in the file "
            f"(missing: {in_line(missing, 1) or 'none'}; unknown: {in_line(surplus, 1) or 'none'}); {_REMEDY}"
        )
    for name, tensor in expected.items():
        shape = _stored_shape(metadata, name, tensor)
        if shapes[name] != shape:
            raise InputError(f"{path}: tensor '{name}' has shape {shapes[name]}, expected {shape}; {_REMEDY}")
    return expected


def _stored_shape(metadata: ModelMetadata, name: str, tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor in the file: matrices of schema 10 have no weights for traces."""
    shape, matrices = tuple(tensor.shape), isinstance(metadata.config.attention, MatricesConfig)
    if metadata.schema_version < 11 and matrices and name.endswith(".attention.output.weight"):
        return shape[0], shape[1] * 3 // 5
    return shape


def _values_drawn(config: ModelConfig) -> int:
    """Count the random numbers drawn for all layers' features, even on the meta device."""
    attention = config.attention
    if not isinstance(attention, KernelKeys) or not attention.acts("kernel"):
        return 0
    width = config.dim // config.n_heads + 2 * int(getattr(attention, "n_frequencies", 0))
    return config.n_layers * width * (width + attention.n_features)


def _checked(path: Path, name: str, expected: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    allowed = (torch.float32, torch.float64) if expected.is_floating_point() else (expected.dtype,)
    if tensor.dtype not in allowed:
        raise InputError(f"{path}: tensor '{name}' has dtype {tensor.dtype}, expected {allowed[0]}; {_REMEDY}")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{path}: tensor '{name}' holds NaN or infinity; {_REMEDY}")
    # Zeros for what was not read, see _stored_shape().
    return (
        tensor if tensor.shape == expected.shape else functional.pad(tensor, [0, expected.shape[1] - tensor.shape[1]])
    )


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
