"""What the literature is called: its mechanisms, presets and kernels, without importing any of them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from molflt.attention.config import (
    PERFORMER_KERNEL,
    Condition,
    ContentKeys,
    FarFieldKeys,
    KernelKeys,
    MechanismConfig,
    MethodKeys,
)

Directions = Literal["averaged", "random"]
Radii = Literal["random", "stratified"]
Proposal = Literal["mixture", "own"]
SpectrumKind = Literal["gaussian", "free"]
Sampling = Literal["exact", "biased"]

COMPONENT_FUNCTIONS = ("trigrf", "posrf", "oprf", "saderf")
WEIGHT_MATRICES = ("iid", "orf", "sorf", "sphere", "qmc", "mm", "sgq", "fastfood")
RANDOM_FEATURES = tuple(f"{component}-{matrix}" for component in COMPONENT_FUNCTIONS for matrix in WEIGHT_MATRICES)


class UndampedKeys(FarFieldKeys):
    """Keys of the FLT paper's estimator of f by sampled frequencies; it is part of a model, unlike a method."""

    n_frequencies: int = Field(16, ge=2, le=4096, description="r, frequencies of the estimator")
    radii: Radii = Field("stratified", description="lengths of the frequencies")
    proposal: Proposal = Field("mixture", description="mixture is the balance heuristic, own is the paper")


class UndampedConfig(ContentKeys, UndampedKeys):
    """Local RPE plus the paper's own estimator of the Fourier RPE: its waves are not damped, so that it never ends.

    With averaged directions it is quadratic. In cells it is a function of its own, under an envelope.
    """

    only_with: ClassVar[dict[str, Condition]] = {
        **ContentKeys.only_with,
        "means": ("directions=random", lambda c: c.directions == "random"),
        "n_basis": ("spectrum=gaussian", lambda c: c.spectrum == "gaussian"),
        "isolated_atoms": ("spectrum=gaussian", lambda c: c.spectrum == "gaussian"),
        "proposal": ("spectrum=gaussian", lambda c: c.spectrum == "gaussian"),
    }

    mechanism: Literal["undamped"] = Field("undamped", description="local RPE plus the paper's estimator")
    directions: Directions = Field("averaged", description="averaged is exactly rotation-invariant")
    means: bool = Field(False, description="proposals with learnable means")
    spectrum: SpectrumKind = Field("gaussian", description="a_k from the Gaussian basis, or free weights")
    periodic_radius: float = Field(12.0, ge=0.1, le=1000, description="envelope of the sum over images, Å")


class ConcatConfig(UndampedKeys, KernelKeys):
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


MECHANISMS: dict[str, tuple[type[MechanismConfig], str]] = {
    "undamped": (UndampedConfig, "molflt.literature.build:build_undamped"),
    "concat": (ConcatConfig, "molflt.literature.build:build_concat"),
    "randomised": (RandomisedConfig, "molflt.literature.build:build_randomised"),
    "randomised-rpe": (RandomisedRpeConfig, "molflt.literature.build:build_randomised_rpe"),
}
KERNELS = {
    name: "molflt.literature.kernels:kernel_of"
    for name in (*RANDOM_FEATURES, "elu", "relu", "lara")
    if name != PERFORMER_KERNEL
}
PRESETS: dict[str, dict[str, Any]] = {
    "flt-undamped": {"mechanism": "undamped", "far_rank": "m", "moment_channels": 0},
    "flt-concat": {"mechanism": "concat"},
    "ra": {"mechanism": "randomised"},
    "ra-rpe": {"mechanism": "randomised-rpe"},
    "lara-rpe": {"mechanism": "fourier", "far_rank": "m", "kernel": "lara", "moment_channels": 0},
    **{kernel: {"mechanism": "kernelised", "kernel": kernel} for kernel in (PERFORMER_KERNEL, *KERNELS)},
}
