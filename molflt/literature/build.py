"""From configuration to modules for the mechanisms of the literature."""

from __future__ import annotations

from molflt.attention.build import (
    Built,
    Sizes,
    build_kernel,
    build_rpe,
    with_far_field,
)
from molflt.attention.context import FourierPositions
from molflt.attention.far.field import ExactMethod
from molflt.attention.mechanism import SharedPositions
from molflt.literature.concat import ConcatAttention, ConcatPositions
from molflt.literature.names import (
    ConcatConfig,
    RandomisedConfig,
    RandomisedRpeConfig,
    UndampedConfig,
)
from molflt.literature.randomised import MaskedRandomisedAttention, RandomisedAttention
from molflt.literature.undamped import UndampedMethod


def build_undamped(config: UndampedConfig, sizes: Sizes) -> Built:
    """The attention of DESIGN §3, its far field the paper's estimator."""
    rpe = build_rpe(config)
    method = UndampedMethod(
        rpe,
        n_frequencies=config.n_frequencies,
        directions=config.directions,
        radii=config.radii,
        proposal=config.proposal,
        spectrum=config.spectrum,
        periodic_radius=config.periodic_radius,
        seed=sizes.seed,
        means=config.means,
    )
    return with_far_field(config, sizes, rpe, method)


def build_concat(config: ConcatConfig, sizes: Sizes) -> Built:
    """FLT as published, Algorithm 1."""
    rpe, generator = build_rpe(config), sizes.generator()
    method = UndampedMethod(
        rpe,
        n_frequencies=config.n_frequencies,
        directions="random",
        radii=config.radii,
        proposal=config.proposal,
        spectrum="gaussian",
        periodic_radius=1.0,
        seed=sizes.seed,
        means=config.means,
    )
    width = sizes.head_dim + 2 * config.n_frequencies
    feature_maps = [build_kernel(config, width, sizes.n_heads, generator) for _ in range(sizes.n_layers)]
    return ConcatPositions(rpe, method), [
        ConcatAttention(sizes.dim, sizes.n_heads, config.n_basis, kernel, sizes.dropout) for kernel in feature_maps
    ]


def build_randomised(config: RandomisedConfig, sizes: Sizes) -> Built:
    """RA without positions."""
    return SharedPositions(), [
        RandomisedAttention(sizes.dim, sizes.n_heads, config.n_samples, config.sampling, sizes.dropout)
        for _ in range(sizes.n_layers)
    ]


def build_randomised_rpe(config: RandomisedRpeConfig, sizes: Sizes) -> Built:
    """RA with the local RPE and f̂ as its positional mask, on pairs."""
    rpe = build_rpe(config, config.spectrum, sizes.seed)
    method = ExactMethod(config.frequencies, config.tolerance)
    positions = FourierPositions(rpe, method, moments=False, dense=True)
    return positions, [
        MaskedRandomisedAttention(
            sizes.dim,
            sizes.n_heads,
            sizes.n_rbf,
            positions.n_weights,
            config.n_samples,
            config.sampling,
            sizes.dropout,
        )
        for _ in range(sizes.n_layers)
    ]
