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
from molflt.data.oc20.writer import write_lmdb
from molflt.data.reading import ReadOptions
from molflt.data.record import to_data
from molflt.errors import InputError


def _write(path, items, *, folder=False):
    with lmdb.open(str(path), subdir=folder, map_size=1 << 24, lock=False) as env, env.begin(write=True) as txn:
        for key, value in items.items():
            txn.put(key.encode(), value)
    return path


def _records(make_record, n):
    return [make_record(seed, 3 + seed % 5) for seed in range(n)]


def _items(records, first=0):
    return {str(first + k): pickle.dumps(record) for k, record in enumerate(records)}


def _same(a, b):
    assert set(a.keys()) == set(b.keys())
    for field in vocabulary.FIELDS:
        if field in a:
            assert torch.equal(a[field], b[field]), field


LENGTHS = {"none": None, "pickle": pickle.dumps(12), "ascii": b"12", "old": pickle.dumps(12, protocol=0)}


def test_threads_open_a_file_together(tmp_path, make_record):
    path = tmp_path / "d.lmdb"
    write_lmdb(path, [make_record(k) for k in range(8)], progress=False)
    for _ in range(10):
        close_readonly(path)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda k: LmdbDataset(path)[k].name, range(8)))
        assert len(set(found)) == 8


@pytest.mark.parametrize(("length", "folder"), [*((length, False) for length in LENGTHS.values()), (b"12", True)])
def test_every_layout_reads_the_same(tmp_path, make_record, length, folder):
    records = _records(make_record, 12)
    items = {**_items(records), "metadata": b"not a record"}
    if length is not None:
        items["length"] = length
    dataset = LmdbDataset(_write(tmp_path / "data.lmdb", items, folder=folder))
    assert len(dataset) == 12
    # index 2 is 2, not the third key in LMDB's order (0, 1, 10, 11, 2, ...)
    for index in (0, 2, 10, 11):
        _same(dataset[index], to_data(records[index], "x"))
    assert dataset[-1].sid == 11
    assert dataset[3].name.endswith("data.lmdb#3")
    assert dataset.n_atoms.dtype == np.int64
    assert dataset.n_atoms.tolist() == [len(r["pos"]) for r in records]
    assert [int(d.sid) for d in dataset] == list(range(12))
    for outside in (12, 13, 100, -13, -100):
        with pytest.raises(IndexError):
            dataset[outside]


@pytest.mark.parametrize("length", [None, b"4"])
def test_keys_need_not_be_contiguous(tmp_path, make_record, length):
    records = _records(make_record, 4)
    items = dict(zip(("7", "10", "3", "100"), _items(records).values(), strict=True))
    if length:
        items["length"] = length
    dataset = LmdbDataset(_write(tmp_path / "a.lmdb", items))
    assert [int(d.sid) for d in dataset] == [2, 0, 1, 3]
    assert dataset[0].name.endswith("#3")


def _truncated(by):
    def make(path, make_record):
        _write(path, _items(_records(make_record, 50)))
        os.truncate(path, path.stat().st_size - by)

    return make


DAMAGE = {
    "missing": (lambda path, _: None, "No such file"),
    "empty": (lambda path, _: path.touch(), "empty"),
    "text": (lambda path, _: path.write_text("not a database\n" * 2000, encoding="utf-8"), "not an LMDB"),
    "cut short": (_truncated(8192), "cut short"),
    "cut short by a byte": (_truncated(1), "cut short"),
    "no records": (lambda path, _: _write(path, {"metadata": b"1"}), "no records"),
    "length alone": (lambda path, _: _write(path, {"length": b"3"}), "'length' says 3"),
    "zero length": (lambda path, _: _write(path, {"length": b"0"}), "no records"),
    "bad length": (lambda path, _: _write(path, {"length": pickle.dumps("many")}), "not a number of records"),
    "true length": (lambda path, _: _write(path, {"length": pickle.dumps(True)}), "not a number of records"),
    "negative length": (lambda path, _: _write(path, {"length": pickle.dumps(-1)}), "not a number of records"),
    "huge length": (lambda path, _: _write(path, {"length": pickle.dumps(1 << 62)}), "not a number of records"),
    "folder": (lambda path, _: path.mkdir(), "data.mdb: cannot be read: No such file"),
}


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_files_that_are_no_data_set_are_named(tmp_path, make_record, kind):
    make, message = DAMAGE[kind]
    path = tmp_path / "bad.lmdb"
    make(path, make_record)
    with pytest.raises(InputError, match=message) as refusal:
        LmdbDataset(path)
    assert "bad.lmdb" in str(refusal.value)


