"""Configuration of a training run: the schema of YAML files and overrides, and the presets."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from ase.data import atomic_numbers
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from molflt.data.labels import ForceUnit, LabelSpec, Target, parse_force_unit
from molflt.data.reading import ReadOptions
from molflt.errors import InputWarning, OnBad
from molflt.model.config import ModelConfig
from molflt.model.scale_shift import ScaleShiftKind
from molflt.vocabulary import DIFFERENTIABLE, Compile, EnergyUnit, OnError, Per, TagConvention


def _given_as_text(expand: Callable[[str], Any]) -> BeforeValidator:
    """Accept text as short for what ``expand`` makes of it."""
    return BeforeValidator(lambda value: expand(value) if isinstance(value, str) else value)


class DataConfig(BaseModel):
    """Structures and their labels, and the size of batches."""

    model_config = ConfigDict(extra="forbid")

    train: str = Field(description="structures to train on; bundled:NAME is one of the sets that come with molflt")
    val: Annotated[dict[str, str], _given_as_text(lambda path: {"val": path})] = Field(
        min_length=1,
        description="validation splits by name, or one path; the first decides what is best and when to stop early",
    )
    target: Target = Field("y_relaxed", description="label to learn, eV: y_relaxed, y_init or energy")
    label: str | None = Field(
        None,
        description="its name in the data (info or database key, CSV column, SDF property); null: that of the target",
    )
    unit: EnergyUnit = Field("eV", description="unit of the stored energies: eV, meV, kcal/mol, kJ/mol or Hartree")
    per: Per = Field("structure", description="whether stored energies are per structure or per atom")
    force_label: str | None = Field(None, description="name of the forces in the data; null: forces")
    force_unit: Annotated[ForceUnit | None, BeforeValidator(parse_force_unit)] = Field(
        None, description="unit of the stored forces, as in Hartree/bohr; null: the unit of the energies per Ang"
    )
    pairs: bool = Field(
        False,
        description="read files or folders called initial and relaxed as a relaxation, not as two structures, as is "
        "always done for target y_relaxed",
    )
    tags: TagConvention = Field(
        "auto", description="how tags in the files are read: oc20, or layers, numbered from the top as ASE does"
    )
    standardise: Literal["auto"] | ScaleShiftKind = Field(
        "auto",
        description="structure: by mean and std; element: by reference energies; auto: element for target energy",
    )
    references: dict[str, float] | None = Field(
        None, description="energy of each element's free atom, in data.unit; null: fitted where references are used"
    )
    max_atoms: int = Field(1024, ge=1, description="atoms per batch and device; larger structures come alone")
    on_error: OnError = Field(
        "raise",
        description="for a structure that cannot be used (no label, NaN, coincident atoms, ...): raise stops the "
        "run, skip leaves the structure out and lists it in skipped.csv in the run folder",
    )
    cache: str | None = Field(
        None, description="folder for prepared sets, which are made of large data once; null: beside the data"
    )
    allow_charged: bool = Field(False, description="treat ions and radicals as neutral and closed-shell")
    accept_unconverged: bool = Field(False, description="read unconverged and unfinished calculations as well")
    num_workers: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="processes that make batches, per device; auto: none on a CPU, which has no cores to spare, and "
        "on a GPU one for each core but one, up to 8",
    )

    @model_validator(mode="before")
    @classmethod
    def _former(cls, given: Any) -> Any:
        if isinstance(given, dict) and "on_bad" in given:
            warnings.warn("data.on_bad=stop is now data.on_error=raise, skip as before", InputWarning, stacklevel=2)
            given = {"on_error": "raise" if given["on_bad"] == "stop" else given["on_bad"], **given}
            del given["on_bad"]
        return given

    @property
    def on_bad(self) -> OnBad:
        """``on_error`` as :class:`ReadOptions` has it."""
        return "skip" if self.on_error == "skip" else "stop"

    @field_validator("val")
    @classmethod
    def _split_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name or "/" in name or name == "train":
                raise ValueError(f"'{name}' cannot name a validation split; choose another name, without '/'")
        return value

    @field_validator("references")
    @classmethod
    def _elements(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        unknown = [symbol for symbol in value or {} if symbol not in atomic_numbers or symbol == "X"]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no element; give symbols, as in {{H: -13.6, O: -432.0}}")
        return value

    def labels(self) -> LabelSpec:
        """Return the label to read, with the meaning of its numbers."""
        return LabelSpec(**self.model_dump(include=set(LabelSpec.model_fields)))

    def reading(self, charges: bool = False) -> ReadOptions:
        """Return the options of reading; ``charges``: for a model that takes ions."""
        return ReadOptions(
            self.allow_charged,
            charges=charges,
            pairs=self.pairs,
            accept_unconverged=self.accept_unconverged,
            tags=self.tags,
            on_bad=self.on_bad,
        )


WEIGHT_DECAY = 0.1
"""Weight decay of AdamW where none is given."""


FINE_TUNING_RATE = 3e-4
"""Peak learning rate of a run that starts from a trained model, where none is given."""


class InitConfig(BaseModel):
    """A trained model to start from (fine-tuning); init=MODEL is short for init.model=MODEL."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(
        None,
        description="model file, run directory or pretrained:NAME; keys of model that are not given are as in it; "
        "null: random weights",
    )
    freeze: Annotated[list[str], _given_as_text(lambda part: [part])] = Field(
        default_factory=list, description="parts that are not trained, as in [embedding, layers.0]"
    )

    @model_validator(mode="after")
    def _nothing_to_freeze(self) -> InitConfig:
        if self.freeze and self.model is None:
            raise ValueError("init.freeze needs init.model: weights that are drawn at random must be trained")
        return self


