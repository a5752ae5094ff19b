"""From the name of a kernel to the module."""

from __future__ import annotations

import torch

from molflt.attention.config import unknown_kernel
from molflt.attention.kernels.elu import EluKernel
from molflt.attention.kernels.kernel import Kernel
from molflt.attention.kernels.landmarks import SoftClusters
from molflt.attention.kernels.lara import LaraKernel
from molflt.attention.kernels.optimised_positive import optimised_positive
from molflt.attention.kernels.positive import positive
from molflt.attention.kernels.random_features import RandomFeatureKernel
from molflt.attention.kernels.relu import ReluKernel
from molflt.attention.kernels.saderf import saderf
from molflt.attention.kernels.trigonometric import trigonometric
from molflt.attention.weight_matrices.fastfood import FastFood
from molflt.attention.weight_matrices.iid import iid
from molflt.attention.weight_matrices.moment_matching import moment_matching
from molflt.attention.weight_matrices.orthogonal import orthogonal
from molflt.attention.weight_matrices.quasi_monte_carlo import quasi_monte_carlo
from molflt.attention.weight_matrices.sparse_grid import sparse_grid
from molflt.attention.weight_matrices.sphere import sphere
from molflt.attention.weight_matrices.structured_orthogonal import structured_orthogonal
from molflt.attention.weight_matrices.weight_matrix import Draw, DrawnMatrix, WeightMatrix
from molflt.errors import InputError

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
        raise InputError(unknown_kernel(name))
    weights: WeightMatrix
    if matrix == "fastfood":
        weights = FastFood(n_features, dim, generator)
    else:
        weights = DrawnMatrix(DRAWN_MATRICES[matrix], n_features, dim, generator)
    return RandomFeatureKernel(COMPONENT_FUNCTIONS[component], weights)


def redraw(module: torch.nn.Module, generator: torch.Generator) -> None:
    """New random features in every kernel of a model, where they are drawn and not learned."""
    for part in module.modules():
        if isinstance(part, RandomFeatureKernel):
            part.redraw(generator)
