"""OC20 LMDB files: layouts, damage, processes."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import lmdb
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from molflt import vocabulary
from molflt.data.batch import StructureCollater
from molflt.data.oc20 import lmdb as lmdb_dataset
from molflt.data.oc20.lmdb import LmdbDataset, close_readonly
from molflt.data.reading import ReadOptions
from molflt.data.record import to_data
from molflt.errors import InputError


def _write(path, items, *, folder=False):
    with lmdb.open(str(path), subdir=folder, map_size=1 << 24, lock=False) as env, env.begin(write=True) as txn:
        for key, value in items.items():
            txn.put(key.encode(), value)
    return path


@pytest.fixture
def records(make_record):
    """``records(n)``: n of them, of different sizes."""
    return lambda n: [make_record(seed, 3 + seed % 5) for seed in range(n)]


def _items(records):
    return {str(k): pickle.dumps(record) for k, record in enumerate(records)}


@pytest.fixture
def database(records, tmp_path):
    """``database(n)``: the path of a file with n records, ``a.lmdb``."""
    return lambda n: _write(tmp_path / "a.lmdb", _items(records(n)))


def _same(a, b):
    assert set(a.keys()) == set(b.keys())
    for field in vocabulary.FIELDS:
        if field in a:
            assert torch.equal(a[field], b[field]), field


def test_threads_open_a_file_together(database):
    path = database(8)
    for _ in range(10):
        close_readonly(path)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda k: LmdbDataset(path)[k].name, range(8)))
        assert len(set(found)) == 8


LENGTHS = [{}, *({"length": raw} for raw in (pickle.dumps(12), b"12", pickle.dumps(12, protocol=0)))]


@pytest.mark.parametrize(("length", "folder"), [*((length, False) for length in LENGTHS), ({"length": b"12"}, True)])
def test_every_layout_reads_the_same(tmp_path, records, length, folder):
    written = records(12)
    items = {**_items(written), "metadata": b"not a record", **length}
    dataset = LmdbDataset(_write(tmp_path / "data.lmdb", items, folder=folder))
    assert len(dataset) == 12
    # index 2 is 2, not the third key in LMDB's order (0, 1, 10, 11, 2, ...)
    for index in (0, 2, 10, 11):
        _same(dataset[index], to_data(written[index], "x"))
    assert dataset[-1].sid == 11
    assert dataset[3].name.endswith("data.lmdb#3")
    assert dataset.n_atoms.dtype == np.int64
    assert dataset.n_atoms.tolist() == [len(r["pos"]) for r in written]
    assert [int(d.sid) for d in dataset] == list(range(12))
    for outside in (12, 13, 100, -13, -100):
        with pytest.raises(IndexError):
            dataset[outside]


@pytest.mark.parametrize("length", [{}, {"length": b"4"}])
def test_keys_need_not_be_contiguous(tmp_path, records, length):
    items = dict(zip(("7", "10", "3", "100"), _items(records(4)).values(), strict=True))
    dataset = LmdbDataset(_write(tmp_path / "a.lmdb", items | length))
    assert [int(d.sid) for d in dataset] == [2, 0, 1, 3]
    assert dataset[0].name.endswith("#3")


DAMAGE = {
    "missing": (lambda path: path.unlink(), "No such file"),
    "empty": (lambda path: os.truncate(path, 0), "empty"),
    "text": (lambda path: path.write_text("not a database\n" * 2000, encoding="utf-8"), "not an LMDB"),
    "cut short": (lambda path: os.truncate(path, path.stat().st_size - 8192), "cut short"),
    "cut short by a byte": (lambda path: os.truncate(path, path.stat().st_size - 1), "cut short"),
    "folder": (lambda path: path.unlink() or path.mkdir(), "data.mdb: cannot be read: No such file"),
}
CONTENTS = [
    ({"metadata": b"1"}, "no records"),
    ({"length": b"3"}, "'length' says 3"),
    ({"length": b"0"}, "no records"),
    *(({"length": pickle.dumps(value)}, "not a number of records") for value in ("many", True, -1, 1 << 62)),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_named(damage, message, database):
    path = database(50)
    damage(path)
    with pytest.raises(InputError, match=rf"a\.lmdb.*{message}"):
        LmdbDataset(path)


@pytest.mark.parametrize(("items", "message"), CONTENTS)
def test_files_that_are_no_data_set_are_named(items, message, tmp_path):
    with pytest.raises(InputError, match=rf"a\.lmdb.*{message}"):
        LmdbDataset(_write(tmp_path / "a.lmdb", items))


def test_a_missing_record_is_named(tmp_path, records):
    items = _items(records(5))
    del items["2"]
    with pytest.raises(InputError, match="4 records"):
        LmdbDataset(_write(tmp_path / "a.lmdb", {**items, "length": b"5"}))
    # other keys make the count come out: then the gap shows on access
    dataset = LmdbDataset(_write(tmp_path / "b.lmdb", {**items, "length": b"5", "metadata": b""}))
    assert dataset[3].sid == 3
    with pytest.raises(InputError, match=r"b\.lmdb#2: the record is missing"):
        dataset[2]


def test_a_damaged_record_is_named(tmp_path, records):
    items = _items(records(3))
    items["1"] = items["1"][:-20]
    dataset = LmdbDataset(_write(tmp_path / "a.lmdb", items))
    assert dataset[2].sid == 2
    with pytest.raises(InputError, match=r"a\.lmdb#1"):
        dataset[1]
    dataset = LmdbDataset(_write(tmp_path / "b.lmdb", {"0": pickle.dumps({"sid": 1})}))
    with pytest.raises(InputError, match=r"b\.lmdb#0: the record does not say"):
        _ = dataset.n_atoms
    assert LmdbDataset(tmp_path / "b.lmdb", ReadOptions(on_bad="skip")).n_atoms.tolist() == [1]


def test_two_data_sets_share_a_file_and_survive_its_replacement(tmp_path, records, database):
    path = database(4)
    first, second = LmdbDataset(path), LmdbDataset(path)
    assert first[1].sid == second[1].sid == 1
    os.replace(_write(tmp_path / "new.lmdb", _items(records(4)[::-1])), path)
    assert LmdbDataset(path)[0].sid == 3
    assert first[0].sid == 3


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_as_this_process_does(database, method):
    dataset, times = LmdbDataset(database(16)), 2 if method == "fork" else 1
    # open in this process first: the children must not use the inherited environment
    assert dataset[0].sid == 0
    options = {"batch_size": 2, "num_workers": times, "collate_fn": StructureCollater(4.0)}
    loader = DataLoader(dataset, **options, multiprocessing_context=method)
    for _ in range(times):
        assert [sid for batch in loader for sid in batch.sid.tolist()] == list(range(16))
    # and this process's own is still good
    assert dataset[5].sid == 5


@pytest.fixture
def large(database, monkeypatch):
    monkeypatch.setattr(lmdb_dataset, "_CACHE_SIZES_FROM", 3)
    return database(6)


def refuse(*_, **__):
    raise PermissionError("read-only")


def test_sizes_of_a_large_file_are_kept(large, monkeypatch):
    expected = [3, 4, 5, 6, 7, 3]
    with monkeypatch.context() as patch:
        # A read-only folder is no error; root may write anywhere, so the refusal is simulated.
        patch.setattr(lmdb_dataset, "atomic_file", refuse)
        assert LmdbDataset(large).n_atoms.tolist() == expected
    assert LmdbDataset(large).n_atoms.tolist() == expected
    kept = large.with_name("a.lmdb.natoms")
    stored = np.frombuffer(kept.read_bytes(), dtype="<i8")
    # proof that the file is what is read: put other numbers in
    kept.write_bytes(np.concatenate([stored[:2], np.arange(6)]).tobytes())
    assert LmdbDataset(large).n_atoms.tolist() == list(range(6))
    # and that it is dropped when the database changes
    os.utime(large, ns=(1, 1))
    assert LmdbDataset(large).n_atoms.tolist() == expected
    assert sorted(p.name for p in large.parent.iterdir()) == ["a.lmdb", "a.lmdb.natoms"]


CACHE_DAMAGE = {
    "empty": lambda kept: os.truncate(kept, 0),
    "cut short": lambda kept: os.truncate(kept, kept.stat().st_size // 2),
    "too long": lambda kept: os.truncate(kept, 1 << 40),
    "of another file": lambda kept: kept.write_bytes(b"\1" * kept.stat().st_size),
    "a folder": lambda kept: kept.unlink() or kept.mkdir(),
}


@pytest.mark.parametrize("damage", CACHE_DAMAGE.values(), ids=CACHE_DAMAGE)
def test_damaged_sizes_are_counted_again(damage, large):
    expected = LmdbDataset(large).n_atoms.tolist()
    damage(large.with_name("a.lmdb.natoms"))
    assert LmdbDataset(large).n_atoms.tolist() == expected


def test_sizes_without_natoms_come_from_the_atoms(tmp_path, records):
    without = [{k: v for k, v in record.items() if k != "natoms"} for record in records(3)]
    assert LmdbDataset(_write(tmp_path / "a.lmdb", _items(without))).n_atoms.tolist() == [3, 4, 5]
    # those of a small file are not kept
    assert [p.name for p in tmp_path.iterdir()] == ["a.lmdb"]


def test_real_files_of_both_layouts_hold_the_same_structures(oc20):
    old, new = LmdbDataset(oc20 / "pyg1.lmdb"), LmdbDataset(oc20 / "pyg2.lmdb")
    assert len(old) == len(new) == 5
    assert old.n_atoms.tolist() == [int(d.num_nodes) for d in new]
    for a, b in zip(old, new, strict=True):
        _same(a, b)
        assert a.pbc.all()
        # a fixed atom stays where it is, once the image is right
        moved = (a.positions_relaxed - a.positions).norm(dim=1)
        assert moved[a.fixed].max() < 1e-3
