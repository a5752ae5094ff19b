"""What the literature is called: its mechanisms, presets and kernels, without importing any of them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from molflt.attention.config import (
    PERFORMER_KERNEL,
    ContentKeys,
    FarFieldKeys,
    KernelKeys,
    MechanismConfig,
    MethodKeys,
    SampledKeys,
    refuse_waves,
)

Sampling = Literal["exact", "biased"]

COMPONENT_FUNCTIONS = ("trigrf", "posrf", "oprf", "saderf")
WEIGHT_MATRICES = ("iid", "orf", "sorf", "sphere", "qmc", "mm", "sgq", "fastfood")
RANDOM_FEATURES = tuple(f"{component}-{matrix}" for component in COMPONENT_FUNCTIONS for matrix in WEIGHT_MATRICES)


class ConcatConfig(SampledKeys, KernelKeys):
    """Algorithm 1 of the FLT paper as published: random directions, no local branch, neither rotation- nor
    translation-invariant.
    """

    mechanism: Literal["concat"] = Field("concat", description="FLT as published, Algorithm 1")
    means: bool = Field(False, description="proposals with learnable means")


class SampleKeys(MechanismConfig):
    """Keys of the estimate by random features of every query."""

    n_samples: int = Field(1, ge=1, le=1024, description="S, samples per query while training")
    sampling: Sampling = Field(
        "exact", description="exact is unbiased, biased draws around the mean (LARA paper, Eq. 31)"
    )


class RandomisedConfig(SampleKeys):
    """RA: softmax attention estimated by random features of every query; quadratic."""

    mechanism: Literal["randomised"] = Field("randomised", description="RA, without positions")


class RandomisedRpeConfig(SampleKeys, MethodKeys):
    """RA with the local RPE and the Fourier RPE as its positional mask."""

    mechanism: Literal["randomised-rpe"] = Field("randomised-rpe", description="RA with positions")


class BudgetConfig(ContentKeys, FarFieldKeys):
    """Local RPE plus a quadrature of f under a fixed budget of nodes and spherical waves: strictly linear."""

    mechanism: Literal["budget"] = Field("budget", description="local RPE plus Fourier RPE under a budget")
    n_frequencies: int = Field(16, ge=2, le=4096, description="r, nodes of the quadrature")
    l_max: int = Field(
        6, ge=0, le=96, description="(l_max + 1)² features of each node in isolated structures; part of the model"
    )
    tolerance: float = Field(1e-4, ge=1e-12, lt=1e-2, description="error that would hold with enough nodes")

    @model_validator(mode="after")
    def _few_waves(self) -> Self:
        refuse_waves(self.n_frequencies, self.l_max)
        return self


MECHANISMS: dict[str, tuple[type[MechanismConfig], str]] = {
    "concat": (ConcatConfig, "molflt.literature.build:build_concat"),
    "randomised": (RandomisedConfig, "molflt.literature.build:build_randomised"),
    "randomised-rpe": (RandomisedRpeConfig, "molflt.literature.build:build_randomised_rpe"),
    "budget": (BudgetConfig, "molflt.literature.build:build_budget"),
}
KERNELS = {
    name: "molflt.literature.kernels:kernel_of"
    for name in (*RANDOM_FEATURES, "elu", "relu", "lara")
    if name != PERFORMER_KERNEL
}
PRESETS: dict[str, dict[str, Any]] = {
    "flt-concat": {"mechanism": "concat"},
    "ra": {"mechanism": "randomised"},
    "ra-rpe": {"mechanism": "randomised-rpe"},
    "lara-rpe": {"mechanism": "fourier", "far_rank": "m", "kernel": "lara", "moment_channels": 0},
    **{kernel: {"mechanism": "kernelised", "kernel": kernel} for kernel in (PERFORMER_KERNEL, *KERNELS)},
}
