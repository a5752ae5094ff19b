"""From configuration to modules: the shared part and the layers of the chosen mechanism."""

from __future__ import annotations

import torch

from molflt.attention.concat import ConcatAttention, ConcatPositions
from molflt.attention.config import AttentionConfig, FrequenciesKind
from molflt.attention.fourier import FourierAttention, FourierPositions
from molflt.attention.frequencies.automatic import AutomaticMethod
from molflt.attention.frequencies.budget import BudgetQuadratureMethod
from molflt.attention.frequencies.contraction import LayerSizes
from molflt.attention.frequencies.exact import ExactMethod
from molflt.attention.frequencies.lattice import LatticeMethod
from molflt.attention.frequencies.mesh import MeshMethod
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.frequencies.quadrature import QuadratureMethod
from molflt.attention.frequencies.sampled import SampledMethod
from molflt.attention.layer import AttentionLayer, SharedPositions
from molflt.attention.performer import PerformerAttention
from molflt.attention.rpe import GaussianRPE
from molflt.attention.softmax import SoftmaxAttention, SoftmaxPositions


def build_attention(
    config: AttentionConfig,
    dim: int,
    n_heads: int,
    n_layers: int,
    n_recycles: int,
    n_rbf: int,
    dropout: float,
    seed: int,
) -> tuple[SharedPositions, list[AttentionLayer]]:
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
    """
    generator = torch.Generator().manual_seed(seed)
    shared: SharedPositions
    layers: list[AttentionLayer]
    if config.mechanism == "performer":
        shared = SharedPositions()
        layers = [PerformerAttention(dim, n_heads, config.n_features, dropout, generator) for _ in range(n_layers)]
    elif config.mechanism == "softmax":
        shared = SoftmaxPositions(n_rbf, config.dense_cutoff)
        layers = [SoftmaxAttention(dim, n_heads, n_rbf, dropout) for _ in range(n_layers)]
    elif config.combine == "concat":
        rpe = GaussianRPE(config.n_basis, config.sigma_min, config.sigma_max)
        shared = ConcatPositions(rpe, _sampled(config, rpe, seed))
        layers = [
            ConcatAttention(dim, n_heads, config.n_basis, config.n_frequencies, config.n_features, dropout, generator)
            for _ in range(n_layers)
        ]
    else:
        sizes = LayerSizes(
            n_applications=n_layers * n_recycles,
            n_heads=n_heads,
            dim=dim,
            far_dim=config.far_dim or dim,
            rank=config.n_features if config.far_rank == "m" else 1,
        )
        fourier = _fourier_positions(config, sizes, seed)
        shared = fourier
        layers = [
            FourierAttention(
                dim,
                n_heads,
                n_rbf,
                fourier.n_weights,
                config.far_rank,
                config.far_dim,
                config.n_features,
                dropout,
                generator,
            )
            for _ in range(n_layers)
        ]
    return shared, layers


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


def _fourier_positions(config: AttentionConfig, sizes: LayerSizes, seed: int) -> FourierPositions:
    if not config.far_field:
        return FourierPositions(None, None, sizes, config.order)
    rpe = GaussianRPE(config.n_basis, config.sigma_min, config.sigma_max)
    if config.frequencies == "sampled":
        method: FrequencyMethod = _sampled(config, rpe, seed)
    elif config.frequencies == "quadrature" and config.l_max is not None:
        method = BudgetQuadratureMethod(config.tolerance, config.n_frequencies, config.l_max, rpe.sigma_low)
    else:
        method = interchangeable_method(config.frequencies, config.tolerance)
    return FourierPositions(rpe, method, sizes, config.order)


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
