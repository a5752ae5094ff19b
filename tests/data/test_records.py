"""OC20-layout records to structures and back."""

import numpy as np
import pytest
import torch
from ase.build import molecule
from torch_geometric.data import Data

from molflt import vocabulary
from molflt.data.ase import from_atoms, to_atoms
from molflt.data.labels import CANDIDATES, STORED, LabelSpec
from molflt.data.open import structures_of
from molflt.data.reading import ReadOptions
from molflt.data.record import to_data, to_record
from molflt.errors import InputError
from molflt.terminal_text import printable


def test_fields_follow_the_vocabulary(make_record):
    record = make_record(3)
    data = to_data(record, "file#3")
    tensors = {name: data[name] for name in vocabulary.FIELDS if name in data}
    vocabulary.check(tensors, "x")
    others = {"energy", "forces", "edge_index", "cell_offsets", "conformers", "charge"}
    assert set(tensors) == set(vocabulary.FIELDS) - others
    assert (data.num_nodes, data.name, data.pbc.tolist()) == (5, "file#3", [[True, True, True]])
    np.testing.assert_array_equal(data.positions.numpy(), record["pos"])
    assert float(data.y_relaxed) == record["y_relaxed"]
    # They share no memory with the record.
    before = data.positions.clone()
    record["pos"] += 1
    assert torch.equal(data.positions, before)


def test_floats_for_integers_and_flat_cells(make_record):
    record = make_record()
    as_floats = {key: record[key].astype(np.float32) for key in ("tags", "atomic_numbers", "fixed")}
    as_floats |= {"cell": record["cell"][0], "natoms": np.array([5]), "sid": np.array([0.0])}
    a, b = to_data(record, "x"), to_data(record | as_floats, "x")
    assert set(a.keys()) == set(b.keys())
    for name in vocabulary.FIELDS:
        if name in a:
            assert torch.equal(a[name], b[name]), name
            assert a[name].dtype == b[name].dtype


def test_optional_fields_have_defaults(make_record):
    record = {key: make_record()[key] for key in ("pos", "atomic_numbers")}
    data = to_data(record, "x")
    assert not any(data[name].any() for name in ("tags", "fixed", "pbc", "cell"))
    assert "positions_relaxed" not in data
    assert "y_relaxed" not in data
    # A lattice vector that is zero is not periodic.
    assert to_data({**record, "cell": np.diag([6.0, 7.0, 0.0])}, "x").pbc.tolist() == [[True, True, False]]


def test_stored_edges_are_ignored_and_texts_kept(make_record):
    extra = {"edge_index": np.zeros((2, 3), dtype=int), "name": "Cu111/CO", "adsorbate": "CO", "metal": "Cu"}
    data = to_data({**make_record(), **extra}, "x")
    assert "edge_index" not in data
    assert (data.name, data.adsorbate, data.metal) == ("Cu111/CO", "CO", "Cu")


def test_names_do_not_command_terminals(make_record):
    data = to_data({**make_record(), "name": "a\x1b[2Jb\nc\ud800\u202ed", "adsorbate": "\x9bx"}, "x")
    assert data.name == r"a\x1b[2Jb\nc\ud800\u202ed"
    assert data.adsorbate == r"\x9bx"
    assert printable("Öl ü → 日本 'q'") == "Öl ü → 日本 'q'"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pos": None}, "'pos' is missing"),
        ({"pos": np.zeros((0, 3))}, "no atoms"),
        ({"pos": np.zeros((5, 2))}, "'pos' has shape"),
        ({"pos": np.array(["a"] * 15).reshape(5, 3)}, "expected numbers"),
        ({"natoms": 6}, "'natoms' says 6"),
        ({"atomic_numbers": None}, "'atomic_numbers' is missing"),
        ({"atomic_numbers": np.array([1, 2, 3, 4, 5.5])}, "whole numbers"),
        ({"atomic_numbers": np.array([1, 2, 3, 4])}, r"expected \(5,\)"),
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
def test_bad_fields_are_named(make_record, change, message):
    record = {key: value for key, value in {**make_record(), **change}.items() if value is not None}
    with pytest.raises(InputError, match=message) as refusal:
        to_data(record, "train.lmdb#12")
    assert str(refusal.value).startswith("train.lmdb#12")


def test_compact_rounds_lengths_only(make_record):
    data = to_data(make_record(1), "x")
    exact, compact = to_record(data), to_record(data, compact=True)
    assert (exact["pos"].dtype, compact["pos"].dtype) == (np.float64, np.float32)
    of_exact, of_compact = (sum(np.asarray(v).nbytes for v in record.values()) for record in (exact, compact))
    assert of_compact < 0.6 * of_exact
    back = to_data(compact, "x")
    torch.testing.assert_close(back.positions, data.positions, rtol=1e-6, atol=1e-6)
    for name in ("atomic_numbers", "tags", "fixed", "y_relaxed", "sid", "pbc"):
        assert torch.equal(back[name], data[name]), name


@pytest.mark.parametrize("key", ["pos", "tags", "natoms", "force", "y_relaxed", "name"])
@pytest.mark.parametrize("labels", [None, LabelSpec(target="energy", label="y_relaxed")])
def test_values_that_numpy_or_python_refuse(key, labels, make_record):
    # a list of lists is written out as a name
    for value in ([[1, 2], [3]], 10**5000, [10**5000])[1 if key == "name" else 0 :]:
        with pytest.raises(InputError, match=r"bad\.lmdb#1"):
            to_data({**make_record(), key: value}, "bad.lmdb#1", ReadOptions(labels=labels))


