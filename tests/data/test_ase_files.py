"""Files that ASE reads: frames and labels as they are, and nothing that runs, or asks for more than there is."""

import bz2
import gzip
import lzma
import pickle
import sqlite3
from pathlib import Path

import ase.db
import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.data import text as compression
from molflt.data.formats import ase_format, read_ase
from molflt.errors import InputError
from tests.data.pickles import Call
from tests.data.test_ase_io import slab

FILES = ["a.extxyz", "a.xyz", "a.traj", "a.db", "a.json", "a.extxyz.gz", "a.xyz.bz2", "a.xyz.xz"]


@pytest.mark.parametrize("name", FILES)
def test_every_frame_of_a_file(tmp_path, name):
    frames = []
    for k in range(4):
        frame = slab()
        frame.positions += 0.01 * k
        frame.calc = SinglePointCalculator(frame, energy=-float(k))
        frames.append(frame)
    # "@" is ASE's syntax for frames, but here a part of the name
    path = tmp_path / f"x@1{name}"
    ase.io.write(tmp_path / name, frames)
    (tmp_path / name).rename(path)
    read = read_ase(path)
    assert [d.name for d in read] == [f"{path}#{k}" for k in range(4)]
    for data, frame in zip(read, frames, strict=True):
        np.testing.assert_allclose(data.positions.numpy(), frame.positions, atol=1e-7)
        np.testing.assert_array_equal(data.tags.numpy(), frame.get_tags())
        assert float(data.energy) == frame.get_potential_energy()
        assert data.pbc.tolist() == [[True, True, False]]


def test_databases(tmp_path):
    path = tmp_path / "a.db"
    with ase.db.connect(path) as database:
        database.write(slab(), y_relaxed=-0.75, sid=12, adsorbate="O")
    (data,) = read_ase(path)
    assert (float(data.y_relaxed), int(data.sid), data.adsorbate) == (-0.75, 12, "O")
    with ase.db.connect(path) as database:
        del database[1]
    with pytest.raises(InputError, match=r"a\.db: holds no structures"):
        read_ase(path)
    # one of another program is not touched
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="not an ASE database"):
        read_ase(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a.traj", "a.db", "a.json", "a.extxyz", "a.pckl", "a.bundle", "a.py", "a.gpw"])
def test_files_are_not_run(tmp_path, name):
    flag = tmp_path / "flag"
    program = pickle.dumps(Call(Path.touch, (flag,)))
    for content in (program, f"from pathlib import Path\nPath({str(flag)!r}).touch()\n".encode()):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            read_ase(tmp_path / name)
    assert not flag.exists()
    # negative control
    pickle.loads(program)
    assert flag.exists()


def test_formats_off_the_list(tmp_path):
    for name in ("geometry.in", "a.py", "a.pckl", "a.bundle", "a.traj.gz", "a.db.gz", "a", "a.txt"):
        assert ase_format(Path(name)) is None
    ase.io.write(tmp_path / "a", molecule("H2O"), format="extxyz")
    # ASE looks inside; here content does not put a file on the list
    assert len(ase.io.read(tmp_path / "a")) == 3
    with pytest.raises(InputError, match="no safe reader for this kind of file"):
        read_ase(tmp_path / "a")


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_one_input_error(tmp_path, refused, name):
    ase.io.write(tmp_path / name, [slab() for _ in range(3)])
    raw = (tmp_path / name).read_bytes()
    for content in (raw[:1], raw[: len(raw) // 2], gzip.compress(b"\xff\xfe\x00nothing")):
        refused(name, content, name)
    refused(name, b"", "empty")
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match="no such file"):
        read_ase(tmp_path / name)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_file_that_unpacks_to_hundreds_of_times_its_size(ending, pack, tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "_ALWAYS_ALLOWED", 1 << 20)
    file = tmp_path / f"a.xyz.{ending}"
    file.write_bytes(pack(b"1" * (3 << 20)))
    with pytest.raises(InputError, match=f"a.xyz.{ending}.*refused, it unpacks to more than 200 times"):
        read_ase(file)
    monkeypatch.setattr(compression, "_ALWAYS_ALLOWED", 0)
    # an honest one passes
    ase.io.write(file, [molecule("C6H6")] * 20, format="extxyz")
    assert len(read_ase(file)) == 20
