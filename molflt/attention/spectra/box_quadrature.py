"""The local RPE by a Fourier series instead of random frequencies: the only way for the indicator."""

from __future__ import annotations

import torch
from torch import Tensor

from molflt.attention.spectra.local_box import LocalBox
from molflt.errors import InputError


def fourier_series(spectrum: LocalBox, reach: float, xi_max: float) -> tuple[Tensor, Tensor]:
    """Nodes and coefficients with Σ_k a_k cos(2πξ_k·Δ) → f(Δ) for |Δ_j| ≤ ``reach`` as ξ_max grows.

    The trapezoid rule on every axis with spacing 1/P, P = reach + 2kv. By Poisson's formula it gives f summed over
    shifts by P, and f has compact support, so that the spacing costs nothing: the whole error is that of ending at
    ξ_max. At a distance d from the knots of f on an axis it falls like 1/(ξ_max^k d). For k = 1 a knot is a jump, and
    near it the error does not fall but moves closer: Gibbs' overshoot of 9 % of the jump.

    Args:
        spectrum: of any powers.
        reach: Å, the largest |Δ_j| wanted.
        xi_max: 1/Å, where the series ends on each axis.

    Returns:
        ξ (K, ℓ) 1/Å and a (K,); K is about ½ Π_j 2ξ_max P_j. Only one of ξ and −ξ is among the nodes.
        a is differentiable in the radii; the nodes are constants.

    Raises:
        InputError: ``reach`` or ``xi_max`` is not positive.
    """
    if not (reach > 0 and xi_max > 0):
        raise InputError(f"reach and xi_max must be positive, got {reach} and {xi_max}")
    radii = spectrum.radii.detach()
    # One kv for the support of the neighbouring image, another to keep the ringing at its edge out of reach.
    spacing = 1 / (reach + 2 * radii * radii.new_tensor(spectrum.powers))
    counts = torch.floor(xi_max / spacing).long().tolist()
    axes = [torch.arange(-n, n + 1, device=radii.device) for n in counts]
    integers = torch.cartesian_prod(*axes).reshape(-1, spectrum.dim)
    # g is even: the half space after the origin in lexicographic order counts twice.
    kept = integers[integers.shape[0] // 2 :]
    twice = torch.full((kept.shape[0],), 2.0, dtype=radii.dtype, device=radii.device)
    twice[0] = 1.0
    xi = kept.to(radii.dtype) * spacing
    return xi, twice * spacing.prod() * spectrum.transform(xi)