def test_conformers_and_info_are_carried_along(make_record):
    """Also under a label's name, and not mistaken for one of the energies that a record may have."""
    data = to_data({**make_record(1), "charge": 0}, "x")
    data.conformers = torch.stack([data.positions, data.positions + 1.0])
    data.info = {**data.info, "E/kcal": "-3.5", "id": "17"}
    data.remark = "rough"
    back = to_data(to_record(data), "y")
    assert torch.equal(back.conformers, data.conformers)
    assert (back.remark, back.info) == ("rough", {"charge": 0, "E/kcal": "-3.5", "id": "17"})
    labelled, missing = (
        to_data(to_record(data), "y", ReadOptions(labels=LabelSpec(label=name, unit="kcal/mol")))
        for name in ("E/kcal", "none")
    )
    assert float(labelled.energy) == pytest.approx(-3.5 * 0.0433641, rel=1e-5)
    assert "json" not in missing[STORED]
    assert "E/kcal" in missing[CANDIDATES]


DAMAGED = {
    "info_json": ["[", "[]", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}", '{"a": {"b": 1}}', 3, np.zeros(3)],
    "pos_conformers": [np.zeros((2, 4, 3)), np.full((2, 5, 3), np.nan)],
    "extra_json": [
        '{"arrays": []}', '{"other": {}}', '{"arrays": {"positions": [0, 0, 0, 0, 0]}}', '{"arrays": {"a": [1, 2]}}',
        *('{"arrays": {"a": {"__ndarray__": [' + array + "]}}}" for array in (
            '[4], "<f8", [1, 2, 3, 4]', '[99999999, 99999999], "<f8", [1]', '[5], "<f8", [1, 2, 3, 4, null]',
            '[5], "<U99999999", ["a", "b", "c", "d", "e"]',
            *(f"[5], {dtype}, [1, 2, 3, 4, 5]" for dtype in ('"U"', '"O"', '["<f8"]')),
        )),
        *('{"constraints": [' + constraint + "]}" for constraint in (
            '"FixCom"', '{"name": "FixConstraint", "kwargs": {}}', '{"name": "constrained_indices", "kwargs": {}}',
            '{"name": ["FixCom"], "kwargs": {}}', '{"name": "FixCom", "kwargs": []}',
            '{"name": "FixCartesian", "kwargs": {"a": [5]}}', '{"name": "FixCartesian", "kwargs": {"a": "x"}}',
            '{"name": "Hookean", "kwargs": {"a1": 0, "a2": 99, "k": 1}}',
        )),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in DAMAGED.items() for value in values])
def test_damaged_extras_are_refused(key, value, make_record):
    with pytest.raises(InputError, match=r"^bad\.lmdb#1"):
        to_atoms(to_data({**make_record(), key: value}, "bad.lmdb#1"))


def _fields():
    """The vocabulary's, of a water."""
    data = from_atoms(molecule("H2O"), "x")
    return {name: data[name] for name in vocabulary.FIELDS if name in data}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("positions"), "field 'positions' is missing"),
        (lambda f: f.pop("atomic_numbers"), "field 'atomic_numbers' is missing"),
        (lambda f: f.update(atomic_numbers=torch.zeros(0, dtype=torch.int64)), "the structure has no atoms"),
        (lambda f: f.update(colour=torch.zeros(3)), "unknown field 'colour'; known: "),
        (lambda f: f.update(positions=f["positions"][:2]), r"'positions' has shape \(2, 3\), expected \(3, 3\)"),
        (lambda f: f.update(positions=f["positions"].float()), "'positions' has dtype torch.float32"),
        (lambda f: f["positions"].fill_(float("nan")), "'positions' holds NaN or infinity"),
        (lambda f: f["cell"].fill_(float("inf")), "'cell' holds NaN or infinity"),
        (lambda f: f["atomic_numbers"].fill_(0), "found 0: a ghost or dummy atom"),
        (lambda f: f["atomic_numbers"].fill_(119), "must lie between 1 and 118, found 119 to 119"),
        (lambda f: f["atomic_numbers"].fill_(-1), "must lie between 1 and 118"),
        (lambda f: f["tags"].fill_(3), "'tags' must lie between 0 and 2, found 3 to 3"),
        (lambda f: f["tags"].fill_(-1), "'tags' must lie between 0 and 2"),
    ],
)
def test_fields_against_the_vocabulary(change, message):
    fields = _fields()
    change(fields)
    with pytest.raises(InputError, match=f"^here: .*{message}"):
        vocabulary.check(fields, "here")


def test_structures_of_users_are_checked():
    fields = _fields()
    for change, message in (
        ({"positions": [[0.0, 0.0, 0.0]]}, "'positions' is list, expected a tensor"),
        ({"atomic_numbers": None}, "field 'atomic_numbers' is missing"),
    ):
        changed = {key: value for key, value in (fields | change).items() if value is not None}
        with pytest.raises(InputError, match=f"mine: .*{message}"):
            structures_of(Data(**changed), "mine")
