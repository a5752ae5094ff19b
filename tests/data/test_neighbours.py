"""Neighbour lists against ASE's, and nearest images against a search."""

from itertools import product

import numpy as np
import pytest
import torch
from ase.neighborlist import primitive_neighbor_list
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from molflt.data import neighbours
from molflt.data.images import _are_shortest, nearest_image
from molflt.data.neighbours import _both_ways, attach_neighbours, neighbour_list
from molflt.errors import InputError

ALL_BOUNDARIES = list(product([False, True], repeat=3))


def _ours(positions, cell, pbc, cutoff):
    edge_index, offsets = neighbour_list(positions, cell, pbc, cutoff)
    assert (edge_index.dtype, offsets.dtype) == (torch.int64, torch.int32)
    assert edge_index.shape == (2, len(offsets))
    return [tuple(row) for row in torch.cat([edge_index, offsets.T]).T.tolist()]


def _ase(positions, cell, pbc, cutoff):
    i, j, shifts = primitive_neighbor_list("ijS", pbc, np.asarray(cell), positions, cutoff, self_interaction=False)
    return {(int(a), int(b), *map(int, s)) for a, b, s in zip(i, j, shifts, strict=True)}


def _distances(pairs, positions, cell):
    """|r_i − r_j − cell_offsets @ cell|: the vocabulary's convention, written out."""
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 5)
    return np.linalg.norm(positions[rows[:, 0]] - positions[rows[:, 1]] - rows[:, 2:] @ cell, axis=1)


