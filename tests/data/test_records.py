"""OC20-layout records to structures and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from molflt import vocabulary
from molflt.data.labels import LabelSpec
from molflt.data.records import _are_shortest, nearest_image, to_data, to_record
from molflt.errors import InputError


def test_fields_follow_the_vocabulary(make_record: Any) -> None:
    record = make_record(3)
    data = to_data(record, "file#3")
    tensors = {name: data[name] for name in vocabulary.FIELDS if name in data}
    vocabulary.check(tensors, "x")
    assert set(tensors) == set(vocabulary.FIELDS) - {"energy", "forces", "edge_index", "cell_offsets"}
    assert data.num_nodes == 5
    assert data.name == "file#3"
    np.testing.assert_array_equal(data.positions.numpy(), record["pos"])
    assert data.pbc.tolist() == [[True, True, True]]
    assert float(data.y_relaxed) == record["y_relaxed"]


def test_the_structure_shares_no_memory_with_the_record(make_record: Any) -> None:
    record = make_record()
    data = to_data(record, "x")
    before = data.positions.clone()
    record["pos"] += 1
    assert torch.equal(data.positions, before)


def test_floats_for_integers_and_flat_cells(make_record: Any) -> None:
    record = make_record()
    as_floats = {
        **record,
        "tags": record["tags"].astype(np.float32),
        "atomic_numbers": record["atomic_numbers"].astype(np.float32),
        "fixed": record["fixed"].astype(np.float32),
        "cell": record["cell"][0],
        "natoms": np.array([5]),
        "sid": np.array([0.0]),
    }
    a, b = to_data(record, "x"), to_data(as_floats, "x")
    assert set(a.keys()) == set(b.keys())
    for name in vocabulary.FIELDS:
        if name in a:
            assert torch.equal(a[name], b[name]), name
            assert a[name].dtype == b[name].dtype


def test_optional_fields_have_defaults(make_record: Any) -> None:
    record = {key: make_record()[key] for key in ("pos", "atomic_numbers")}
    data = to_data(record, "x")
    assert data.tags.tolist() == [0] * 5
    assert not data.fixed.any()
    assert not data.pbc.any()
    assert not data.cell.any()
    assert "positions_relaxed" not in data
    assert "y_relaxed" not in data


def test_stored_edges_are_ignored_and_texts_kept(make_record: Any) -> None:
    extra = {"edge_index": np.zeros((2, 3), dtype=int), "name": "Cu111/CO", "adsorbate": "CO", "metals": "Cu"}
    data = to_data({**make_record(), **extra}, "x")
    assert "edge_index" not in data
    assert (data.name, data.adsorbate, data.metals) == ("Cu111/CO", "CO", "Cu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pos": None}, "'pos' is missing"),
        ({"pos": np.zeros((0, 3))}, "no atoms"),
        ({"pos": np.zeros((5, 2))}, "'pos' has shape"),
        ({"pos": np.full((5, 3), np.nan)}, "NaN"),
        ({"pos": np.array(["a"] * 15).reshape(5, 3)}, "expected numbers"),
        ({"natoms": 6}, "'natoms' says 6"),
        ({"atomic_numbers": None}, "'atomic_numbers' is missing"),
        ({"atomic_numbers": np.array([1, 2, 3, 4, 0])}, "between 1 and 118"),
        ({"atomic_numbers": np.array([1, 2, 3, 4, 5.5])}, "whole numbers"),
        ({"atomic_numbers": np.array([1, 2, 3, 4])}, r"expected \(5,\)"),
        ({"tags": np.array([0, 1, 2, 3, 0])}, "between 0 and 2"),
        ({"tags": np.array([0, 1, 2, 0.5, 0])}, "whole numbers"),
        ({"tags": np.array([0, 1, 2, np.nan, 0])}, "whole numbers"),
        ({"fixed": np.array([0, 1, 2, 0, 0])}, "from 0 to 1"),
        ({"cell": np.zeros((2, 3, 3))}, "'cell' has shape"),
        ({"cell": np.zeros((3, 3)), "pbc": [True] * 3}, "periodic along a lattice vector that is zero"),
        ({"cell": np.ones((3, 3))}, "linearly dependent"),
        ({"pos_relaxed": np.zeros((4, 3))}, "'pos_relaxed' has shape"),
        ({"pos_relaxed": np.full((5, 3), np.inf)}, "NaN or infinity"),
        ({"y_relaxed": float("nan")}, "y_relaxed"),
        ({"y_relaxed": "low"}, "expected numbers"),
        ({"y_init": np.zeros(2)}, "one number"),
        ({"sid": 1.5}, "whole numbers"),
    ],
)
def test_bad_fields_are_named(make_record: Any, change: dict[str, Any], message: str) -> None:
    record = {key: value for key, value in {**make_record(), **change}.items() if value is not None}
    with pytest.raises(InputError, match=message) as refusal:
        to_data(record, "train.lmdb#12")
    assert str(refusal.value).startswith("train.lmdb#12")


def test_a_zero_lattice_vector_is_not_periodic_by_default(make_record: Any) -> None:
    cell = np.diag([6.0, 7.0, 0.0])
    assert to_data({**make_record(), "cell": cell}, "x").pbc.tolist() == [[True, True, False]]


@given(seed=st.integers(0, 10_000), pbc=st.tuples(st.booleans(), st.booleans(), st.booleans()))
@settings(max_examples=80, deadline=None)
def test_relaxed_positions_are_the_nearest_image(seed: int, pbc: tuple[bool, bool, bool]) -> None:
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


def test_round_trip_is_exact(make_record: Any) -> None:
    data = to_data({**make_record(1), "energy": -3.25, "name": "n", "adsorbate": "H"}, "x")
    back = to_data(to_record(data), "y")
    assert set(back.keys()) == set(data.keys())
    for name in vocabulary.FIELDS:
        if name in data:
            if name == "positions_relaxed":
                torch.testing.assert_close(back[name], data[name], rtol=0, atol=1e-13)
            else:
                assert torch.equal(back[name], data[name]), name
    assert (back.name, back.adsorbate) == ("n", "H")


def test_compact_rounds_lengths_only(make_record: Any) -> None:
    data = to_data(make_record(1), "x")
    exact, compact = to_record(data), to_record(data, compact=True)
    assert exact["pos"].dtype == np.float64
    assert compact["pos"].dtype == np.float32
    assert sum(np.asarray(v).nbytes for v in compact.values()) < 0.6 * sum(
        np.asarray(v).nbytes for v in exact.values()
    )
    back = to_data(compact, "x")
    torch.testing.assert_close(back.positions, data.positions, rtol=1e-6, atol=1e-6)
    for name in ("atomic_numbers", "tags", "fixed", "y_relaxed", "sid", "pbc"):
        assert torch.equal(back[name], data[name]), name


@given(st.integers(0, 1_000_000), st.floats(0.05, 1.0))
@settings(max_examples=300, deadline=None)
def test_displacements_told_to_be_shortest_are(seed: int, size: float) -> None:
    generator = np.random.default_rng(seed)
    cell = np.eye(3) + generator.normal(scale=0.5, size=(3, 3))
    assume(abs(np.linalg.det(cell)) > 0.05)
    directions = generator.normal(size=(4, 3))
    displacements = size * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    images = np.array(list(product(range(-4, 5), repeat=3))) @ cell
    shortest = np.linalg.norm(displacements[:, None] + images, axis=2).min(axis=1)
    if _are_shortest(displacements, cell):
        assert (np.linalg.norm(displacements, axis=1) <= shortest + 1e-12).all()


def test_small_displacements_are_told_to_be_shortest() -> None:
    assert _are_shortest(np.array([[0.4, 0.0, 0.0]]), np.diag([1.0, 2.0, 3.0]))
    assert not _are_shortest(np.array([[0.0, 0.0, 0.0], [0.6, 0.0, 0.0]]), np.diag([1.0, 2.0, 3.0]))
    # a long way for the first lattice vector, but not for the second minus the first
    skewed = np.array([[3.0, 0.0, 0.0], [2.9, 0.5, 0.0], [0.0, 0.0, 9.0]])
    assert not _are_shortest(np.array([[0.0, 0.4, 0.0]]), skewed)


def test_atoms_that_do_not_move_need_a_cell_all_the_same() -> None:
    cell = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    with pytest.raises(InputError, match="linearly dependent"):
        nearest_image(np.zeros((2, 3)), np.zeros((2, 3)), cell, np.ones(3, dtype=bool), "x")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", range(3))
def test_no_nearest_image_of_what_is_no_number(which: int, value: float) -> None:
    arrays = [np.zeros((2, 3)), np.ones((2, 3)), 4 * np.eye(3)]
    arrays[which][1, 1] = value
    for pbc in (True, False):
        with pytest.raises(InputError, match="x: positions or cell hold NaN or infinity"):
            nearest_image(*arrays, np.full(3, pbc), "x")


@pytest.mark.parametrize("key", ["pos", "tags", "natoms", "force", "y_relaxed", "name"])
@pytest.mark.parametrize("value", [[[1, 2], [3]], 10**5000, [10**5000]], ids=["ragged", "huge", "list of huge"])
def test_values_that_numpy_or_python_refuse(key: str, value: Any, make_record: Callable[..., dict[str, Any]]) -> None:
    if key == "name" and value == [[1, 2], [3]]:
        pytest.skip("a list is written out as text")
    labels = LabelSpec(target="energy", label="y_relaxed")
    for spec in (None, labels):
        with pytest.raises(InputError, match=r"bad\.lmdb#1"):
            to_data({**make_record(), key: value}, "bad.lmdb#1", spec)
