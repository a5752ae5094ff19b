"""PosRF: positive random features, FAVOR+ (Performer, arXiv 2009.14794, Lemma 1; Spectraformer Eq. 32)."""

from __future__ import annotations

import math

from torch import Tensor

from molflt.attention.kernels.kernel import Features


def positive(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """φ(x) = exp(ω·x − |x|²/2)/√m: E φ(q)·φ(k) = exp(q·k), with variance Eq. 14 of arXiv 2106.12566.

    Args:
        query: (batch, heads, n, c).
        key: as ``query``.
        omega: (m, c).
        mask: not used; part of the interface of component functions.
    """
    return _features(query, omega), _features(key, omega)


def _features(x: Tensor, omega: Tensor) -> Features:
    half_square = 0.5 * (x * x).sum(dim=-1, keepdim=True)
    return Features(x @ omega.transpose(-1, -2) - half_square - 0.5 * math.log(omega.shape[0]))