@given(
    seed=st.integers(0, 1_000_000),
    n_atoms=st.integers(1, 9),
    pbc=st.sampled_from(ALL_BOUNDARIES),
    size=st.floats(1.5, 7.0),
    spread=st.sampled_from([1.0, 8.0, 60.0]),
    cutoff=st.floats(0.7, 6.0),
    search=st.sampled_from(["grid", "tree"]),
)
@settings(max_examples=240, deadline=None)
@example(seed=6206, n_atoms=7, pbc=(True, True, True), size=1.5, spread=1.0, cutoff=1.0, search="grid")
def test_same_pairs_as_ase(seed, n_atoms, pbc, size, spread, cutoff, search):
    generator = np.random.default_rng(seed)
    cell = size * (np.eye(3) + generator.normal(scale=0.4, size=(3, 3)))
    assume(abs(np.linalg.det(cell)) > 0.15 * size**3)
    positions = generator.normal(scale=spread, size=(n_atoms, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "_MOST_CELLS", {"grid": np.inf, "tree": 0.0}[search])
        try:
            pairs = _ours(positions, cell, pbc, cutoff)
        except InputError as error:
            assume("atoms lie as densely" not in str(error))
            raise
    assert len(pairs) == len(set(pairs))
    assert pairs == sorted(pairs)
    assert set(pairs) == _ase(positions, cell, pbc, cutoff)
    assert (_distances(pairs, positions, cell) <= cutoff).all()


@pytest.mark.parametrize("pbc", [(True, True, True), (True, True, False), (False, False, False)])
def test_far_from_the_origin_nothing_changes(pbc):
    generator = np.random.default_rng(5)
    cell = 6 * np.eye(3) + generator.normal(size=(3, 3))
    positions = generator.uniform(0, 6, size=(12, 3))
    near = _ours(positions, cell, pbc, 4.0)
    assert len(near) > 50
    assert _ours(positions + np.array([1e4, -2e4, 3e4]), cell, pbc, 4.0) == near


def test_lattice_vectors_along_open_directions_play_no_part():
    generator = np.random.default_rng(7)
    positions = generator.uniform(0, 6, size=(8, 3))
    cell = 4 * np.eye(3) + generator.normal(size=(3, 3))
    pbc = [True, False, True]
    expected = _ours(positions, cell, pbc, 4.0)
    for other in (np.zeros(3), np.array([0.1, 0.0, 0.0]), cell[0]):
        changed = cell.copy()
        changed[1] = other
        assert _ours(positions, changed, pbc, 4.0) == expected


@pytest.mark.parametrize("reach", [0, 1, 3, 1 << 19], ids=["none", "one", "three", "too far for one number"])
def test_both_ways_by_receiver_sender_and_translation(reach):
    generator = np.random.default_rng(9)
    rows = np.column_stack([generator.integers(0, 90, (3000, 2)), generator.integers(-reach, reach + 1, (3000, 3))])
    expected = set(map(tuple, rows.tolist()))
    expected |= {(j, i, -a, -b, -c) for i, j, a, b, c in expected}
    once = np.array([row for row in expected if row <= (row[1], row[0], -row[2], -row[3], -row[4])])
    once = generator.permutation(once[np.any(once[:, 2:] != 0, axis=1) | (once[:, 0] != once[:, 1])])
    edge_index, offsets = _both_ways(once[:, :2], once[:, 2:], 90)
    found = np.column_stack([edge_index.T, offsets]).tolist()
    assert found == sorted(row for row in map(list, expected) if row[0] != row[1] or any(row[2:]))
    edge_index, offsets = _both_ways(once[:0, :2], once[:0, 2:], 90)
    assert edge_index.shape == (2, 0)
    assert offsets.shape == (0, 3)


@pytest.mark.parametrize("most_cells", [0.0, np.inf])
@pytest.mark.parametrize(
    ("positions", "cell", "pbc", "message"),
    [
        ([[0, 0, 0], [0, 0, 1e-9]], np.zeros((3, 3)), False, "atoms 0 and 1 coincide"),
        ([[0, 0, 0], [1, 1, 1], [3, 0, 1e-9]], 3 * np.eye(3), True, "atoms 0 and 2 coincide"),
        ([[0, 0, 0], [np.nan, 0, 0]], np.zeros((3, 3)), False, "atom 1 "),
        ([[0, 0, 0], [np.inf, 0, 0]], 3 * np.eye(3), True, "atom 1 "),
        ([[0, 0, 0]], np.zeros((3, 3)), True, "zero"),
        ([[0, 0, 0]], np.full((3, 3), np.nan), True, "not finite"),
        ([[0, 0, 0]], np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]]), True, "linearly dependent"),
    ],
)
def test_impossible_geometries_are_named(positions, cell, pbc, message, most_cells, monkeypatch):
    monkeypatch.setattr(neighbours, "_MOST_CELLS", most_cells)
    with pytest.raises(InputError, match=message):
        neighbour_list(np.array(positions, dtype=float), cell, [pbc] * 3, 4.0)


def test_cutoff_must_be_a_positive_length():
    for cutoff in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="cutoff"):
            neighbour_list(np.zeros((1, 3)), np.zeros((3, 3)), [False] * 3, cutoff)


def test_all_pairs_of_an_isolated_structure(make_structure):
    data = make_structure(0, 6)
    data.pbc[:] = False
    data.positions[3] += 1000
    attach_neighbours(data, 1.0, all_pairs_if_isolated=True)
    assert data.edge_index.T.tolist() == [[i, j] for i in range(6) for j in range(6) if i != j]
    assert data.cell_offsets.shape == (30, 3)
    assert not data.cell_offsets.any()
    # a periodic structure keeps to the cutoff
    data.pbc[0, 0] = True
    assert attach_neighbours(data, 1.0, all_pairs_if_isolated=True).edge_index.shape[1] < 30


@pytest.mark.parametrize("all_pairs", [False, True])
def test_attach_names_structure_and_atoms(make_structure, all_pairs):
    data = make_structure(2)
    data.pbc[:] = False
    data.positions[4] = data.positions[1]
    with pytest.raises(InputError, match=r"structure 2 .*atoms 1 and 4 coincide"):
        attach_neighbours(data, 5.0, all_pairs_if_isolated=all_pairs)
    for value in (float("nan"), float("inf")):
        data.positions[3, 1] = value
        with pytest.raises(InputError, match=r"structure 2 .*(an atom has a position that is not finite|atom 3 )"):
            attach_neighbours(data, 5.0, all_pairs_if_isolated=all_pairs)


