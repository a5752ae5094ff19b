"""Construction of a mechanism's shared part and layers from its configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from molflt.attention.config import (
    ContentKeys,
    FarFieldKeys,
    FarRank,
    FourierConfig,
    KernelKeys,
    LayerKeys,
    LocalConfig,
    MechanismConfig,
    SpectrumName,
)
from molflt.attention.far.field import ExactMethod, FarMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.layer import FourierAttention
from molflt.attention.mechanism import AttentionLayer, FourierPositions, SharedPositions
from molflt.attention.moments import LocalMoments
from molflt.attention.registry import MECHANISMS, imported

if TYPE_CHECKING:
    from molflt.attention.kernels import Kernel


@dataclass(frozen=True)
class Sizes:
    """Sizes and settings of the model that a mechanism is built for.

    Attributes:
        dim: width of the model.
        n_heads: heads; divides ``dim``.
        n_layers: number of layers.
        n_rbf: size of the radial bases.
        n_recycles: passes through the layers.
        dropout: on attention values.
        seed: of frequencies and random features, which are part of the model.
        pair_types: whether the radial bases depend on pairs of elements.
    """

    dim: int
    n_heads: int
    n_layers: int
    n_rbf: int
    n_recycles: int = 1
    dropout: float = 0.0
    seed: int = 0
    pair_types: bool = False

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.n_heads

    def generator(self) -> torch.Generator:
        """Return a generator for the random parts of the model, the same at every call."""
        return torch.Generator().manual_seed(self.seed)


Built = tuple[SharedPositions, Sequence[AttentionLayer[Any, Any]]]
"""Shared part and layers of a mechanism."""


def build_attention(config: MechanismConfig, sizes: Sizes) -> Built:
    """Build the mechanism that ``config`` names."""
    built: Built = imported(MECHANISMS[config.mechanism].build)(config, sizes)
    return built


def build_kernel(
    name: str, dim: int, n_heads: int, n_features: int, n_landmarks: int, generator: torch.Generator
) -> Kernel:
    """Build the kernel called ``name``.

    Names are "elu", "relu", "lara", or a component function and a weight matrix, as in "posrf-orf". ``dim`` is c, the
    width of queries and keys; "elu" and "lara" need no m, ``n_features``, and "lara" alone needs C, ``n_landmarks``.

    Raises:
        InputError: there is no kernel of that name.
    """
    from molflt.attention.kernels import lara, random_features, spectraformer

    match name:
        case "elu":
            return random_features.EluKernel(dim)
        case "relu":
            return random_features.ReluKernel(n_features, dim, generator)
        case "lara":
            return lara.LaraKernel(lara.SoftClusters(n_heads, n_landmarks, dim, generator))
    return spectraformer.spectraformer_kernel(name, dim, n_features, generator)


def build_kernels(config: KernelKeys, width: int, sizes: Sizes) -> list[Kernel]:
    """Build the feature map of queries and keys of the given width for every layer."""
    generator = sizes.generator()
    keys = width, sizes.n_heads, config.n_features, config.n_landmarks, generator
    return [build_kernel(config.kernel, *keys) for _ in range(sizes.n_layers)]


def build_local(config: LocalConfig, sizes: Sizes) -> Built:
    """Build the attention of DESIGN §3 without its far field."""
    positions = FourierPositions(None, None, config.moment_channels > 0)
    return positions, [_layer(config, sizes, 0, 0, None, sizes.dim) for _ in range(sizes.n_layers)]


def build_fourier(config: FourierConfig, sizes: Sizes) -> Built:
    """Build the attention of DESIGN §3, its far field exact to a tolerance."""
    rpe = build_rpe(config, config.spectrum, sizes.seed)
    return with_far_field(config, sizes, rpe, ExactMethod(config.frequencies, config.tolerance))


def with_far_field(config: ContentKeys, sizes: Sizes, rpe: GaussianRPE, method: FarMethod) -> Built:
    """Build the attention of DESIGN §3 with f̂ by a given method.

    Args:
        config: keys of the layers and the content factor.
        sizes: of the model.
        rpe: f.
        method: that evaluates f.
    """
    feature_maps: Sequence[Kernel | None] = [None] * sizes.n_layers
    if config.far_rank == "m":
        feature_maps = build_kernels(config, sizes.head_dim, sizes)
    share = 1 if config.far_rank == "m" else FAR_SHARE
    far_dim = config.far_dim or sizes.n_heads * math.ceil(sizes.head_dim / share)
    positions = FourierPositions(rpe, method, config.moment_channels > 0)
    return positions, [
        _layer(config, sizes, positions.n_weights, config.far_rank, kernel, far_dim) for kernel in feature_maps
    ]


def _layer(
    config: LayerKeys, sizes: Sizes, n_weights: int, far_rank: FarRank, kernel: Kernel | None, far_dim: int
) -> FourierAttention:
    moments = LocalMoments(sizes.dim, sizes.n_rbf, config.moment_channels) if config.moment_channels else None
    stream = None
    if config.vector_channels:
        from molflt.attention.vectors import VectorStream

        far = far_vectors(config, sizes)
        stream = VectorStream(sizes.dim, sizes.n_heads, config.moment_channels, config.vector_channels, far)
    return FourierAttention(
        sizes.dim, sizes.n_heads, sizes.n_rbf, n_weights, far_rank, kernel, far_dim, moments, stream, sizes.dropout
    )


def far_vectors(config: LayerKeys, sizes: Sizes) -> int:
    """Number of vectors and tensors of every head that the far field carries."""
    return math.ceil(config.vector_channels / sizes.n_heads / FAR_SHARE)


def build_rpe(config: FarFieldKeys, spectrum: SpectrumName = "gaussians", seed: int = 0) -> GaussianRPE:
    """Build the RPE function f."""
    return GaussianRPE(config.n_basis, config.sigma_min, config.widest, config.isolated_atoms, spectrum, seed)


FAR_SHARE = 4
"""Default number of channels for each that the far field carries; with random features, as in the paper, one."""
