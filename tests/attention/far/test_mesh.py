"""The particle mesh against the exact sum over images."""

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.attention.far import mesh_operator
from molflt.attention.far.field import ExactMethod
from molflt.attention.far.images import Structure, padded_cell
from molflt.attention.far.members import GaussianRPE
from tests.attention.far.oracles import basis_on_pairs, geometry_for, pair_basis, relative_error, small_rpe
from tests.attention.structures import STRUCTURES

NAMES = ["slab", "slab_open", "wire", "triclinic", "tiny_cell", "molecule", "atom"]


def box(n):
    """n atoms at random in a skewed periodic cell, at the density of condensed matter."""
    cell = np.array([[1.0, 0.1, 0.0], [0.3, 0.9, -0.1], [-0.2, 0.2, 1.1]])
    cell *= (n / 0.08 / np.linalg.det(cell)) ** (1 / 3)
    return Atoms(f"O{n}", scaled_positions=np.random.default_rng(0).uniform(size=(n, 3)), cell=cell, pbc=True)


@pytest.mark.parametrize("name", [*NAMES, "box"])
def test_agrees_with_the_exact_sum_to_its_tolerance(name):
    rpe, atoms = small_rpe(), box(60) if name == "box" else STRUCTURES[name]()
    exact = pair_basis(atoms, rpe, "exact")
    for tolerance in (1e-3, 1e-4):
        assert relative_error(pair_basis(atoms, rpe, "mesh", tolerance), exact, rpe) < tolerance


def octave_lengths(on_grid, padding, name):
    atoms = STRUCTURES[name]()
    structure = Structure(atoms.positions, atoms.cell.array, atoms.pbc)
    box = padded_cell(structure, on_grid.grid.directions, padding)
    return np.linalg.norm(box, axis=1)


@pytest.mark.parametrize("tolerance", [9e-3, 1e-4, 1e-8])
def test_no_wave_is_an_alias_of_another(tolerance):
    for name in NAMES:
        (group,) = geometry_for([STRUCTURES[name]()], small_rpe(), "mesh", tolerance).layout.far.groups
        (grid,) = group.pieces
        for octave, padding in zip(grid.octaves, grid.paddings, strict=True):
            lengths = octave_lengths(grid, float(padding), name)
            for k, turn, length in zip(octave.n_waves, grid.turns, lengths, strict=True):
                # Of wide members in a small cell nothing is left but the mean.
                assert k >= (octave is grid.octaves[0])
                assert k * (float(turn) or grid.grid.spacing / length) < 0.5


def test_channels_at_a_time_change_nothing(monkeypatch):
    rpe = small_rpe()
    geometry = geometry_for([STRUCTURES["slab"]()], rpe, "mesh", 1e-3)
    values = torch.randn(1, 13, 3, 5, dtype=torch.float64)
    weights = torch.randn(4, 3, dtype=torch.float64)
    (field,) = ExactMethod("mesh", 1e-3).fields(geometry, rpe())
    together = field(weights, values)
    monkeypatch.setattr(mesh_operator, "_MESH_VALUES_AT_ONCE", 1)
    monkeypatch.setattr(mesh_operator, "_CHANNELS_AT_LEAST", 2)
    torch.testing.assert_close(field(weights, values), together, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["slab", "molecule", "atom", "tiny_cell"])
def test_gradients(name):
    atoms = STRUCTURES[name]()
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    values, probe = torch.randn(2, len(atoms), 2, 3, generator=generator, dtype=torch.float64)

    def gradients(frequencies):
        rpe = small_rpe()
        geometry = geometry_for([atoms], rpe, frequencies, 1e-5)
        geometry.positions = geometry.positions.detach().requires_grad_()
        leaves = [weights.clone().requires_grad_(), values.clone().requires_grad_()]
        out = torch.einsum("ijt,th,jhc->ihc", basis_on_pairs(geometry, rpe, frequencies, 1e-5), *leaves)
        return list(torch.autograd.grad((out * probe).sum(), [*leaves, geometry.positions, rpe.raw_widths]))

    found = gradients("mesh")
    for one, other in zip(found, gradients("exact"), strict=True):
        assert bool(torch.isfinite(one).all())
        assert float((one - other).abs().max()) < 1e-3 * max(0.1, float(other.abs().max()))


def test_half_of_the_digits_in_single_precision():
    rpe = GaussianRPE(4, 1.5, 4.0)
    found, exact = (
        basis_on_pairs(geometry_for([STRUCTURES["slab"]()], rpe, way, dtype=torch.float32), rpe, way)
        for way in ("mesh", "exact")
    )
    assert found.dtype == torch.float32
    assert relative_error(found, exact, rpe) < 1e-4
