"""MM: moment matching (Shen et al. 2017; Liu et al. 2022; Spectraformer appendix A.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from molflt.attention.weight_matrices.quasi_monte_carlo import quasi_monte_carlo
from molflt.errors import InputError


def moment_matching(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): quasi-Monte Carlo rows moved and stretched to mean zero and covariance one exactly.

    Rows ω̃ = Ã⁻¹(ω − μ̃) with ÃÃᵀ the covariance of the rows. Biased, but by less than one draw is off.

    Raises:
        InputError: as many rows as columns or fewer, whose covariance has no inverse.
    """
    if n_features <= dim:
        raise InputError(
            f"moment matching needs more random features ({n_features}) than the width of a head ({dim}); "
            f"set n_features to {2 * dim} or more, or take more heads"
        )
    rows = quasi_monte_carlo(n_features, dim, generator)
    centred = rows - rows.mean(dim=0)
    factor = torch.linalg.cholesky(centred.transpose(0, 1) @ centred / n_features)
    return torch.linalg.solve_triangular(factor, centred.transpose(0, 1), upper=False).transpose(0, 1)
