"""LMDB files are written whole or not at all, and an interrupted run goes on."""

import os
import pickle
from collections.abc import Sequence

import lmdb
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import fcc111, molecule
from ase.io import write

from molflt.data.oc20 import writer as lmdb_writer
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.oc20.writer import convert, write_lmdb
from molflt.data.reading import ReadOptions
from molflt.errors import InputError


class Counted(Sequence):
    """Records that count how often each is made, and may fail at one."""

    def __init__(self, make_record, n, fail_at=None):
        self.make_record, self.n, self.fail_at = make_record, n, fail_at
        self.made = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError
        if index == self.fail_at:
            raise RuntimeError("interrupted")
        self.made.append(index)
        return self.make_record(index)


def _content(path):
    # a copy, because LMDB opens no file twice in a process
    copy = path.with_name("copy-of-" + path.name)
    copy.write_bytes(path.read_bytes())
    with lmdb.open(str(copy), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        content = {key.decode(): bytes(value) for key, value in txn.cursor()}
    copy.unlink()
    return content


@pytest.fixture(autouse=True)
def small_commits(monkeypatch):
    monkeypatch.setattr(lmdb_writer, "_PER_COMMIT", 4)


def test_layout(tmp_path, make_record):
    records = [make_record(k) for k in range(11)]
    assert write_lmdb(tmp_path / "a.lmdb", records) == 11
    content = _content(tmp_path / "a.lmdb")
    assert set(content) == {*map(str, range(11)), "length"}
    assert pickle.loads(content["length"]) == 11
    for k, record in enumerate(records):
        stored = pickle.loads(content[str(k)])
        assert type(stored) is dict
        assert set(stored) == set(record)
        for key, value in record.items():
            np.testing.assert_array_equal(stored[key], value)
    assert [p.name for p in tmp_path.iterdir()] == ["a.lmdb"]
    # tensors and NumPy's numbers become plain
    write_lmdb(tmp_path / "b.lmdb", [{"pos": torch.ones(5, 3), "sid": np.int64(4), "y_init": np.float32(0.5)}])
    stored = pickle.loads(_content(tmp_path / "b.lmdb")["0"])
    assert [type(stored[key]) for key in ("pos", "sid", "y_init")] == [np.ndarray, int, float]


def test_file_is_compact(tmp_path):
    records = [{"pos": np.random.default_rng(k).normal(size=(42, 3))} for k in range(100)]
    write_lmdb(tmp_path / "a.lmdb", records)
    status = (tmp_path / "a.lmdb").stat()
    assert status.st_size < 1_000_000
    assert status.st_blocks * 512 < 1_000_000


def test_map_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_writer, "_FIRST_MAP_SIZE", 1 << 16)
    assert write_lmdb(tmp_path / "a.lmdb", [{"pos": np.full((5000, 3), float(k))} for k in range(20)]) == 20
    content = _content(tmp_path / "a.lmdb")
    assert [pickle.loads(content[str(k)])["pos"][0, 0] for k in range(20)] == list(range(20))


def test_interrupted_run_goes_on_where_it_stopped(tmp_path, make_record):
    path, whole, again = tmp_path / "a.lmdb", tmp_path / "b.lmdb", Counted(make_record, 30)
    with pytest.raises(RuntimeError, match="interrupted"):
        write_lmdb(path, Counted(make_record, 30, fail_at=21))
    assert [p.name for p in tmp_path.iterdir()] == ["a.lmdb.partial"]
    assert write_lmdb(path, again) == 30
    # 20 were committed; the first is looked at to know the source
    assert again.made == [0, *range(20, 30)]
    write_lmdb(whole, Counted(make_record, 30))
    assert _content(path) == _content(whole)
    # what can be gone through once only is wound forward
    with pytest.raises(RuntimeError, match="interrupted"):
        write_lmdb(whole, iter(Counted(make_record, 30, fail_at=21)), total=30, overwrite=True)
    assert write_lmdb(whole, iter(Counted(make_record, 30)), total=30, overwrite=True) == 30
    assert _content(path) == _content(whole)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.lmdb", "b.lmdb"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_writers_of_one_file(tmp_path, make_record, overwrite):
    """The second begins when the first has written a part: it is refused, and the first does not notice."""
    pytest.importorskip("fcntl")
    path, refused = tmp_path / "a.lmdb", []
    if overwrite:
        write_lmdb(path, Counted(lambda k: make_record(k + 100), 3))

    class Interfering(Counted):
        def __getitem__(self, index):
            if index == 21 and not refused:
                with pytest.raises(InputError, match=r"a\.lmdb: another process is writing it; wait for it"):
                    write_lmdb(path, Counted(lambda k: make_record(k + 50), 40), overwrite=overwrite)
                refused.append([int(d.sid) for d in LmdbDataset(path)] if overwrite else path.exists())
            return super().__getitem__(index)

    assert write_lmdb(path, Interfering(make_record, 30), overwrite=overwrite) == 30
    assert refused == [[100, 101, 102] if overwrite else False]
    assert [int(d.sid) for d in LmdbDataset(path)] == list(range(30))
    assert [p.name for p in tmp_path.iterdir()] == ["a.lmdb"]


