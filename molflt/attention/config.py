"""Configuration of the attention, and its named presets."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Mechanism = Literal["fourier", "kernelised", "randomised", "softmax"]
FrequenciesKind = Literal["auto", "exact", "quadrature", "lattice", "mesh", "sampled"]
OrderKind = Literal["auto", "quadratic", "linear"]
FarRank = Literal[0, 1, "m"]
Directions = Literal["averaged", "random"]
Radii = Literal["random", "stratified"]
Proposal = Literal["mixture", "own"]
SpectrumKind = Literal["gaussian", "free"]
Sampling = Literal["exact", "biased"]

COMPONENT_FUNCTIONS = ("trigrf", "posrf", "oprf", "saderf")
WEIGHT_MATRICES = ("iid", "orf", "sorf", "sphere", "qmc", "mm", "sgq", "fastfood")
RANDOM_FEATURES = tuple(f"{component}-{matrix}" for component in COMPONENT_FUNCTIONS for matrix in WEIGHT_MATRICES)
_GRID = f"one of {', '.join(COMPONENT_FUNCTIONS)} with one of {', '.join(WEIGHT_MATRICES)}, such as posrf-orf"
KERNELS = (*RANDOM_FEATURES, "elu", "relu", "lara")

ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "molflt": {},
    "flt": {"far_rank": "m", "frequencies": "sampled", "moment_channels": 0},
    "flt-concat": {"combine": "concat", "frequencies": "sampled", "directions": "random"},
    "performer": {"mechanism": "kernelised"},
    "softmax": {"mechanism": "softmax"},
    "ra": {"mechanism": "randomised"},
    "ra-rpe": {"mechanism": "randomised", "positional_mask": True},
    "lara-rpe": {"far_rank": "m", "kernel": "lara", "moment_channels": 0},
    **{kernel: {"mechanism": "kernelised", "kernel": kernel} for kernel in KERNELS},
}
"""What each name changes from the defaults of :class:`AttentionConfig`."""


MOMENT_CHANNELS = 32
"""Where the attention has moments and nothing else is said."""


def unknown_kernel(name: str) -> str:
    """What to say of a kernel that does not exist."""
    return f"unknown kernel '{name}'; choose elu, relu, lara, or {_GRID}"


class AttentionConfig(BaseModel):
    """Which attention, and its parameters. ``attention: flt`` is short for the preset of that name."""

    model_config = ConfigDict(extra="forbid")

    mechanism: Mechanism = Field(
        "fourier",
        description="fourier: local RPE plus Fourier RPE; kernelised: features of queries and keys without RPE "
        "(Performer and its relatives); randomised: RA, quadratic; softmax: dense softmax with Graphormer's bias",
    )
    combine: Literal["product", "concat"] = Field(
        "product",
        description="product: the RPE multiplies a content kernel, which keeps it invariant; concat: Algorithm 1 of "
        "the FLT paper, random directions and no local branch, neither rotation- nor translation-invariant",
    )
    far_field: bool = Field(True, description="false leaves only the local branch")
    far_rank: FarRank = Field(
        0,
        description="content factor of the far field: 0 none, 1 a gate per head on either side, m random features",
    )
    frequencies: FrequenciesKind = Field(
        "auto",
        description="numerical method for the far field; auto picks exact, lattice or mesh for each structure; "
        "sampled is an estimator that becomes part of the model",
    )
    order: OrderKind = Field(
        "auto",
        description="quadratic: on all pairs; linear: without pairs; auto: for each structure whichever takes fewer "
        "multiply-adds",
    )
    tolerance: float = Field(1e-4, gt=0, lt=1e-2, description="stated error of quadrature, lattice and mesh")
    l_max: int | None = Field(
        None,
        ge=0,
        le=96,
        description="fixed budget: quadrature or averaged sampled frequencies, n_frequencies of them, in isolated "
        "structures by (l_max + 1)² features each; strictly linear, and part of the model",
    )
    far_dim: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="how much of the values the far field carries, all heads together; null: a quarter of them, "
        "with far_rank=m all",
    )
    moment_channels: int | None = Field(
        None,
        ge=0,
        le=65_536,
        description="channels of the moments of an atom's neighbours, by which a layer sees angles; 0 leaves them "
        "out; null: 32 with mechanism=fourier and combine=product, else 0",
    )
    n_basis: int = Field(16, ge=2, le=1024, description="T, Gaussians in the RPE function f")
    sigma_min: float = Field(2.0, ge=0.01, le=1e4, description="narrowest Gaussian of f at the start, Å")
    sigma_max: float = Field(12.0, gt=0, le=1e4, description="widest Gaussian of f at the start, Å")
    isolated_atoms: float | None = Field(
        None,
        ge=1,
        le=1e9,
        description="atoms of a structure that is not periodic, which scales wide Gaussians of f; null: the mean of "
        "the training set if none in it is periodic, else no bound",
    )
    n_frequencies: int = Field(16, ge=2, le=65_536, description="r, frequencies of the sampled estimator")
    directions: Directions = Field(
        "averaged", description="sampled: averaged is exactly rotation-invariant; concat always uses random"
    )
    radii: Radii = Field("stratified", description="sampled: lengths of the frequencies")
    proposal: Proposal = Field("mixture", description="sampled: mixture is the balance heuristic, own is the paper")
    means: bool = Field(False, description="sampled, random directions: proposals with learnable means")
    spectrum: SpectrumKind = Field("gaussian", description="sampled: a_k from the Gaussian basis, or free weights")
    periodic_radius: float = Field(12.0, gt=0, le=1000, description="sampled: envelope of the sum over images, Å")
    kernel: str = Field(
        "posrf-orf",
        description="feature map of mechanism=kernelised, far_rank=m and concat: elu, relu, lara, or a component "
        f"function ({', '.join(COMPONENT_FUNCTIONS)}) and a weight matrix ({', '.join(WEIGHT_MATRICES)})",
    )
    n_features: int = Field(64, ge=2, le=65_536, description="m, random features of the kernel")
    redraw_every: int = Field(
        0, ge=0, description="training steps after which random features are drawn anew; 0 keeps the first draw"
    )
    n_landmarks: int = Field(16, ge=1, le=65_536, description="lara: C, landmarks and samples per head")
    n_samples: int = Field(1, ge=1, le=1024, description="randomised: S, samples per query while training")
    sampling: Sampling = Field(
        "exact", description="randomised: exact is unbiased, biased draws around the mean (LARA paper, Eq. 31)"
    )
    positional_mask: bool = Field(
        False, description="randomised: with the local RPE and the Fourier RPE of mechanism=fourier"
    )
    dense_cutoff: float = Field(
        12.0,
        gt=0,
        le=100,
        description="softmax: reach of its bias in periodic structures, Å; isolated ones see all pairs",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in ATTENTION_PRESETS:
                names = [name for name in ATTENTION_PRESETS if name not in RANDOM_FEATURES]
                raise ValueError(f"unknown attention '{value}'; choose one of {', '.join(names)}, or {_GRID}")
            return dict(ATTENTION_PRESETS[value])
        return value

    @model_validator(mode="after")
    def _consistent(self) -> AttentionConfig:
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_min ({self.sigma_min}) must be smaller than sigma_max ({self.sigma_max})")
        if self.combine == "concat" and self.frequencies != "sampled":
            raise ValueError("combine=concat needs explicit random frequencies: set frequencies=sampled")
        if self.combine == "concat" and self.mechanism != "fourier":
            raise ValueError(f"combine=concat belongs to mechanism=fourier, not {self.mechanism}")
        if self.combine == "concat" and self.spectrum == "free":
            raise ValueError("combine=concat takes its coefficients from the Gaussian basis: set spectrum=gaussian")
        averaged = self.directions == "averaged" and self.combine == "product"
        if self.means and (self.frequencies != "sampled" or averaged):
            raise ValueError("means need frequencies=sampled with directions=random: averaged ones have no direction")
        if self.l_max is not None and (
            self.frequencies not in ("quadrature", "sampled")
            or (self.frequencies == "sampled" and (self.directions == "random" or self.combine == "concat"))
        ):
            raise ValueError("l_max is a budget of frequencies=quadrature, or of sampled with directions=averaged")
        only_pairs = self.frequencies == "exact" or (
            self.frequencies == "sampled" and self.directions == "averaged" and self.l_max is None
        )
        if self.order == "linear" and self.combine == "product" and only_pairs:
            raise ValueError(
                f"frequencies={self.frequencies} as it is set has no linear form: leave order at auto, or choose "
                "frequencies=mesh, or set l_max with sampled"
            )
        if self.combine == "concat" and (self.order != "auto" or self.far_dim is not None):
            raise ValueError("combine=concat is linear by itself: leave order and far_dim at their defaults")
        if self.kernel not in KERNELS:
            raise ValueError(unknown_kernel(self.kernel))
        if self.redraw_every and self.kernel not in RANDOM_FEATURES:
            raise ValueError(f"redraw_every draws random features anew; kernel={self.kernel} has none: set it to 0")
        if self.redraw_every and self.kernel.endswith("-fastfood"):
            raise ValueError("redraw_every would throw away what fastfood has learned: set it to 0")
        if self.positional_mask and self.mechanism != "randomised":
            raise ValueError(
                "positional_mask belongs to mechanism=randomised; for a kernel take mechanism=fourier with far_rank=m"
            )
        if self.positional_mask and self.order == "linear":
            raise ValueError("mechanism=randomised is quadratic: leave order at auto")
        if self.moment_channels and (self.mechanism != "fourier" or self.combine == "concat"):
            raise ValueError("moment_channels belong to mechanism=fourier with combine=product: set them to 0")
        if self.spectrum == "free" and self.frequencies != "sampled":
            raise ValueError("spectrum=free is a property of the sampled estimator: set frequencies=sampled")
        return self

    @property
    def n_moment_channels(self) -> int:
        """``moment_channels``, and what null stands for."""
        if self.moment_channels is not None:
            return self.moment_channels
        return MOMENT_CHANNELS if self.mechanism == "fourier" and self.combine == "product" else 0

    def neighbour_cutoff(self, local_cutoff: float) -> float:
        """Å up to which this attention needs the neighbour list."""
        return max(local_cutoff, self.dense_cutoff) if self.mechanism == "softmax" else local_cutoff
