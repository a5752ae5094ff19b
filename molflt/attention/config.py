"""Configuration of the attention mechanisms, each with its own keys and no idle ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from molflt.vocabulary import MethodName

FarRank = Literal[0, 1, "m"]
SpectrumName = Literal["gaussians", "sampled", "both"]
"""Basis of f: Gaussians, damped waves, or half of each."""
Directions = Literal["averaged", "random"]
Radii = Literal["random", "stratified"]
Proposal = Literal["mixture", "own"]
SpectrumKind = Literal["gaussian", "free"]
Sampling = Literal["exact", "biased"]

WIDEST = 12.0
"""Default initial width of the widest basis function, Å."""

MARGIN = 1.25
"""Factor by which the narrowest and the widest basis function may leave the initial range of widths."""

FROM_TRAINING_SET = ("sigma_max", "isolated_atoms")
"""Keys that training sets in the model where the configuration leaves them open."""

Condition = tuple[str, Callable[[Any], bool]]
"""Condition for a key to act: in words, and as a function of the configuration."""


class MechanismConfig(BaseModel):
    """Keys that all mechanisms share, and the neighbours that each needs.

    Attributes:
        only_with: keys that act under a condition, which is given in words and as a function.
        all_pairs_if_isolated: whether isolated structures need all pairs in their neighbour list.
    """

    model_config = ConfigDict(extra="forbid")

    only_with: ClassVar[dict[str, Condition]] = {}
    all_pairs_if_isolated: ClassVar[bool] = False

    mechanism: str

    @model_validator(mode="after")
    def _no_key_without_effect(self) -> Self:
        for name in sorted(self.model_fields_set):
            if not self.acts(name) and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} acts only with {self.only_with[name][0]}: leave it out")
        return self

    @model_serializer(mode="wrap")
    def _keys_that_act(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialise only the keys that act, since the others would be refused on reading."""
        return {name: value for name, value in handler(self).items() if self.acts(name)}

    def acts(self, name: str) -> bool:
        """Return whether a key has any effect, given the others."""
        return name not in self.only_with or self.only_with[name][1](self)

    def neighbour_cutoff(self, local_cutoff: float) -> float:
        """Return the cutoff of the neighbour list that this attention needs, Å."""
        return local_cutoff


class KernelKeys(MechanismConfig):
    """Keys of the feature map of a kernelised dot product."""

    only_with: ClassVar[dict[str, Condition]] = {
        "n_features": ("a kernel that draws features", lambda c: c.kernel not in ("elu", "lara")),
        "redraw_every": ("a kernel of random features", lambda c: c.draws_features),
        "n_landmarks": ("kernel=lara", lambda c: c.kernel == "lara"),
    }

    kernel: str = Field(
        "posrf-orf",
        description="feature map: posrf-orf is FAVOR+; docs/literature.md lists the others",
    )
    n_features: int = Field(64, ge=2, le=65_536, description="m, random features of the kernel")
    redraw_every: int = Field(
        0, ge=0, description="training steps after which random features are redrawn; 0 keeps the first draw"
    )
    n_landmarks: int = Field(16, ge=1, le=65_536, description="C, landmarks and samples per head")

    @property
    def draws_features(self) -> bool:
        """True if the kernel draws random features that can be redrawn; fastfood learns them."""
        return "-" in self.kernel and not self.kernel.endswith("-fastfood")


IF_RANK_M: dict[str, Condition] = {
    "kernel": ("far_rank=m", lambda c: c.far_rank == "m"),
    "n_features": ("far_rank=m", lambda c: c.far_rank == "m" and KernelKeys.only_with["n_features"][1](c)),
    "redraw_every": ("far_rank=m", lambda c: c.far_rank == "m" and c.draws_features),
    "n_landmarks": ("far_rank=m and kernel=lara", lambda c: c.far_rank == "m" and c.kernel == "lara"),
}