@pytest.mark.parametrize("change", ["source", "first record", "total", "resume=False", "damage", "cut short"])
def test_partial_file_of_another_source_is_discarded(tmp_path, make_record, change):
    path, partial = tmp_path / "a.lmdb", tmp_path / "a.lmdb.partial"
    with pytest.raises(RuntimeError, match="interrupted"):
        write_lmdb(path, Counted(make_record, 30, fail_at=21), source="one")
    if change == "damage":
        partial.write_bytes(b"damage" * 1000)
    if change == "cut short":
        os.truncate(partial, 12288)
    shift, n = (100 if change == "first record" else 0), (29 if change == "total" else 30)
    again = Counted(lambda k: make_record(k + shift), n)
    write_lmdb(path, again, source="two" if change == "source" else "one", resume=change != "resume=False")
    assert again.made == [0, *range(n)]
    assert [int(d.sid) for d in LmdbDataset(path)] == list(range(shift, shift + n))


def test_existing_output_is_kept_unless_told(tmp_path, make_record):
    path = tmp_path / "a.lmdb"
    write_lmdb(path, [make_record(1)])
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        write_lmdb(path, [make_record(2)])
    assert path.read_bytes() == before
    # an overwrite that fails keeps the old file too
    with pytest.raises(RuntimeError, match="interrupted"):
        write_lmdb(path, Counted(make_record, 9, fail_at=6), overwrite=True)
    assert path.read_bytes() == before
    assert LmdbDataset(path)[0].sid == 1
    write_lmdb(path, [make_record(2)], overwrite=True)
    assert LmdbDataset(path)[0].sid == 2


@pytest.mark.parametrize("value", [object(), None, [1, 2], np.array([object()]), {"a": 1}, b"bytes", np.array([1j])])
def test_only_numbers_and_text_are_written(tmp_path, make_record, value):
    with pytest.raises(InputError, match="record 2, field 'extra'"):
        write_lmdb(tmp_path / "a.lmdb", [make_record(0), make_record(1), {**make_record(2), "extra": value}])
    assert not (tmp_path / "a.lmdb").exists()


@pytest.mark.parametrize("total", [2, 4])
def test_wrong_numbers_of_records_leave_no_file(tmp_path, make_record, total):
    with pytest.raises(InputError, match=f"a.lmdb: 3 records came, {total} were announced"):
        write_lmdb(tmp_path / "a.lmdb", (make_record(k) for k in range(3)), total=total)
    for records in ([], iter([])):
        with pytest.raises(InputError, match=r"a\.lmdb: there are no records to write"):
            write_lmdb(tmp_path / "a.lmdb", records)
    assert not (tmp_path / "a.lmdb").exists()
    with pytest.raises(InputError, match="no such folder"):
        write_lmdb(os.path.join(tmp_path, "none", "a.lmdb"), [make_record(0)])


def test_a_pattern_stands_for_the_files_it_finds(tmp_path, monkeypatch):
    """An interrupted conversion does not go on with files that have changed since."""
    for name, energies in (("a", (0.0, 1.0)), ("b", (2.0, 3.0, 4.0, 5.0))):
        _write_energies(tmp_path / f"{name}.xyz", energies)
    pattern, target, commits = str(tmp_path / "*.xyz"), tmp_path / "out.lmdb", iter(range(9))
    monkeypatch.setattr(lmdb_writer, "_PER_COMMIT", 2)
    commit = lmdb_writer._Writer.commit

    def interrupted(self, *args, **options):
        if next(commits) == 2:
            raise KeyboardInterrupt
        commit(self, *args, **options)

    monkeypatch.setattr(lmdb_writer._Writer, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert([pattern], target)
    _write_energies(tmp_path / "b.xyz", (12.0, 13.0, 14.0, 15.0))
    convert([pattern], target)
    assert [float(data.energy) for data in LmdbDataset(target)] == [0.0, 1.0, 12.0, 13.0, 14.0, 15.0]


def _write_energies(path, energies):
    atoms = [Atoms("CO", [[0, 0, 0], [0, 0, 1.1 + e / 100]], info={"energy": e}) for e in energies]
    write(path, atoms, format="extxyz")


def test_converted_ions_keep_their_charge(tmp_path):
    """Models with charges read it from the file as from its source; others refuse the file as they do the source."""
    ion = molecule("OH", info={"charge": -1})
    slab = fcc111("Pt", (1, 1, 3), vacuum=5.0)
    slab.info["charge"] = 1
    slab.set_tags(1)
    write(tmp_path / "ions.extxyz", [ion, slab])
    target = tmp_path / "ions.lmdb"
    convert([str(tmp_path / "ions.extxyz")], target, options=ReadOptions(allow_charged=True))
    kept = LmdbDataset(target, options=ReadOptions(charges=True, slabs=True))
    assert [float(structure.charge) for structure in kept] == [-1, 1]
    with pytest.raises(InputError, match="'charge' is -1"):
        LmdbDataset(target)[0]
