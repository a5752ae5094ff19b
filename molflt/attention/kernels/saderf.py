"""SADERF: asymmetric dense-exponential features, FAVOR# (Likhosherstov et al. 2023; Spectraformer Eq. 36)."""

from __future__ import annotations

import torch
from torch import Tensor

from molflt.attention.kernels.kernel import Features, masked_mean
from molflt.attention.kernels.optimised_positive import optimised_positive


def saderf(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """Optimised positive features of Ψq and Ψ⁻¹k, Ψ_ll = (Σ_j k_jl² / Σ_i q_il²)^{1/4}: E φ(q)·φ(k) = exp(q·k).

    The diagonal Ψ leaves q·k as it is and makes queries and keys equally long along every axis, which is where the
    mean of |Ψq|² + |Ψ⁻¹k|² is least.

    Args:
        query: (batch, heads, n, c).
        key: as ``query``.
        omega: (m, c).
        mask: (batch, 1, n, 1) bool, which tokens exist.
    """
    # Zero queries and keys on an axis: any Ψ will do, and one has a gradient.
    tiny = torch.finfo(query.dtype).eps
    psi = ((masked_mean(key * key, mask) + tiny) / (masked_mean(query * query, mask) + tiny)) ** 0.25
    return optimised_positive(query * psi, key / psi, omega, mask)
