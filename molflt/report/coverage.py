"""How often errors stay within multiples of the predicted standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erf

_MULTIPLES = np.linspace(0, 3, 61)


@dataclass(frozen=True)
class Coverage:
    """Attributes: multiples k of the standard deviation (n,), shares of |error| ≤ k·std found and expected (n,)."""

    multiples: np.ndarray
    found: np.ndarray
    expected: np.ndarray


def coverage(error: np.ndarray, std: np.ndarray) -> Coverage:
    """Shares of errors (n,) eV within k·std (n,) eV, and what a normal distribution has there, erf(k/√2)."""
    within = np.abs(error)[:, None] <= _MULTIPLES * std[:, None]
    return Coverage(_MULTIPLES, within.mean(axis=0), erf(_MULTIPLES / np.sqrt(2)))
