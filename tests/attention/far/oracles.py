"""RPE functions of few members for the tests of the far field, and errors relative to their amplitudes."""

import itertools
import math

import numpy as np
import torch

from molflt.attention.far.field import ExactMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.layout import Plan
from tests.attention.structures import geometry_of


def small_rpe():
    """Two Gaussians and two damped waves."""
    return GaussianRPE(4, 1.5, 4.0, spectrum="both").double()


def geometry_for(atoms, rpe, frequencies, tolerance=1e-4, dtype=torch.float64):
    """Structures laid out for one way of summing the far field."""
    with torch.no_grad():
        plan = ExactMethod(frequencies, tolerance).plan(rpe(), dense=False)
    return geometry_of(atoms, dtype=dtype, plan=Plan(6.0, far=plan))


def basis_on_pairs(geometry, rpe, frequencies, tolerance=1e-4):
    """(n, n, n_basis): every member of f between all atoms of one structure, in one way."""
    method, basis = ExactMethod(frequencies, tolerance), rpe()
    (field,) = method.fields(geometry, basis)
    each = torch.eye(len(basis), dtype=geometry.dtype)
    return field.matrix(each)[:, 0].movedim(0, -1)


def pair_basis(atoms, rpe, frequencies, tolerance=1e-4):
    """The same, of the structure as it is."""
    return basis_on_pairs(geometry_for([atoms], rpe, frequencies, tolerance), rpe, frequencies, tolerance)


def relative_error(found, expected, rpe):
    """Largest error of a member, relative to its amplitude."""
    return float(((found - expected).abs() / rpe().amplitudes).detach().max())


def direct_sum(atoms, rpe, reach):
    """Σ_n over a box of images, by the definition, in numpy."""
    widths = rpe.widths.detach().numpy()
    kappa = 2.5 * rpe.epsilon.numpy() / widths
    with np.errstate(divide="ignore"):
        others = 0.05 * np.minimum((2 * math.pi * widths**2) ** 1.5, 8 * widths**2 / kappa)
    ranges = [range(-reach, reach + 1) if p else (0,) for p in atoms.pbc]
    out = np.zeros((len(atoms), len(atoms), len(widths)))
    for n in itertools.product(*ranges):
        delta = atoms.positions[:, None] - atoms.positions[None] + np.array(n) @ np.asarray(atoms.cell)
        distance = np.linalg.norm(delta, axis=-1)[..., None]
        out += np.sinc(kappa * distance / np.pi) * np.exp(-(distance**2) / (2 * widths**2)) / (1 + others)
    return out


def written_in_another_image(atoms, seed=0):
    """Every atom moved by lattice vectors along the periodic axes."""
    moved = atoms.copy()
    shifts = np.random.default_rng(seed).integers(-3, 4, size=(len(atoms), 3)) * np.array(atoms.pbc)
    moved.positions += shifts @ np.asarray(atoms.cell)
    return moved


def in_another_cell(atoms):
    """The same crystal by other lattice vectors."""
    other, unimodular = atoms.copy(), np.array([[1, 1, 0], [0, 1, 2], [1, 1, 1]])
    assert round(np.linalg.det(unimodular)) == 1
    other.set_cell(unimodular @ np.asarray(atoms.cell), scale_atoms=False)
    return other
