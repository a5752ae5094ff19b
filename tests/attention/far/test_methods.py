"""The interchangeable methods against each other and against a direct sum over images."""

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.attention.far import images
from molflt.attention.far import members as members_module
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.lattice import LatticeMethod
from molflt.attention.far.quadrature import QuadratureMethod
from molflt.errors import InputError
from tests.attention.far.oracles import (
    direct_sum,
    in_another_cell,
    relative_error,
    small_rpe,
    written_in_another_image,
)
from tests.attention.structures import STRUCTURES, geometry_of, rotated

PERIODIC = ["slab", "slab_open", "wire", "triclinic", "tiny_cell"]
both_methods = pytest.mark.parametrize("method", [QuadratureMethod, LatticeMethod])


@pytest.mark.parametrize("name", [*PERIODIC, "molecule", "atom"])
def test_exact_is_the_direct_sum_over_images(name):
    atoms, rpe = STRUCTURES[name](), small_rpe()
    found = ExactMethod().pair_basis(geometry_of([atoms]), rpe())[0].detach().numpy()
    reach = 16 if name == "tiny_cell" else 14
    np.testing.assert_allclose(found, direct_sum(atoms, rpe, reach), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", list(STRUCTURES))
@both_methods
def test_methods_agree_with_exact_to_their_tolerance(method, name, monkeypatch):
    geometry, rpe = geometry_of([STRUCTURES[name]()]), small_rpe()
    exact = ExactMethod().pair_basis(geometry, rpe())
    for tolerance in (1e-4, 1e-8):
        assert relative_error(method(tolerance).pair_basis(geometry, rpe()), exact, rpe) < tolerance
    if name in ("slab", "slab_open", "molecule"):
        # Power: with the spectrum cut too early they do not.
        monkeypatch.setattr(members_module, "cutoff_factor", lambda tolerance: 1.0)
        assert relative_error(method(1e-8).pair_basis(geometry, rpe()), exact, rpe) > 1e-3


@pytest.mark.parametrize("name", [*PERIODIC, "molecule"])
def test_lattice_is_invariant_under_rotation_wrapping_and_change_of_cell(name):
    atoms, rpe, method = STRUCTURES[name](), small_rpe(), LatticeMethod(1e-6)
    expected = method.pair_basis(geometry_of([atoms]), rpe())
    full = all(atoms.pbc)
    # An axis without periodicity has an artificial vector, and then only the tolerance holds.
    bound = 1e-12 if full else 1e-6
    changed = [rotated(atoms, 1), *([written_in_another_image(atoms), in_another_cell(atoms)] if full else [])]
    for other in changed:
        assert relative_error(method.pair_basis(geometry_of([other]), rpe()), expected, rpe) < bound


@both_methods
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
def test_gradients_are_those_of_the_exact_sum(name):
    """Positions and widths: no NaN at coinciding points, and the same derivative by every method."""
    atoms = STRUCTURES[name]()

    def gradients(method) -> list[torch.Tensor]:
        rpe, geometry = small_rpe(), geometry_of([atoms])
        geometry.positions = geometry.positions.detach().requires_grad_()
        basis = method.pair_basis(geometry, rpe())
        weights = torch.linspace(-1, 1, basis.numel(), dtype=torch.float64).view_as(basis)
        return list(torch.autograd.grad((basis * weights).sum(), [geometry.positions, rpe.raw_widths]))

    exact = gradients(ExactMethod())
    assert all(bool(torch.isfinite(g).all()) for g in exact)
    for method in (QuadratureMethod(1e-8), LatticeMethod(1e-8)):
        torch.testing.assert_close(gradients(method), exact, rtol=1e-6, atol=1e-6)


def test_quadrature_converges_exponentially():
    """The logarithm of the error falls at least linearly with the number of nodes, down to 1e-10."""
    rpe, geometry = small_rpe(), geometry_of([STRUCTURES["benzene"]()])
    head = torch.tensor([0.8, -0.5, 0.6, 0.3], dtype=torch.float64)
    exact = ExactMethod().pair_basis(geometry, rpe())[0].detach() @ head
    diameter, distance = 2 * geometry.positions.norm(dim=1).max(), geometry.pair_displacements[0].norm(dim=-1)
    counts, errors, coarse = [], [], []
    for tolerance in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
        method = QuadratureMethod(tolerance)
        xi, weights = method.nodes(rpe(), diameter, tolerance)
        counts.append(len(xi))
        errors.append(float((method.pair_basis(geometry, rpe())[0].detach() @ head - exact).abs().max()))
        every_other = torch.sinc(2 * xi[1::2] * distance[..., None]) @ (2 * weights[1::2] @ head)
        coarse.append(float((every_other - exact).abs().max().detach()))
    assert errors[-1] < 1e-10
    assert counts[-1] < 6 * counts[0]
    assert (np.diff(np.log(errors)) / np.diff(counts) < -0.2).all()
    # Power: nodes that reach as far but are twice as far apart do not converge.
    assert not (np.diff(np.log(coarse)) / np.diff(counts) < -0.2).all()
    assert coarse[-1] > 1e-6


def test_atoms_far_above_a_surface_need_no_more_images(monkeypatch):
    atoms, rpe = STRUCTURES["slab_open"](), small_rpe()
    normal = np.cross(atoms.cell[0], atoms.cell[1])
    near = ExactMethod().pair_basis(geometry_of([atoms]), rpe())[0]
    atoms.append("O")
    atoms.positions[-1] += 3000 * normal / np.linalg.norm(normal)
    counts, shifts = [], images.image_shifts
    monkeypatch.setattr(images, "image_shifts", lambda *a: counts.append(len(found := shifts(*a))) or found)
    far = ExactMethod().pair_basis(geometry_of([atoms]), rpe())[0]
    torch.testing.assert_close(far[:-1, :-1], near, rtol=1e-11, atol=1e-13)
    assert not far[-1, :-1].any()
    assert counts[0] < 10_000


def test_too_many_waves_are_refused_before_they_are_made():
    geometry = geometry_of([Atoms("O2", [[0, 0, 0], [9e4, 9e4, 9e4]])])
    with pytest.raises(InputError, match=r"lattice waves; use frequencies=auto"):
        LatticeMethod(1e-4).pair_basis(geometry, small_rpe()())
