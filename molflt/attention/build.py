"""From configuration to modules: the shared part and the layers of the chosen mechanism."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from molflt.attention.baselines.performer import KernelisedAttention
from molflt.attention.baselines.softmax import SoftmaxAttention, SoftmaxPositions
from molflt.attention.config import AttentionConfig, FrequenciesKind, OrderKind
from molflt.attention.context import FourierPositions
from molflt.attention.far.choice import AutomaticMethod, LayerSizes
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.lattice import LatticeMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.far.mesh import MeshMethod
from molflt.attention.far.method import FrequencyMethod
from molflt.attention.far.quadrature import QuadratureMethod
from molflt.attention.far.sampled import SampledMethod
from molflt.attention.kernels.kernel import Kernel
from molflt.attention.layer import FourierAttention
from molflt.attention.mechanism import AttentionLayer, SharedPositions
from molflt.attention.moments import LocalMoments
from molflt.literature.budget import BudgetQuadratureMethod
from molflt.literature.concat import ConcatAttention, ConcatPositions
from molflt.literature.kernels import build_kernel
from molflt.literature.randomised import MaskedRandomisedAttention, RandomisedAttention


def build_attention(
    config: AttentionConfig,
    dim: int,
    n_heads: int,
    n_layers: int,
    n_recycles: int,
    n_rbf: int,
    dropout: float,
    seed: int,
    pair_types: bool = False,
) -> tuple[SharedPositions, Sequence[AttentionLayer]]:
    """Build the mechanism named by ``config``.

    Args:
        config: which mechanism and its parameters.
        dim: width of the model.
        n_heads: heads; must divide ``dim``.
        n_layers: number of layers.
        n_recycles: passes through them.
        n_rbf: size of the radial bases.
        dropout: on attention values.
        seed: of frequencies and random features, which are part of the model.
        pair_types: whether the radial bases know pairs of elements.
    """
    generator = torch.Generator().manual_seed(seed)

    def kernel(width: int) -> Kernel:
        return build_kernel(config.kernel, width, n_heads, config.n_features, config.n_landmarks, generator)

    head_dim = dim // n_heads
    if config.mechanism == "kernelised":
        return SharedPositions(), [
            KernelisedAttention(dim, n_heads, kernel(head_dim), dropout) for _ in range(n_layers)
        ]
    if config.mechanism == "softmax":
        return SoftmaxPositions(n_rbf, config.dense_cutoff, pair_types), [
            SoftmaxAttention(dim, n_heads, n_rbf, dropout) for _ in range(n_layers)
        ]
    if config.mechanism == "randomised" and not config.positional_mask:
        return SharedPositions(), [
            RandomisedAttention(dim, n_heads, config.n_samples, config.sampling, dropout) for _ in range(n_layers)
        ]
    if config.combine == "concat":
        rpe = GaussianRPE(config.n_basis, config.sigma_min, config.sigma_max, config.isolated_atoms)
        width = head_dim + 2 * config.n_frequencies
        return ConcatPositions(rpe, _sampled(config, rpe, seed)), [
            ConcatAttention(dim, n_heads, config.n_basis, kernel(width), dropout) for _ in range(n_layers)
        ]
    kernels = [kernel(head_dim) if config.far_rank == "m" else None for _ in range(n_layers)]
    share = 1 if config.far_rank == "m" else FAR_SHARE
    far_dim = config.far_dim or n_heads * math.ceil(head_dim / share)
    sizes = LayerSizes(
        n_applications=n_layers * n_recycles,
        n_heads=n_heads,
        dim=dim,
        far_dim=far_dim,
        rank=1 if kernels[0] is None else kernels[0].n_features,
    )
    order = "quadratic" if config.mechanism == "randomised" else config.order
    positions = _fourier_positions(config, order, sizes, seed)
    n_weights = positions.n_weights
    if config.mechanism == "randomised":
        return positions, [
            MaskedRandomisedAttention(dim, n_heads, n_rbf, n_weights, config.n_samples, config.sampling, dropout)
            for _ in range(n_layers)
        ]

    def moments() -> LocalMoments | None:
        channels = config.n_moment_channels
        return LocalMoments(dim, n_rbf, channels) if channels else None

    return positions, [
        FourierAttention(dim, n_heads, n_rbf, n_weights, config.far_rank, own_kernel, far_dim, moments(), dropout)
        for own_kernel in kernels
    ]


def interchangeable_method(kind: FrequenciesKind, tolerance: float) -> FrequencyMethod:
    """One of the methods that compute f itself.

    Raises:
        ValueError: ``kind`` is an estimator.
    """
    match kind:
        case "auto":
            return AutomaticMethod(tolerance)
        case "exact":
            return ExactMethod()
        case "quadrature":
            return QuadratureMethod(tolerance)
        case "lattice":
            return LatticeMethod(tolerance)
        case "mesh":
            return MeshMethod(tolerance)
    raise ValueError(f"'{kind}' is an estimator that is part of a model; it cannot replace another method")


def _fourier_positions(config: AttentionConfig, order: OrderKind, sizes: LayerSizes, seed: int) -> FourierPositions:
    moments = config.n_moment_channels > 0
    if not config.far_field:
        return FourierPositions(None, None, sizes, order, moments)
    rpe = GaussianRPE(config.n_basis, config.sigma_min, config.sigma_max, config.isolated_atoms)
    if config.frequencies == "sampled":
        method: FrequencyMethod = _sampled(config, rpe, seed)
    elif config.frequencies == "quadrature" and config.l_max is not None:
        method = BudgetQuadratureMethod(config.tolerance, config.n_frequencies, config.l_max, rpe.sigma_low)
    else:
        method = interchangeable_method(config.frequencies, config.tolerance)
    return FourierPositions(rpe, method, sizes, order, moments)


def _sampled(config: AttentionConfig, rpe: GaussianRPE, seed: int) -> SampledMethod:
    return SampledMethod(
        rpe,
        n_frequencies=config.n_frequencies,
        directions="random" if config.combine == "concat" else config.directions,
        radii=config.radii,
        proposal=config.proposal,
        spectrum=config.spectrum,
        periodic_radius=config.periodic_radius,
        seed=seed,
        means=config.means,
        l_max=config.l_max,
    )


FAR_SHARE = 4
"""The far field carries one in so many channels unless told otherwise; with random features, as in the paper, all."""
