"""What the tests of the far field share: RPE functions of few Gaussians, and errors relative to their amplitudes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from ase import Atoms

from molflt.attention.far.members import GaussianRPE


def small_rpe() -> GaussianRPE:
    return GaussianRPE(4, 1.5, 4.0).double()


def relative_error(found: torch.Tensor, expected: torch.Tensor, rpe: GaussianRPE) -> float:
    """Largest error of a basis function, relative to its amplitude."""
    return float(((found - expected).abs() / rpe().amplitudes).detach().max())


def direct_sum(atoms: Atoms, rpe: GaussianRPE, reach: int) -> np.ndarray:
    """Σ_n over a box of images, by the definition, in numpy."""
    widths = rpe.widths.detach().numpy()
    amplitudes = 1 / (1 + 0.05 * (2 * math.pi * widths**2) ** 1.5)
    ranges = [range(-reach, reach + 1) if p else (0,) for p in atoms.pbc]
    out = np.zeros((len(atoms), len(atoms), len(widths)))
    for n in itertools.product(*ranges):
        delta = atoms.positions[:, None] - atoms.positions[None] + np.array(n) @ np.asarray(atoms.cell)
        squared = (delta**2).sum(-1)[..., None]
        out += amplitudes * np.exp(-squared / (2 * widths**2))
    return out


def written_in_another_image(atoms: Atoms, seed: int = 0) -> Atoms:
    """Every atom moved by lattice vectors along the periodic axes."""
    moved = atoms.copy()
    shifts = np.random.default_rng(seed).integers(-3, 4, size=(len(atoms), 3)) * np.array(atoms.pbc)
    moved.positions += shifts @ np.asarray(atoms.cell)
    return moved


def in_another_cell(atoms: Atoms) -> Atoms:
    """The same crystal by other lattice vectors."""
    other, unimodular = atoms.copy(), np.array([[1, 1, 0], [0, 1, 2], [1, 1, 1]])
    assert round(np.linalg.det(unimodular)) == 1
    other.set_cell(unimodular @ np.asarray(atoms.cell), scale_atoms=False)
    return other