@given(seed=st.integers(0, 10_000), pbc=st.tuples(st.booleans(), st.booleans(), st.booleans()))
@example(seed=149, pbc=(True, True, True))
@settings(max_examples=80, deadline=None)
def test_relaxed_positions_are_the_nearest_image(seed, pbc):
    generator = np.random.default_rng(seed)
    cell = np.eye(3) * generator.uniform(3, 6) + generator.normal(scale=1.2, size=(3, 3))
    if abs(np.linalg.det(cell)) < 5:
        return
    periodic = np.array(pbc)
    positions = generator.uniform(-10, 10, size=(4, 3))
    shifts = generator.integers(-3, 4, size=(4, 3)) * periodic
    moved = positions + generator.normal(scale=0.8, size=(4, 3)) + shifts @ cell
    found = nearest_image(positions, moved, cell, periodic, "x") - positions
    # oracle: the shortest of many images
    images = np.array(list(product(range(-8, 9), repeat=3)))
    images = images[(images[:, ~periodic] == 0).all(axis=1)] @ cell
    for k in range(4):
        lengths = np.linalg.norm(moved[k] - positions[k] + images, axis=1)
        assert np.linalg.norm(found[k]) == pytest.approx(lengths.min(), abs=1e-9)
        # and it is an image indeed
        offset = np.linalg.solve(cell.T, moved[k] - positions[k] - found[k])
        np.testing.assert_allclose(offset, np.round(offset), atol=1e-8)
        assert (np.abs(offset[~periodic]) < 1e-8).all()


@given(st.integers(0, 1_000_000), st.floats(0.05, 1.0))
@settings(max_examples=300, deadline=None)
def test_displacements_told_to_be_shortest_are(seed, size):
    generator = np.random.default_rng(seed)
    cell = np.eye(3) + generator.normal(scale=0.5, size=(3, 3))
    assume(abs(np.linalg.det(cell)) > 0.05)
    directions = generator.normal(size=(4, 3))
    displacements = size * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    images = np.array(list(product(range(-4, 5), repeat=3))) @ cell
    shortest = np.linalg.norm(displacements[:, None] + images, axis=2).min(axis=1)
    if _are_shortest(displacements, cell):
        assert (np.linalg.norm(displacements, axis=1) <= shortest + 1e-12).all()


def test_small_displacements_are_told_to_be_shortest():
    assert _are_shortest(np.array([[0.4, 0.0, 0.0]]), np.diag([1.0, 2.0, 3.0]))
    assert not _are_shortest(np.array([[0.0, 0.0, 0.0], [0.6, 0.0, 0.0]]), np.diag([1.0, 2.0, 3.0]))
    # a long way for the first lattice vector, but not for the second minus the first
    skewed = np.array([[3.0, 0.0, 0.0], [2.9, 0.5, 0.0], [0.0, 0.0, 9.0]])
    assert not _are_shortest(np.array([[0.0, 0.4, 0.0]]), skewed)


def test_atoms_that_do_not_move_need_a_cell_all_the_same():
    cell = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    with pytest.raises(InputError, match="linearly dependent"):
        nearest_image(np.zeros((2, 3)), np.zeros((2, 3)), cell, np.ones(3, dtype=bool), "x")


@pytest.mark.parametrize("which", range(3))
def test_no_nearest_image_where_there_is_no_number(which):
    for value, pbc in product((float("nan"), float("inf")), (True, False)):
        arrays = [np.zeros((2, 3)), np.ones((2, 3)), 4 * np.eye(3)]
        arrays[which][1, 1] = value
        with pytest.raises(InputError, match="x: positions or cell hold NaN or infinity"):
            nearest_image(*arrays, np.full(3, pbc), "x")
