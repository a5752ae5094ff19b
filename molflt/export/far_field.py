"""The far field of one structure in the operations that TorchScript has.

The closed form on all pairs where nothing repeats, O(N²), and else the sum over the reciprocal lattice, O(N·K),
whatever method the model was trained with: all compute the same f to its tolerance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from molflt.attention.far.members import TAPER, cutoff_factor
from molflt.attention.mechanism import FourierPositions
from molflt.attention.smooth import GAUSSIAN_END


class FarField(nn.Module):
    """The basis of f on all pairs, or its lattice sum as features of positions."""

    def __init__(self, positions: FourierPositions, tolerance: float) -> None:
        super().__init__()
        assert positions.rpe is not None
        basis = positions.rpe()
        widths = basis.widths.detach().double()
        kappa = torch.zeros_like(widths) if basis.kappa is None else basis.kappa.detach().double()
        self.widths = nn.Buffer(widths)
        self.kappa = nn.Buffer(kappa)
        self.amplitudes = nn.Buffer(basis.amplitudes.detach().double())
        self.cutoffs = nn.Buffer(basis.cutoffs(tolerance).detach())
        self.taper, self.end = TAPER, GAUSSIAN_END
        self.padding = cutoff_factor(tolerance / 10) * float(widths.max())

    def pairs(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """(n_basis, n, n): n_t sinc(κ_t r) exp(−r²/2ρ_t²) of every pair."""
        delta = (positions[:, None, :] - positions[None, :, :]).to(dtype)
        squared = (delta * delta).sum(dim=-1)
        widths, turns = self.widths.to(dtype)[:, None, None], (self.kappa**2).to(dtype)[:, None, None]
        damped = torch.exp(-(squared / (2 * widths**2)).clamp(max=self.end))
        return self.amplitudes.to(dtype)[:, None, None] * damped * self.sinc(turns * squared)

    def sinc(self, squared: Tensor) -> Tensor:
        """sin(z)/z of z², near zero by its series.

        As a quotient its derivative would lose all digits there.
        """
        small = squared < 2.0
        x = torch.where(small, squared, torch.zeros_like(squared))
        series = torch.ones_like(x)
        for k in range(9, 0, -1):
            series = 1 - x / float(2 * k * (2 * k + 1)) * series
        z = torch.where(small, torch.ones_like(squared), squared).sqrt()
        return torch.where(small, series, torch.sin(z) / z)

    def waves(self, positions: Tensor, cell: Tensor, pbc: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(n, 2K) plane waves at the atoms, and their weights (2K, n_basis) in the basis of f."""
        box = self.padded_cell(positions, cell, pbc)
        longest = self.taper * float(self.cutoffs.max())
        reach = torch.floor(longest * box.detach().square().sum(dim=1).sqrt() + 1e-9).to(torch.int64)
        a, b, c = int(reach[0]), int(reach[1]), int(reach[2])
        axes = [torch.arange(-m, m + 1, device=positions.device) for m in [a, b, c]]
        n = torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).reshape(-1, 3)
        # One of each pair ±n, and zero.
        first, second, third = n[:, 0], n[:, 1], n[:, 2]
        half = (first > 0) | ((first == 0) & ((second > 0) | ((second == 0) & (third >= 0))))
        n = n[half].to(positions.dtype)
        inverse = torch.linalg.inv(box)
        n = n[(n @ inverse.detach().t()).square().sum(dim=1).sqrt() <= longest]
        zero = (n == 0).all(dim=1)
        xi = n @ inverse.t()
        # A norm has no derivative at the zero vector.
        length = torch.where(
            zero, 0.0, torch.where(zero[:, None], torch.ones_like(xi), xi).square().sum(dim=1).sqrt()
        )
        turns = positions @ xi.t()
        phase = (2 * math.pi * (turns - turns.detach().round())).to(dtype)
        share = torch.where(zero, 1.0, 2.0) / torch.linalg.det(box).abs()
        t = ((length[:, None] - self.cutoffs) / (self.taper * self.cutoffs - self.cutoffs)).clamp(0.0, 1.0)
        taper = 1 - t**3 * (10 - 15 * t + 6 * t * t)
        weights = (share[:, None] * taper * self.spectra(length)).to(dtype)
        return torch.cat([phase.cos(), phase.sin()], dim=1), torch.cat([weights, weights])

    def spectra(self, length: Tensor) -> Tensor:
        """(K, n_basis) Å³: the transforms of the basis, see GaussianBasis.spectra."""
        variance = self.widths**2
        volume = self.amplitudes * (2 * math.pi * variance) ** 1.5
        k = 2 * math.pi * length[:, None]
        decay = 2 * variance * k * self.kappa
        small = decay < 1e-4
        safe = torch.where(small, torch.ones_like(decay), decay)
        mean = torch.where(small, 1 - decay / 2 + decay * decay / 6, -torch.expm1(-safe) / safe)
        return volume * torch.exp(-0.5 * variance * (k - self.kappa) ** 2) * mean

    def padded_cell(self, positions: Tensor, cell: Tensor, pbc: Tensor) -> Tensor:
        """(3, 3) Å: the cell with orthogonal artificial vectors where it is not periodic.

        They are so long that their images do not matter.
        """
        periodic = cell[pbc]
        if periodic.shape[0] == 3:
            return cell
        if periodic.shape[0] == 2:
            normal = torch.linalg.cross(periodic[0], periodic[1])
            across = [normal / normal.norm()]
        else:
            axis = periodic[0] / periodic[0].norm()
            helper = torch.zeros_like(axis)
            helper[int(axis.detach().abs().argmin())] = 1.0
            other = torch.linalg.cross(axis, helper)
            other = other / other.norm()
            across = [other, torch.linalg.cross(axis, other)]
        rows = [periodic]
        for direction in across:
            height = positions @ direction
            # Log-sum-exp bounds the extent smoothly from above.
            extent = (torch.logsumexp(4.0 * height, dim=0) + torch.logsumexp(-4.0 * height, dim=0)) / 4.0
            rows.append(((extent + self.padding) * direction)[None])
        return torch.cat(rows)
