"""Configuration of a training run: one schema for YAML files, dotted overrides and the model's metadata."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from molflt.model.config import ModelConfig
from molflt.model.standardiser import StandardiserKind
from molflt.vocabulary import TARGETS


class DataConfig(BaseModel):
    """Which structures, and how they are batched."""

    model_config = ConfigDict(extra="forbid")

    train: str = Field(
        description="structures to train on; bundled:NAME is NAME in the data folder of the repository"
    )
    val: dict[str, str] = Field(
        min_length=1, description="validation splits by name, or one path; the first decides best and early stop"
    )
    target: str = Field("y_relaxed", description="label to learn, eV: y_relaxed, y_init or energy")
    standardise: Literal["auto"] | StandardiserKind = Field(
        "auto", description="structure: mean and std; element: reference energies; auto: element for target energy"
    )
    max_atoms: int = Field(1024, ge=1, description="atoms per batch and device; larger structures come alone")
    num_workers: int = Field(0, ge=0, description="loader processes; sets that fit are cached and need none")

    @field_validator("val", mode="before")
    @classmethod
    def _one_split(cls, value: Any) -> Any:
        return {"val": value} if isinstance(value, str) else value

    @field_validator("val")
    @classmethod
    def _split_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name or "/" in name or name == "train":
                raise ValueError(f"'{name}' cannot name a validation split; choose another name, without '/'")
        return value

    @field_validator("target")
    @classmethod
    def _known_target(cls, value: str) -> str:
        if value not in TARGETS:
            raise ValueError(f"unknown target '{value}'; choose one of {', '.join(TARGETS)}")
        return value


class OptimiserConfig(BaseModel):
    """Optimiser and schedule."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["adamw", "adam"] = Field("adamw", description="adamw: decoupled weight decay")
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    betas: tuple[float, float] = Field((0.9, 0.98), description="moment decays of Adam")
    eps: float = Field(1e-6, gt=0, description="Adam's epsilon")
    weight_decay: float = Field(1e-3, ge=0, description="on matrices only")
    schedule: Literal["linear", "cosine"] = Field("cosine", description="decay to zero after the warm-up")
    warmup_steps: int = Field(100, ge=0, description="linear rise to the peak")
    clip_norm: float = Field(5.0, ge=0, description="gradient norm is clipped to this; 0 does not clip")
    ema_decay: float = Field(
        0.999, ge=0, lt=1, description="moving average of the weights that is validated; 0 is off"
    )


class LossConfig(BaseModel):
    """L1 on the standardised energy, and the auxiliary displacement loss."""

    model_config = ConfigDict(extra="forbid")

    auxiliary_start: float = Field(15.0, ge=0, description="weight of the displacement loss at the start")
    auxiliary_end: float = Field(1.0, ge=0, description="weight of the displacement loss at the end")
    noisy_nodes: Literal["auto"] | bool = Field(
        "auto", description="train on noised points between given and relaxed; auto: from 10,000 structures on"
    )
    noise_std: float = Field(0.1, ge=0, description="Å, of that noise")


class TrainerConfig(BaseModel):
    """How long, on what, how precisely."""

    model_config = ConfigDict(extra="forbid")

    max_epochs: int = Field(30, ge=1, description="passes over the training set")
    max_steps: int = Field(-1, ge=-1, description="optimiser steps at most; -1 for no limit")
    val_every: int = Field(1, ge=1, description="epochs between validations; the last epoch is always validated")
    patience: int = Field(0, ge=0, description="stop after so many validations without improvement; 0 is off")
    accelerator: Literal["auto", "cpu", "gpu"] = Field("auto", description="auto takes a CUDA GPU if there is one")
    devices: int = Field(1, ge=1, description="processes, one per device")
    num_nodes: int = Field(1, ge=1, description="machines")
    precision: Literal["32-true", "64-true", "bf16-mixed"] = Field(
        "32-true", description="bf16-mixed: feed-forward in bfloat16, attention and sums in float32"
    )
    deterministic: bool = Field(True, description="the same numbers every time on the same machine")
    loggers: list[Literal["tensorboard", "wandb"]] = Field(
        default_factory=list, description="besides metrics.csv and metrics.jsonl; each is an extra to install"
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

    seed: int = Field(0, ge=0, lt=2**32, description="of weights, batches, dropout and noise")
    data: DataConfig
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    optimiser: OptimiserConfig = Field(default_factory=lambda: OptimiserConfig())
    loss: LossConfig = Field(default_factory=lambda: LossConfig())
    trainer: TrainerConfig = Field(default_factory=lambda: TrainerConfig())
