"""The four interchangeable methods against each other and against a direct sum over images."""

import itertools
import math

import numpy as np
import pytest
import torch

from molflt.attention.far import lattice as lattice_module
from molflt.attention.far import quadrature as quadrature_module
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.lattice import LatticeMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.far.quadrature import QuadratureMethod
from tests.attention.structures import STRUCTURES, geometry_of, rotated

PERIODIC = ["slab", "slab_open", "wire", "triclinic", "tiny_cell"]


def small_rpe() -> GaussianRPE:
    return GaussianRPE(4, 1.5, 4.0).double()


def direct_sum(atoms, rpe: GaussianRPE, reach: int) -> np.ndarray:
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


def relative_error(found: torch.Tensor, expected: torch.Tensor, rpe: GaussianRPE) -> float:
    """Largest error of a basis function, relative to its amplitude."""
    return float(((found - expected).abs() / rpe().amplitudes).max())


@pytest.mark.parametrize("name", [*PERIODIC, "molecule", "atom"])
def test_exact_is_the_direct_sum_over_images(name):
    atoms, rpe = STRUCTURES[name](), small_rpe()
    found = ExactMethod().pair_basis(geometry_of([atoms]), rpe())[0].detach().numpy()
    reach = 16 if name == "tiny_cell" else 14
    np.testing.assert_allclose(found, direct_sum(atoms, rpe, reach), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
@pytest.mark.parametrize("name", list(STRUCTURES))
@pytest.mark.parametrize("method", [QuadratureMethod, LatticeMethod])
def test_methods_agree_with_exact_to_their_tolerance(method, name, tolerance):
    geometry, rpe = geometry_of([STRUCTURES[name]()]), small_rpe()
    exact = ExactMethod().pair_basis(geometry, rpe())
    assert relative_error(method(tolerance).pair_basis(geometry, rpe()), exact, rpe) < tolerance


@pytest.mark.parametrize("name", ["slab", "slab_open", "molecule"])
@pytest.mark.parametrize("method", [QuadratureMethod, LatticeMethod])
def test_the_agreement_fails_when_the_spectrum_is_cut_too_early(method, name, monkeypatch):
    geometry, rpe = geometry_of([STRUCTURES[name]()]), small_rpe()
    for module in (lattice_module, quadrature_module):
        monkeypatch.setattr(module, "cutoff_factor", lambda tolerance: 1.5)
    exact = ExactMethod().pair_basis(geometry, rpe())
    assert relative_error(method(1e-8).pair_basis(geometry, rpe()), exact, rpe) > 1e-3


@pytest.mark.parametrize("name", [*PERIODIC, "molecule"])
def test_lattice_is_invariant_under_rotation_wrapping_and_change_of_cell(name):
    atoms, rpe, method = STRUCTURES[name](), small_rpe(), LatticeMethod(1e-6)
    expected = method.pair_basis(geometry_of([atoms]), rpe())
    full = all(atoms.pbc)
    # an axis without periodicity has an artificial vector, and then only the tolerance holds
    bound = 1e-12 if full else 1e-6
    assert relative_error(method.pair_basis(geometry_of([rotated(atoms, 1)]), rpe()), expected, rpe) < bound
    wrapped = atoms.copy()
    shifts = np.random.default_rng(0).integers(-3, 4, size=(len(atoms), 3)) * np.array(atoms.pbc)
    wrapped.positions += shifts @ np.asarray(atoms.cell)
    if full:
        assert relative_error(method.pair_basis(geometry_of([wrapped]), rpe()), expected, rpe) < 1e-12
        other = atoms.copy()
        unimodular = np.array([[1, 1, 0], [0, 1, 2], [1, 1, 1]])
        assert round(np.linalg.det(unimodular)) == 1
        other.set_cell(unimodular @ np.asarray(atoms.cell), scale_atoms=False)
        assert relative_error(method.pair_basis(geometry_of([other]), rpe()), expected, rpe) < 1e-12


@pytest.mark.parametrize("method", [QuadratureMethod, LatticeMethod])
def test_no_step_where_the_number_of_nodes_jumps(method):
    """Stretching a structure makes nodes enter the sum; f must not notice (DESIGN §3, smoothness)."""
    rpe = small_rpe()
    atoms = STRUCTURES["molecule" if method is QuadratureMethod else "triclinic"]()

    def value_and_count(stretch: float) -> tuple[torch.Tensor, int]:
        moved = atoms.copy()
        moved.set_cell(np.asarray(atoms.cell) * stretch, scale_atoms=False)
        moved.positions = atoms.positions * stretch
        geometry = geometry_of([moved])
        m = method(1e-6)
        if method is QuadratureMethod:
            diameter = 2 * geometry.positions.norm(dim=-1).max()
            count = len(m.nodes(rpe(), diameter, 1e-6)[0])
        else:
            count = m.reciprocal_integers(geometry.cell, rpe())[0].shape[1]
        return m.pair_basis(geometry, rpe()), count

    low, high = 1.0, 1.5
    assert value_and_count(low)[1] != value_and_count(high)[1]
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if value_and_count(middle)[1] == value_and_count(low)[1] else (low, middle)
    below, above = value_and_count(low), value_and_count(high)
    assert below[1] != above[1]
    assert float((below[0] - above[0]).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["molecule", "slab", "slab_open", "tiny_cell", "atom", "linear"])
@pytest.mark.parametrize("method", [ExactMethod(), QuadratureMethod(1e-8), LatticeMethod(1e-8)])
def test_gradients_are_those_of_the_exact_sum(method, name):
    """Positions and widths: no NaN at coinciding points, and the same derivative by every method."""
    atoms = STRUCTURES[name]()

    def gradients(m) -> list[torch.Tensor]:
        rpe, geometry = small_rpe(), geometry_of([atoms])
        geometry.positions = geometry.positions.detach().requires_grad_()
        basis = m.pair_basis(geometry, rpe())
        weights = torch.linspace(-1, 1, basis.numel(), dtype=torch.float64).view_as(basis)
        return list(torch.autograd.grad((basis * weights).sum(), [geometry.positions, rpe.raw_widths]))

    for found, expected in zip(gradients(method), gradients(ExactMethod()), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
