"""Scale and shift that turn a network's output into an energy in eV, kept in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from molflt.vocabulary import MAX_ATOMIC_NUMBER

ScaleShiftKind = Literal["structure", "element"]


@dataclass(frozen=True)
class Statistics:
    """Scale, shift and atomic energies (E0) of a model.

    Attributes:
        kind: ``structure``: one mean for every structure; ``element``: an atomic energy (E0) per element.
        mean: eV.
        spread: eV, standard deviation of the energies minus the mean or the atomic energies.
        std: eV, one unit of the network's output. Where forces are known, no less than their root mean
            square times 1 Å, as in NequIP (Batzner et al. 2022, arXiv 2101.03164): the energies of dynamics differ
            little, and with their spread as the unit a network saturates where bonds leave the training set.
        references: atomic energies (E0), eV by atomic number; empty for kind ``structure``.
        displacement_std: Å, root mean square component of the relaxed displacement of atoms free to move.
        given: eV by atomic number: atomic energies that were given in place of fitted ones. ``references`` are these
            plus the mean residual per atom, the same for all elements.
    """

    kind: ScaleShiftKind
    mean: float
    spread: float
    std: float
    references: dict[int, float]
    displacement_std: float
    given: dict[int, float] | None = None


class ScaleShift(nn.Module):
    """energy = mean + Σ_i references[z_i] + std · (network output), in float64.

    As buffers the numbers travel with the weights, so no consumer of a model can forget them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.std = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.references = nn.Buffer(torch.zeros(MAX_ATOMIC_NUMBER + 1, dtype=torch.float64))
        self.displacement_std = nn.Buffer(torch.ones((), dtype=torch.float64))

    def load_statistics(self, statistics: Statistics) -> None:
        """Load the statistics of a training set."""
        self.mean.fill_(statistics.mean)
        self.std.fill_(statistics.std)
        self.displacement_std.fill_(statistics.displacement_std)
        self.references.zero_()
        for z, energy in statistics.references.items():
            self.references[z] = energy

    def _apply(self, fn: Any, recurse: bool = True) -> ScaleShift:
        """Move with the model but keep float64: atomic energies lose essential digits in float32."""
        kept = {name: value for name, value in self._buffers.items() if value is not None}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            moved = self._buffers[name]
            assert moved is not None
            self._buffers[name] = value.to(device=moved.device)
        return self


def fit_statistics(
    kind: ScaleShiftKind,
    energies: Tensor,
    compositions: Tensor,
    squared_displacement: float,
    given: dict[int, float] | None = None,
    force_rms: float = 0.0,
) -> Statistics:
    """Fit the statistics of a training set.

    Args:
        kind: see :class:`Statistics`.
        energies: (n_structures,) eV.
        compositions: (n_structures, 119) atoms of each atomic number.
        squared_displacement: Å², mean square component of the relaxed displacements; 0 when unknown.
        given: eV by atomic number, for kind ``element``: atomic energies (E0) to use; None fits them.
        force_rms: eV/Å, root mean square of the forces' components; 0 when unknown.
    """
    energies = energies.to(torch.float64)
    displacement_std = squared_displacement**0.5 or 1.0
    if kind == "structure":
        mean = float(energies.mean())
        return Statistics(kind, mean, *_scales(energies - mean, force_rms), {}, displacement_std)
    present = torch.nonzero(compositions.sum(dim=0)).squeeze(1)
    counts = compositions[:, present].to(torch.float64)
    if given is not None:
        residual = energies - counts @ torch.tensor([given[int(z)] for z in present], dtype=torch.float64)
        # Least squares for one energy per atom: bonds make every atom's energy lower than the free atom's.
        shift = float((residual @ counts.sum(dim=1)) / counts.sum(dim=1).square().sum())
        references = {int(z): given[int(z)] + shift for z in present}
        left = residual - shift * counts.sum(dim=1)
        return Statistics(kind, 0.0, *_scales(left, force_rms), references, displacement_std, given)
    # Minimum-norm least squares: elements that always occur together share their energy evenly.
    solution = torch.linalg.lstsq(counts, energies[:, None], driver="gelsd").solution.squeeze(1)
    references = {int(z): float(e) for z, e in zip(present, solution, strict=True)}
    return Statistics(kind, 0.0, *_scales(energies - counts @ solution, force_rms), references, displacement_std)


def _scales(residual: Tensor, force_rms: float) -> tuple[float, float]:
    """Spread and std, eV; one where only rounding is left, since a loss is divided by it."""
    spread = float(residual.std(unbiased=False))
    spread = spread if spread > ROUNDING else 1.0
    return spread, max(spread, force_rms * _LENGTH)


def mean_absolute_deviation(energies: np.ndarray) -> float:
    """Mean absolute deviation of (n,) energies in eV; zero where only rounding is left."""
    mad = float(np.abs(energies - np.mean(energies)).mean())
    return mad if mad > ROUNDING else 0.0


_LENGTH = 1.0
"""Å, about the distance over which forces extrapolate energies."""

ROUNDING = 1e-6
"""eV: largest residual of energies that follow from the composition alone."""
