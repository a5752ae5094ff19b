"""The ways of summing the far field against each other and against a direct sum over images."""

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.attention.far import images as images_module
from molflt.attention.far.images import Structure, half_lattice
from molflt.attention.far.ways import FarPlan
from molflt.errors import InputError
from tests.attention.far.oracles import (
    basis_on_pairs,
    direct_sum,
    geometry_for,
    in_another_cell,
    pair_basis,
    relative_error,
    small_rpe,
    written_in_another_image,
)
from tests.attention.layers import water
from tests.attention.structures import STRUCTURES, rotated

PERIODIC = ["slab", "slab_open", "wire", "triclinic", "tiny_cell"]


@pytest.mark.parametrize("name", [*PERIODIC, "molecule", "atom"])
def test_exact_is_the_direct_sum_over_images(name):
    atoms, rpe = STRUCTURES[name](), small_rpe()
    found = pair_basis(atoms, rpe, "exact").detach().numpy()
    reach = 16 if name == "tiny_cell" else 14
    np.testing.assert_allclose(found, direct_sum(atoms, rpe, reach), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", list(STRUCTURES))
def test_waves_agree_with_pairs_to_their_tolerance(name):
    atoms, rpe = STRUCTURES[name](), small_rpe()
    exact = pair_basis(atoms, rpe, "exact")
    for tolerance in (1e-4, 1e-8):
        assert relative_error(pair_basis(atoms, rpe, "lattice", tolerance), exact, rpe) < tolerance


@pytest.mark.parametrize("name", [*PERIODIC, "molecule"])
def test_lattice_is_invariant_under_rotation_wrapping_and_change_of_cell(name):
    atoms, rpe = STRUCTURES[name](), small_rpe()
    expected = pair_basis(atoms, rpe, "lattice", 1e-6)
    full = all(atoms.pbc)
    # An axis without periodicity has an artificial vector, and then only the tolerance holds.
    bound = 1e-12 if full else 1e-6
    changed = [rotated(atoms, 1), *([written_in_another_image(atoms), in_another_cell(atoms)] if full else [])]
    for other in changed:
        assert relative_error(pair_basis(other, rpe, "lattice", 1e-6), expected, rpe) < bound


def test_no_step_where_the_number_of_waves_jumps():
    """Stretching a structure makes waves enter the sum; f must not notice (DESIGN §3, smoothness)."""
    rpe, atoms = small_rpe(), STRUCTURES["triclinic"]()

    def value_and_count(stretch):
        moved = atoms.copy()
        moved.set_cell(np.asarray(atoms.cell) * stretch, scale_atoms=True)
        geometry = geometry_for([moved], rpe, "lattice", 1e-6)
        (group,) = geometry.layout.far.groups
        return basis_on_pairs(geometry, rpe, "lattice", 1e-6), group.integers.shape[1]

    low, high = 1.0, 1.5
    assert value_and_count(low)[1] != value_and_count(high)[1]
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if value_and_count(middle)[1] == value_and_count(low)[1] else (low, middle)
    below, above = value_and_count(low), value_and_count(high)
    assert below[1] != above[1]
    assert float((below[0] - above[0]).abs().max()) < 1e-12


def test_atoms_far_above_a_surface_need_no_more_images():
    atoms, rpe = STRUCTURES["slab_open"](), small_rpe()
    normal = np.cross(atoms.cell[0], atoms.cell[1])
    near = pair_basis(atoms, rpe, "exact")
    atoms.append("O")
    atoms.positions[-1] += 3000 * normal / np.linalg.norm(normal)
    far = pair_basis(atoms, rpe, "exact")
    torch.testing.assert_close(far[:-1, :-1], near, rtol=1e-11, atol=1e-13)
    assert not far[-1, :-1].any()


def test_pieces_have_indices_that_every_scipy_reads(monkeypatch):
    """SciPy 1.11 finds no piece where the indices have 64 bits, and the far field were nothing."""
    dtypes = []
    found = images_module.connected_components
    monkeypatch.setattr(
        images_module,
        "connected_components",
        lambda graph, **options: dtypes.extend((graph.row.dtype, graph.col.dtype)) or found(graph, **options),
    )
    positions = np.array([[0.0, 0, 0], [100, 0, 0], [1, 0, 0], [11, 0, 0]])
    pieces = images_module.far_apart(Structure(positions, np.zeros((3, 3)), np.zeros(3, dtype=bool)), 10.0)
    assert [piece.tolist() for piece in pieces] == [[0, 2, 3], [1]]
    assert dtypes == [np.int32, np.int32]


def test_too_many_waves_are_refused_before_they_are_made():
    with pytest.raises(InputError, match=r"lattice waves; use frequencies=auto"):
        geometry_for([Atoms("O2", [[0, 0, 0], [9e4, 9e4, 9e4]])], small_rpe(), "lattice")
    assert len(half_lattice(np.eye(3) * 5, 0.21)) == 1 + 3


def groups_of(atoms, **keys):
    numbers = {"longest": 0.4, "reach": 100.0, "padding": 60.0, "spacing": 0.7, "members": ((1.5, 0.4, 60.0),)}
    plan = FarPlan(**{"way": None, **numbers, **keys})
    return plan.groups([Structure(a.positions, np.asarray(a.cell), a.pbc) for a in atoms])


def test_the_rule_by_size_and_axes():
    """Small: pairs in the open and along an axis, waves in a crystal, pairs where images are few; large: a mesh."""
    in_a_box = STRUCTURES["molecule"]()
    in_a_box.set_cell([45.0] * 3)
    in_a_box.pbc = True
    crystal = STRUCTURES["triclinic"]()
    large, large_cell = water(700), water(400)
    large_cell.set_cell([30, 30, 60])
    large_cell.pbc = True
    expected = [
        (STRUCTURES["molecule"](), "pairs"), (STRUCTURES["wire"](), "pairs"), (STRUCTURES["slab"](), "waves"),
        (STRUCTURES["slab_open"](), "waves"), (crystal, "waves"), (in_a_box, "pairs"), (crystal * (4, 4, 4), "waves"),
        (large, "mesh"), (large_cell, "mesh"),
    ]  # fmt: skip
    for atoms, way in expected:
        (group,) = groups_of([atoms])
        assert group.way == way
    together = groups_of([atoms for atoms, _ in expected])
    assert {b: group.way for group in together for b in group.structures} == dict(enumerate(w for _, w in expected))
    assert [g.way for g in groups_of([large, large_cell], dense=True)] == ["pairs", "waves"]
    assert {g.way for g in groups_of([atoms for atoms, _ in expected], way="waves")} == {"waves"}