class OptimiserConfig(BaseModel):
    """Optimiser and schedule."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["adamw", "adam", "muon"] = Field(
        "muon", description="muon: orthogonal steps for matrices, AdamW for the rest; adamw: for all"
    )
    lr: float = Field(1e-3, gt=0, description="peak learning rate; with init.model, 3e-4 if it is not given")
    betas: tuple[float, float] = Field((0.9, 0.98), description="moment decays of Adam")
    eps: float = Field(1e-6, gt=0, description="Adam's epsilon")
    weight_decay: float | None = Field(
        None, ge=0, description="on matrices only; null: 0.1, with adam, where it is a penalty, 0"
    )
    schedule: Literal["linear", "cosine"] = Field("cosine", description="decay to zero after the warm-up")
    warmup_steps: int = Field(100, ge=0, description="steps of the linear rise to the peak; half of all at most")
    clip_norm: float = Field(
        5.0, ge=0, description="the gradient's norm is clipped to 1 + loss.force_weight times this; 0 does not clip"
    )
    ema_decay: float = Field(
        0.999, ge=0, lt=1, description="moving average of the weights that is validated; 0 is off"
    )

    @property
    def decay(self) -> float:
        """``weight_decay``, and what null stands for."""
        if self.weight_decay is not None:
            return self.weight_decay
        return 0.0 if self.name == "adam" else WEIGHT_DECAY


class LossConfig(BaseModel):
    """Errors of energies and forces, absolute or squared, and an auxiliary loss of displacements."""

    model_config = ConfigDict(extra="forbid")

    errors: Literal["absolute", "squared"] = Field(
        "absolute",
        description="of energies and lengths of those of forces, or the squares of both, where large ones count for "
        "more; see docs/forces.md",
    )

    energy_per: Per = Field("structure", description="whether errors of the energy count per structure or per atom")
    force_weight: Literal["auto"] | Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="weight of the force loss; 0: none; auto: 100 where all training structures "
        "have one composition and one cell, 10 where they differ; of squares a tenth of that",
    )
    charge_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the loss of partial charges and their dipole, with model.partial_charges; "
        "the data have an array partial_charges, e",
    )
    interaction_weight: float = Field(
        0.0,
        ge=0,
        description="weight of the loss of interaction energies of dimers, each of which comes in the training file "
        "just before its two molecules",
    )
    auxiliary_start: float = Field(15.0, ge=0, description="weight of the displacement loss at the start")
    auxiliary_end: float = Field(1.0, ge=0, description="weight of the displacement loss at the end")
    noisy_nodes: Literal["auto"] | bool = Field(
        "auto",
        description="train on given and on partly relaxed positions, with noise; auto: where y_relaxed is learnt and "
        "relaxed positions are known",
    )
    separation: Literal["auto"] | Annotated[float, Field(ge=0, le=10)] = Field(
        "auto",
        description="augmentation: combinations of separated molecules, or of two adsorbates on one slab, per "
        "structure; auto: 0.2 where total energies of neutral isolated structures are learnt without forces",
    )
    noise_std: float = Field(0.05, ge=0, description="standard deviation of each atom's noise, Å")

    @property
    def forces(self) -> bool:
        """Return True where forces are learnt."""
        return self.force_weight != 0

    @property
    def squared(self) -> bool:
        """Return True where squares of errors are the loss."""
        return self.errors == "squared"


class TrainerConfig(BaseModel):
    """Length of the run, device and precision."""

    model_config = ConfigDict(extra="forbid")

    max_epochs: int = Field(30, ge=1, description="passes over the training set")
    max_steps: int = Field(-1, ge=-1, description="most optimiser steps; -1 for no limit")
    val_every: int = Field(1, ge=1, description="epochs between validations; the last epoch is always validated")
    best_by: Literal["auto", "energy", "forces", "both"] = Field(
        "auto",
        description="error on the first split that decides which epoch is best; both: that of energies plus that of "
        "forces, each over its spread; auto: both where forces are learnt, else energy",
    )
    patience: int = Field(0, ge=0, description="stop after this many validations without improvement; 0 is off")
    accelerator: Literal["auto", "cpu", "gpu"] = Field("auto", description="auto takes a CUDA GPU if there is one")
    devices: int = Field(1, ge=1, description="processes, one per device")
    num_nodes: int = Field(1, ge=1, description="machines")
    precision: Literal["32-true", "64-true", "bf16-mixed"] = Field(
        "32-true", description="bf16-mixed: feed-forward in bfloat16, attention and sums in float32"
    )
    keep_last: int = Field(
        0, ge=0, description="how many models of the latest validations to keep as epoch-N.safetensors, to average"
    )
    on_bad_batch: Literal["stop", "skip"] = Field(
        "stop",
        description="for a batch whose loss or gradient is not a number: stop the run, or skip the batch; "
        "bad_batches.jsonl in the run folder lists it",
    )
    compile: Compile = Field(
        "off",
        description="compile the model, which takes half a minute at the start; auto: on a GPU where there is a C "
        "compiler; training on forces is never compiled",
    )
    checkpoint_recycles: bool = Field(
        False, description="keep one recycle in memory instead of all, for about a third more time"
    )
    deterministic: bool = Field(True, description="the same numbers every time on the same machine")
    loggers: list[Literal["tensorboard", "wandb"]] = Field(
        default_factory=list, description="loggers besides metrics.csv and metrics.jsonl; each is an extra to install"
    )

    @field_validator("max_steps")
    @classmethod
    def _some_steps(cls, value: int) -> int:
        if value == 0:
            raise ValueError("must be -1 (no limit) or at least 1")
        return value


class TrainConfig(BaseModel):
    """Everything ``molflt train`` needs."""

    model_config = ConfigDict(extra="forbid")

    seed: int = Field(0, ge=0, lt=2**32, description="seed of weights, batches, dropout and noise")
    ensemble: int = Field(1, ge=1, le=1000, description="models to train, with seeds from seed on, for uncertainty")
    data: DataConfig
    init: InitConfig = Field(default_factory=lambda: InitConfig())
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    optimiser: OptimiserConfig = Field(default_factory=lambda: OptimiserConfig())
    loss: LossConfig = Field(default_factory=lambda: LossConfig())
    trainer: TrainerConfig = Field(default_factory=lambda: TrainerConfig())

    @field_validator("init", mode="before")
    @classmethod
    def _one_model(cls, value: Any) -> Any:
        return {"model": value} if value is None or isinstance(value, str) else value

    @model_validator(mode="after")
    def _lower_rate(self) -> TrainConfig:
        if self.init.model is not None and "lr" not in self.optimiser.model_fields_set:
            self.optimiser = self.optimiser.model_copy(update={"lr": FINE_TUNING_RATE})
        return self

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        if self.init.model is not None and self.data.references is not None:
            raise ValueError(
                "data.references cannot be given with init.model, whose reference energies are kept and shifted to "
                "the new labels: leave it out"
            )
        if self.loss.forces and self.data.target not in DIFFERENTIABLE:
            raise ValueError(
                f"loss.force_weight needs a data.target that is the energy of the given geometry "
                f"({' or '.join(DIFFERENTIABLE)}); {self.data.target} is constant along a relaxation"
            )
        if self.init.model is None and self.loss.charge_weight and not self.model.partial_charges:
            raise ValueError("loss.charge_weight needs model.charges=1 model.partial_charges=true")
        if self.trainer.best_by in ("forces", "both") and not self.loss.forces:
            raise ValueError(f"trainer.best_by={self.trainer.best_by} needs loss.force_weight above 0")
        if self.data.references is not None and self.data.standardise == "structure":
            raise ValueError("data.references needs data.standardise=element or auto")
        return self


_BUNDLED = {"train": "bundled:fg/train.lmdb", "val": "bundled:fg/val.lmdb"}

PRESETS: dict[str, dict[str, Any]] = yaml.safe_load(
    resources.files(__package__).joinpath("presets.yaml").read_text(encoding="utf-8")
)
"""Named configurations, each with a ``summary``."""


def preset_config(name: str) -> TrainConfig:
    """Make the configuration called ``name``.

    Raises:
        KeyError: there is none of that name.
    """
    values = {key: value for key, value in PRESETS[name].items() if key != "summary"}
    return TrainConfig.model_validate({**values, "data": {**_BUNDLED, **values.get("data", {})}})