def test_a_missing_record_is_named(tmp_path, make_record):
    items = _items(_records(make_record, 5))
    del items["2"]
    with pytest.raises(InputError, match="4 records"):
        LmdbDataset(_write(tmp_path / "a.lmdb", {**items, "length": b"5"}))
    # other keys make the count come out: then the gap shows on access
    dataset = LmdbDataset(_write(tmp_path / "b.lmdb", {**items, "length": b"5", "metadata": b""}))
    assert dataset[3].sid == 3
    with pytest.raises(InputError, match=r"b\.lmdb#2: the record is missing"):
        dataset[2]


def test_a_damaged_record_is_named(tmp_path, make_record):
    items = _items(_records(make_record, 3))
    items["1"] = items["1"][:-20]
    dataset = LmdbDataset(_write(tmp_path / "a.lmdb", items))
    assert dataset[2].sid == 2
    with pytest.raises(InputError, match=r"a\.lmdb#1"):
        dataset[1]
    dataset = LmdbDataset(_write(tmp_path / "b.lmdb", {"0": pickle.dumps({"sid": 1})}))
    with pytest.raises(InputError, match=r"b\.lmdb#0: the record does not say"):
        _ = dataset.n_atoms
    assert LmdbDataset(tmp_path / "b.lmdb", ReadOptions(on_bad="skip")).n_atoms.tolist() == [1]


def test_two_data_sets_share_a_file_and_survive_its_replacement(tmp_path, make_record):
    records = _records(make_record, 4)
    path = _write(tmp_path / "a.lmdb", _items(records))
    first, second = LmdbDataset(path), LmdbDataset(path)
    assert first[1].sid == second[1].sid == 1
    os.replace(_write(tmp_path / "new.lmdb", _items(records[::-1])), path)
    assert LmdbDataset(path)[0].sid == 3
    assert first[0].sid == 3


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_what_this_process_reads(tmp_path, make_record, method):
    dataset = LmdbDataset(_write(tmp_path / "a.lmdb", _items(_records(make_record, 16))))
    # open in this process first: the children must not use the inherited environment
    assert dataset[0].sid == 0
    loader = DataLoader(
        dataset,
        batch_size=2,
        num_workers=2 if method == "fork" else 1,
        collate_fn=StructureCollater(4.0),
        multiprocessing_context=method,
    )
    for _ in range(2 if method == "fork" else 1):
        assert [sid for batch in loader for sid in batch.sid.tolist()] == list(range(16))
    # and this process's own is still good
    assert dataset[5].sid == 5


@pytest.fixture
def large(tmp_path, make_record, monkeypatch):
    monkeypatch.setattr(lmdb_dataset, "_CACHE_SIZES_FROM", 3)
    return _write(tmp_path / "a.lmdb", _items(_records(make_record, 6)))


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


def test_sizes_without_natoms_come_from_the_atoms(tmp_path, make_record):
    records = [{k: v for k, v in r.items() if k != "natoms"} for r in _records(make_record, 3)]
    assert LmdbDataset(_write(tmp_path / "a.lmdb", _items(records))).n_atoms.tolist() == [3, 4, 5]
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
