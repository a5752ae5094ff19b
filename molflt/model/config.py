"""Configuration of the model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from molflt.attention.config import ContentKeys, LayerKeys
from molflt.attention.registry import AttentionConfig, attention_config


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
    attention: AttentionConfig = Field(
        default_factory=attention_config, description="a mapping, or a preset: flt, local, softmax, ..."
    )

    @model_validator(mode="after")
    def _divisible(self) -> ModelConfig:
        if self.dim % self.n_heads:
            raise ValueError(f"dim ({self.dim}) must be a multiple of n_heads ({self.n_heads})")
        far_dim = self.attention.far_dim if isinstance(self.attention, ContentKeys) else None
        if far_dim is not None and (far_dim % self.n_heads or far_dim > self.dim):
            raise ValueError(
                f"attention.far_dim ({far_dim}) must be a multiple of n_heads ({self.n_heads}) and at most dim "
                f"({self.dim})"
            )
        vectors = self.attention.vector_channels if isinstance(self.attention, LayerKeys) else 0
        if vectors % self.n_heads:
            raise ValueError(f"attention.vector_channels ({vectors}) must be a multiple of n_heads ({self.n_heads})")
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
