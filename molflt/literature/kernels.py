"""From the name of a kernel to the module."""

from __future__ import annotations

import torch

from molflt.attention.config import KernelKeys
from molflt.attention.kernels.kernel import Kernel
from molflt.attention.kernels.random_features import (
    Draw,
    DrawnMatrix,
    RandomFeatureKernel,
    WeightMatrix,
    orthogonal,
    positive,
)
from molflt.errors import InputError
from molflt.literature.component_functions import optimised_positive, saderf, trigonometric
from molflt.literature.lara import LaraKernel, SoftClusters
from molflt.literature.plain_features import EluKernel, ReluKernel
from molflt.literature.weight_matrices import (
    FastFood,
    iid,
    moment_matching,
    quasi_monte_carlo,
    sparse_grid,
    sphere,
    structured_orthogonal,
)

COMPONENT_FUNCTIONS = {"trigrf": trigonometric, "posrf": positive, "oprf": optimised_positive, "saderf": saderf}
DRAWN_MATRICES: dict[str, Draw] = {
    "iid": iid,
    "orf": orthogonal,
    "sorf": structured_orthogonal,
    "sphere": sphere,
    "qmc": quasi_monte_carlo,
    "mm": moment_matching,
    "sgq": sparse_grid,
}


def kernel_of(config: KernelKeys, width: int, n_heads: int, generator: torch.Generator) -> Kernel:
    """The kernel that a configuration names."""
    return build_kernel(config.kernel, width, n_heads, config.n_features, config.n_landmarks, generator)


def build_kernel(
    name: str, dim: int, n_heads: int, n_features: int, n_landmarks: int, generator: torch.Generator
) -> Kernel:
    """The kernel called ``name``: "elu", "relu", "lara", or a component function and a weight matrix, "posrf-orf".

    Args:
        name: of the kernel.
        dim: c, width of what it is applied to.
        n_heads: heads.
        n_features: m.
        n_landmarks: C, for "lara".
        generator: of everything random.

    Raises:
        InputError: there is no kernel of that name.
    """
    match name:
        case "elu":
            return EluKernel(dim)
        case "relu":
            return ReluKernel(n_features, dim, generator)
        case "lara":
            return LaraKernel(SoftClusters(n_heads, n_landmarks, dim, generator))
    component, _, matrix = name.partition("-")
    if component not in COMPONENT_FUNCTIONS or matrix not in (*DRAWN_MATRICES, "fastfood"):
        raise InputError(f"unknown kernel '{name}'; docs/literature.md lists them")
    weights: WeightMatrix
    if matrix == "fastfood":
        weights = FastFood(n_features, dim, generator)
    else:
        weights = DrawnMatrix(DRAWN_MATRICES[matrix], n_features, dim, generator)
    return RandomFeatureKernel(COMPONENT_FUNCTIONS[component], weights, positive=component != "trigrf")