class FarFieldKeys(MechanismConfig):
    """Keys of the RPE function f of the far field."""

    n_basis: int = Field(16, ge=2, le=1024, description="T, members of the RPE function f")
    sigma_min: float = Field(2.0, ge=0.01, le=1e4, description="width of the narrowest Gaussian of f at the start, Å")
    sigma_max: float | None = Field(
        None,
        gt=0,
        le=1e4,
        description="width of the widest member of f at the start, Å; null: 12, or less where no structure of the "
        "training set is periodic and none is as large",
    )
    isolated_atoms: float | None = Field(
        None,
        ge=1,
        le=1e9,
        description="atoms of a structure that is not periodic, which scales wide Gaussians of f; null: the mean of "
        "the training set if none in it is periodic, else no bound",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.sigma_min >= self.widest:
            raise ValueError(f"sigma_min ({self.sigma_min}) must be smaller than sigma_max ({self.widest})")
        return self

    @property
    def widest(self) -> float:
        """``sigma_max`` or its default, Å."""
        return WIDEST if self.sigma_max is None else self.sigma_max

    def widest_seen(self, diameter: float) -> float:
        """Return the ``sigma_max`` in Å that keeps all widths within the training set's extent.

        Args:
            diameter: Å, the largest distance in a training set of isolated structures. Beyond it no data determine f.
        """
        return min(self.widest, max(diameter / MARGIN, 1.5 * self.sigma_min))


class MethodKeys(FarFieldKeys):
    """Keys of a far field that computes f itself, to a tolerance."""

    only_with: ClassVar[dict[str, Condition]] = {
        "tolerance": ("a method other than exact", lambda c: c.frequencies != "exact"),
    }

    spectrum: SpectrumName = Field(
        "both",
        description="members of f: gaussians; sampled: damped waves, the paper's frequencies with learnable scales; "
        "both: half of each",
    )
    frequencies: MethodName = Field(
        "auto",
        description="how the far field is summed: exact, on pairs; lattice, over waves; mesh; auto: for each "
        "structure by its size and periodicity",
    )
    tolerance: float = Field(1e-4, ge=1e-12, lt=1e-2, description="stated error of lattice and mesh")


IF_MOMENTS: dict[str, Condition] = {"vector_channels": ("moment_channels above 0", lambda c: c.moment_channels > 0)}


class LayerKeys(MechanismConfig):
    """Keys of the attention layer of DESIGN §3."""

    only_with: ClassVar[dict[str, Condition]] = IF_MOMENTS

    moment_channels: int = Field(
        32,
        ge=0,
        le=65_536,
        description="channels of the moments of an atom's neighbours, by which a layer sees angles; 0: none",
    )
    vector_channels: int = Field(
        0,
        ge=0,
        le=4096,
        description="vectors and as many tensors of second order that every atom carries through the layers beside "
        "its scalars, and one in four of each head the far field to others; a multiple of n_heads; 0: none",
    )


class ContentKeys(LayerKeys, KernelKeys):
    """Keys of the content factor of the far field."""

    only_with: ClassVar[dict[str, Condition]] = {**IF_RANK_M, **IF_MOMENTS}

    far_rank: FarRank = Field(
        0,
        description="content factor of the far field: 0 none, 1 a gate per head on either side, m random features",
    )
    far_dim: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="channels of the values that the far field carries, all heads together; null: a quarter, "
        "with far_rank=m all",
    )


class FourierConfig(ContentKeys, MethodKeys):
    """Local RPE on neighbours plus Fourier RPE over all atoms, exact to a tolerance (DESIGN §3)."""

    only_with: ClassVar[dict[str, Condition]] = {**ContentKeys.only_with, **MethodKeys.only_with}

    mechanism: Literal["fourier"] = Field("fourier", description="local RPE plus Fourier RPE")


class LocalConfig(LayerKeys):
    """The same layer without a far field: attention ends at the cutoff."""

    mechanism: Literal["local"] = Field("local", description="local RPE and moments, no far field")


class KernelisedConfig(KernelKeys):
    """Features of queries and keys without positions: Performer and its relatives."""

    mechanism: Literal["kernelised"] = Field("kernelised", description="kernelised attention without positions")


class SoftmaxConfig(MechanismConfig):
    """Dense softmax with Graphormer's distance bias: the quadratic reference."""

    all_pairs_if_isolated: ClassVar[bool] = True

    mechanism: Literal["softmax"] = Field("softmax", description="dense softmax with a distance bias")
    dense_cutoff: float = Field(
        12.0,
        ge=0.1,
        le=100,
        description="reach of the bias in periodic structures, Å; isolated ones see all pairs",
    )

    def neighbour_cutoff(self, local_cutoff: float) -> float:
        """See :class:`MechanismConfig`."""
        return max(local_cutoff, self.dense_cutoff)


class UndampedKeys(FarFieldKeys):
    """Keys of the FLT paper's estimator of f, which is part of a model, unlike a method."""

    n_frequencies: int = Field(16, ge=2, le=4096, description="r, frequencies of the estimator")
    radii: Radii = Field("stratified", description="lengths of the frequencies")
    proposal: Proposal = Field("mixture", description="mixture is the balance heuristic, own is the paper")


class UndampedConfig(ContentKeys, UndampedKeys):
    """Local RPE plus the paper's own estimator of the Fourier RPE, with undamped waves.

    The estimate of f does not decay. With averaged directions it is quadratic; in cells it is a different function,
    under an envelope.
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
    """Algorithm 1 of the FLT paper: random directions, no local branch, not invariant.

    It is neither rotation- nor translation-invariant.
    """

    mechanism: Literal["concat"] = Field("concat", description="FLT as published, Algorithm 1")
    means: bool = Field(False, description="proposals with learnable means")


class SampleKeys(MechanismConfig):
    """Keys of attention estimated by random features drawn for every query."""

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
