"""Configuration of a model, and the errors that its file states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from molflt.attention.registry import AttentionConfig, attention_config
from molflt.vocabulary import Spacing


class ModelConfig(BaseModel):
    """Sizes of the encoder and the attention in it."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    dim: int = Field(128, ge=4, le=65_536, description="width of the hidden states")
    n_heads: int = Field(8, ge=1, le=1024, description="attention heads; must divide dim")
    n_layers: int = Field(4, ge=1, le=1024, description="layers of the stack")
    n_recycles: int = Field(
        1, ge=1, le=100, description="how often the stack is applied, its output fed back (paper: 4)"
    )
    ffn_dim: int = Field(256, ge=4, le=262_144, description="width of the feed-forward block")
    cutoff: float = Field(6.0, ge=0.1, le=100, description="reach of local RPE, centrality and displacement head, Å")
    n_rbf: int = Field(32, ge=2, le=4096, description="Gaussians of the distance basis")
    spacing: Spacing = Field(
        "even",
        description="centres of these Gaussians: even in the distance, or in its exponential, fine where bonds are "
        "and coarse beyond, for forces",
    )
    pair_types: bool = Field(
        False, description="stretch and shift distances by two numbers for every pair of elements, as Graphormer does"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="on the output of attention and feed-forward")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on the values of the attention")
    auxiliary_head: bool = Field(True, description="predict the relaxed displacement as a training signal")
    read_out: Literal["auto", "all", "contact"] = Field(
        "auto",
        description="atoms whose energies are summed: contact, an adsorbate and the surface near it; auto: "
        "contact where y_relaxed is learnt and every training structure is an adsorbate on a surface, else all",
    )
    charges: int = Field(
        0,
        ge=0,
        le=64,
        description="latent charges of every atom, learnt without labels, that act by 1/r beyond neighbours; 0: none",
    )
    partial_charges: bool = Field(
        False,
        description="the first of these is the partial charge of an atom, learnt from labels (loss.charge_weight), "
        "and gives dipoles",
    )
    dispersion: bool = Field(
        False,
        description="with charges: add the attraction -C6/r^6 beyond neighbours, with C6 of Grimme's D2",
    )
    attention: AttentionConfig = Field(
        default_factory=attention_config, description="a mapping, or a preset: flt, local, softmax, ..."
    )

    @model_validator(mode="before")
    @classmethod
    def _former(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("repulsion") is False:
            given = {key: value for key, value in given.items() if key != "repulsion"}
        return given

    @model_validator(mode="after")
    def _divisible(self) -> ModelConfig:
        keys = ("far_dim", "vector_channels", "channels")
        of_attention = {f"attention.{key}": getattr(self.attention, key, None) or 0 for key in keys}
        for key, size in {"dim": self.dim, **of_attention}.items():
            if size % self.n_heads:
                raise ValueError(f"{key} ({size}) must be a multiple of n_heads ({self.n_heads})")
        if (far_dim := of_attention["attention.far_dim"]) > self.dim:
            raise ValueError(
                f"attention.far_dim ({far_dim}) must be a multiple of n_heads and at most dim ({self.dim})"
            )
        for name in ("partial_charges", "dispersion"):
            if getattr(self, name) and not self.charges:
                raise ValueError(f"{name} needs charges of 1 or more")
        return self

    @property
    def takes_ions(self) -> bool:
        """True if the model uses the total charge of a structure."""
        return self.charges > 0

    @property
    def neighbour_cutoff(self) -> float:
        """Cutoff of the neighbour list that structures need, Å."""
        return self.attention.neighbour_cutoff(self.cutoff)

    @property
    def all_pairs_if_isolated(self) -> bool:
        """True if isolated structures need all pairs in their neighbour list, at any distance."""
        return self.attention.all_pairs_if_isolated


LEVELS = (0.5, 0.683, 0.9, 0.95)
"""Probabilities of the available central intervals."""
ONE_SIGMA, WIDE = 0.683, 0.95
"""Probability of the printed interval, as wide as a standard deviation of normal errors, and of the one beside it."""

_Positive = Annotated[FiniteFloat, Field(gt=0)]
_Floor = Annotated[FiniteFloat, Field(ge=0)]
_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class Uncertainty(BaseModel):
    """Half-widths of the intervals that hold the errors of a model or an ensemble's mean.

    They are measured on structures outside the training set. The errors of a model of adsorption energies have
    heavier tails than a normal distribution, so that no multiple of a standard deviation covers what it should at
    every probability. The widths are therefore quantiles (normalised split conformal prediction; Lei et al., Journal
    of the American Statistical Association 113, 1094, 2018): with s the standard deviation over the members of an
    ensemble (0 for one model), the scale of a structure is ``floor`` + s, and a share p of the errors is below
    multiple_p · scale. Structures outside the training domain have a floor and multiples of their own, measured with
    models that were trained without some kinds of structures, and never a narrower interval than inside. How wrong a
    model is there depends on the reason: some rules of the domain have intervals of their own, and of several rules
    that are broken the widest interval counts.
    """

    model_config = ConfigDict(extra="forbid")

    n_members: int = Field(ge=1, description="models whose mean this is about")
    floor: FiniteFloat = Field(ge=0, description="eV, added to the standard deviation over the members")
    multiples: list[_Positive] = Field(description="of floor + standard deviation, for each of LEVELS")
    outside: list[_Positive] = Field([], description="multiples outside the training domain; []: not measured")
    outside_floor: FiniteFloat = Field(0.0, ge=0, description="eV, the floor there")
    by_rule: dict[str, tuple[_Floor, list[_Positive]]] = Field(
        {}, description="floor, eV, and multiples by rule of the domain, in place of these two"
    )
    coverage: list[_Share] = Field(description="found for each of LEVELS, measured on one half, found on the other")
    data: str = Field(description="what it was measured on")
    n_structures: int = Field(ge=1)

    @model_validator(mode="after")
    def _one_for_each_level(self) -> Uncertainty:
        of_rules = [multiples for _, multiples in self.by_rule.values()]
        if {*map(len, (self.multiples, self.coverage, self.outside or LEVELS, *of_rules))} != {len(LEVELS)}:
            raise ValueError(f"multiples, coverage, outside and those by rule: one for each of {LEVELS}")
        return self

    def half_width(
        self, spread: np.ndarray, level: float = ONE_SIGMA, broken: Sequence[Collection[str]] = ()
    ) -> np.ndarray:
        """Half-width of the interval that holds the error with a probability, (n,) eV.

        Args:
            spread: (n,) eV, the standard deviation over the members; zeros for one model.
            level: one of ``LEVELS``.
            broken: n, the rules of the domain that each structure breaks; without any, all are inside.
        """
        k, spread = LEVELS.index(level), np.asarray(spread, np.float64)
        widths: np.ndarray = self.multiples[k] * (self.floor + spread)
        for rule in {rule for rules in broken for rule in rules}:
            floor, multiples = self.by_rule.get(rule, (self.outside_floor, self.outside))
            if multiples:
                beyond = np.maximum(widths, multiples[k] * (floor + spread))
                widths = np.where([rule in rules for rules in broken], beyond, widths)
        return widths

    def __str__(self) -> str:
        one, wide = (self.multiples[LEVELS.index(level)] for level in (ONE_SIGMA, WIDE))
        return (
            f"± is a {ONE_SIGMA:.0%} interval calibrated on {self.data} ({self.n_structures:,} structures); "
            f"×{wide / one:.1f} gives {WIDE:.0%}"
        )
