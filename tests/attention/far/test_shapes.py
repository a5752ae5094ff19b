"""The mesh on structures of every shape: its error against the closed form, what it costs, how it turns and moves."""

import math

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.attention.far.field import ExactMethod
from molflt.attention.far.members import GaussianRPE
from tests.attention.far.oracles import geometry_for
from tests.attention.structures import rotated

TOLERANCE, DENSITY = 1e-4, 0.1
DIAGONAL = np.ones(3) / math.sqrt(3)


def cloud(n, seed=0):
    """n points at random in a ball, 0.1 to the Å³."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=(n, 3))
    direction /= np.linalg.norm(direction, axis=1)[:, None]
    return direction * (3 * n * rng.uniform(size=(n, 1)) / (4 * math.pi * DENSITY)) ** (1 / 3)


def chain():
    """600 atoms over 800 Å, along (111)."""
    return np.linspace(0, 800, 600)[:, None] * DIAGONAL + np.random.default_rng(0).normal(size=(600, 3))


def disk():
    """2,000 atoms in a layer 4 Å thick, in no plane of the axes."""
    flat = np.random.default_rng(0).uniform(-1, 1, size=(2000, 3)) * [36, 36, 2]
    return flat @ np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]


SLOW = ("chain", "an atom far from a ball", "large ball")
SHAPES = {
    "ball": lambda: cloud(300),
    "chain": chain,
    "two clusters": lambda: np.concatenate([cloud(150), cloud(150, 1) + 500 * DIAGONAL]),
    "three clusters": lambda: np.concatenate([cloud(99, k) + 300 * np.eye(3)[k] for k in range(3)]),
    "an atom far from a ball": lambda: np.concatenate([cloud(1000), 400 * DIAGONAL[None]]),
    "disk": disk,
    "large ball": lambda: cloud(20_000),
}


def members():
    """As models have them: eight Gaussians and eight waves, from 2 to 12 Å."""
    return GaussianRPE(16, 2.0, 12.0, spectrum="both").double()


def on_mesh(positions, rpe, tolerance):
    with torch.no_grad():
        geometry = geometry_for([Atoms(f"O{len(positions)}", positions)], rpe, "mesh", tolerance)
        (field,) = ExactMethod("mesh", tolerance).fields(geometry, rpe())
    return field


def meshes_and_error(positions, n_senders=4):
    """The meshes, and the largest error on the pairs of all atoms with some, relative to each member's amplitude."""
    field, basis = on_mesh(positions, members(), TOLERANCE), members()()
    with torch.no_grad():
        senders = torch.linspace(0, len(positions) - 1, n_senders).round().long()
        unit = torch.zeros(len(positions), len(senders), dtype=torch.float64)
        unit[senders, torch.arange(len(senders))] = 1.0
        each = torch.eye(len(basis), dtype=torch.float64)
        found = field(each, unit[None, :, None].expand(-1, -1, len(basis), -1))[0].transpose(1, 2)
        squared = torch.from_numpy(((positions[:, None] - positions[senders][None]) ** 2).sum(-1))
        error = (found - basis.on_pairs(squared).movedim(0, -1)).abs() / basis.amplitudes
    return field.operators, float(error.max())


@pytest.mark.parametrize("shape", [pytest.param(s, marks=[pytest.mark.slow] if s in SLOW else []) for s in SHAPES])
def test_every_shape_to_the_tolerance_and_on_a_grid_of_bounded_size(shape):
    positions = SHAPES[shape]()
    meshes, error = meshes_and_error(positions)
    assert error < TOLERANCE
    points = sum(math.prod(mesh.n_planes) for mesh in meshes)
    waves = sum(math.prod(map(len, band.matrices)) for mesh in meshes for band in mesh.bands)
    assert points < 300 * len(positions)
    assert waves < 4_000_000


@pytest.mark.parametrize("shape", ["ball", "chain", "disk"])
def test_turning_moving_and_mirroring_an_open_structure_change_rounding_only(shape):
    atoms = Atoms(f"O{len(SHAPES[shape]())}", SHAPES[shape]())
    values = torch.randn(len(atoms), 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.linspace(-1, 1, 16, dtype=torch.float64)[:, None]

    def applied(changed):
        with torch.no_grad():
            return on_mesh(changed.positions, members(), 1e-3)(weights, values[None])[0]

    mirrored, moved = atoms.copy(), atoms.copy()
    mirrored.positions[:, 0] *= -1
    moved.positions += [3.3, -20.0, 7.7]
    expected = applied(atoms)
    for changed in (rotated(atoms, 1), mirrored, moved):
        assert float((applied(changed) - expected).abs().max()) < 1e-9 * float(expected.abs().max())


@pytest.mark.parametrize("what", ["planes", "waves"])
def test_no_step_where_planes_or_waves_are_added(what):
    """Stretching an open structure adds planes to its grid and waves to its bands, and the field does not jump."""
    rpe, positions = GaussianRPE(4, 1.5, 4.0, spectrum="both").double(), cloud(30)
    values = torch.ones(len(positions), 1, 1, dtype=torch.float64)
    weights = torch.tensor([[1.0], [-1.0], [0.5], [1.0]], dtype=torch.float64)

    def field_and_size(stretch):
        with torch.no_grad():
            field = on_mesh(positions * stretch, rpe, 1e-3)
            (operator,) = field.operators
            waves = tuple(len(matrix) for band in operator.bands for matrix in band.matrices)
            return field(weights, values[None])[0], operator.n_planes if what == "planes" else waves

    for low, high in ((1.0, 1.1), (1.1, 1.25)):
        size = field_and_size(low)[1]
        assert field_and_size(high)[1] != size
        for _ in range(48):
            middle = (low + high) / 2
            low, high = (middle, high) if field_and_size(middle)[1] == size else (low, middle)
        assert float((field_and_size(low)[0] - field_and_size(high)[0]).abs().max()) < 1e-10
