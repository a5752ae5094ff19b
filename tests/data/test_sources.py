"""One way in for every kind of path."""

import os
import pickle
import re
import subprocess
import warnings

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule

from molflt.data import dataset
from molflt.data.dataset import ConcatDataset, ListDataset, StructureDataset, SubsetDataset, fingerprint
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset, resolve_inputs
from molflt.errors import InputError, InputWarning
from tests.conftest import ascii_python


@pytest.fixture
def folder(tmp_path, make_record):
    ase.io.write(tmp_path / "b.extxyz", [molecule("H2O"), molecule("CH4")])
    ase.io.write(tmp_path / "a.xyz", molecule("CO"))
    (tmp_path / "c.smi").write_text("O\nC\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("nothing to read", encoding="utf-8")
    (tmp_path / "shards").mkdir()
    for k in range(2):
        write_lmdb(tmp_path / "shards" / f"{k}.lmdb", [make_record(10 * k + j, 3 + j) for j in range(3)])
    return tmp_path


def test_every_kind_of_path(folder):
    for path, sizes in {
        "b.extxyz": [3, 5], "a.xyz": [2], "c.smi": [3, 5], "shards/0.lmdb": [3, 4, 5],
        "shards": [3, 4, 5, 3, 4, 5], ".": [2, 3, 5, 3, 5],
    }.items():  # fmt: skip
        dataset = open_dataset(folder / path)
        assert isinstance(dataset, StructureDataset)
        assert dataset.n_atoms.tolist() == sizes
        assert [int(dataset[k].num_nodes) for k in range(len(dataset))] == sizes
        assert int(dataset[-1].num_nodes) == sizes[-1]


def test_a_folder_says_which_files_it_leaves_out(folder):
    (folder / ".hidden").write_text("x", encoding="utf-8")
    with pytest.warns(InputWarning) as said:
        open_dataset(folder)
    assert [str(one.message) for one in said] == [
        f"{folder}: left out: notes.txt, shards/; give what holds structures by its own path"
    ]
    shards = folder / "shards"
    for name in ("0.lmdb-lock", "0.lmdb.natoms", "2.lmdb.partial"):
        (shards / name).write_text("x", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(open_dataset(shards)) == 6
    ase.io.write(shards / "water.xyz", molecule("H2O"))
    for k in range(9):
        (shards / f"x{k}").touch()
    with pytest.warns(InputWarning, match=r"left out: water\.xyz, x0, x1, x2, x3 and 5 more"):
        assert len(open_dataset(shards)) == 6


def test_runs_beside_files(tmp_path):
    """Both are read; of a run's folder only geometries that it has besides are worth a word."""
    for name in ("run", "other"):
        (tmp_path / name).mkdir()
    ase.io.write(tmp_path / "run" / "POSCAR", bulk("Cu"), format="vasp")
    ase.io.write(tmp_path / "run" / "POSCAR_2", bulk("Cu"), format="vasp")
    (tmp_path / "run" / "INCAR").touch()
    ase.io.write(tmp_path / "other" / "a.xyz", molecule("CO"))
    ase.io.write(tmp_path / "b.xyz", molecule("H2O"))
    with pytest.warns(InputWarning, match=r"left out: other/, run/POSCAR_2;"):
        assert open_dataset(tmp_path).n_atoms.tolist() == [1, 3]


def test_unusable_paths_are_named(folder):
    (folder / "empty").mkdir()
    for name, message in (
        ("missing.lmdb", "no such file or folder"),
        ("notes.txt", "no safe reader"),
        ("empty", "the folder holds no LMDB and no structure file"),
    ):
        with pytest.raises(InputError, match=f"{name}: {message}"):
            open_dataset(folder / name)


@pytest.mark.slow
def test_text_is_utf8_whatever_the_locale_says(tmp_path):
    (tmp_path / "a.xyz").write_text("1\nof 2 Å\nH 0 0 0\n", encoding="utf-8")
    (tmp_path / "b.smi").write_text("C Sumpfgas für Ö\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text("smiles,Länge\nO,1\n", encoding="utf-8")
    code = """
import io, sys
from molflt.data.open import open_dataset
assert io.text_encoding(None) == "locale" and io.open(sys.argv[1] + "/b.smi").encoding.lower() != "utf-8"
print(*open_dataset(sys.argv[1]).n_atoms, *open_dataset("-").n_atoms)
"""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("RDBASE", None)
    done = subprocess.run(
        [ascii_python(), "-c", code, str(tmp_path)], env=environment, input="C Öl\n".encode(), capture_output=True
    )
    assert done.stdout.split() == [b"1", b"5", b"3", b"5"], done.stderr


def test_inputs_of_all_kinds(folder, monkeypatch):
    monkeypatch.chdir(folder)
    dataset = resolve_inputs(["b.extxyz", "CCO", "shards/*.lmdb", "[Na+].[Cl-]", "*.xyz"])
    shards = [f"shards/{k}.lmdb#{j}" for k in range(2) for j in range(3)]
    assert [data.name for data in dataset] == ["b.extxyz#0", "b.extxyz#1", "CCO", *shards, "[Na+].[Cl-]", "a.xyz#0"]
    assert dataset.n_atoms.tolist() == [3, 5, 9, 3, 4, 5, 3, 4, 5, 2, 2]
    # A path wins over a SMILES.
    (folder / "CC").mkdir()
    ase.io.write(folder / "CC" / "x.xyz", molecule("CO"))
    assert resolve_inputs(["CC"]).n_atoms.tolist() == [2]
    assert resolve_inputs(["CCC"]).n_atoms.tolist() == [11]


def test_an_input_that_is_nothing_says_what_was_tried():
    for text in ("nope.xyz", "none/*.lmdb"):
        with pytest.raises(InputError, match=rf"^{re.escape(text)}: no such file$"):
            resolve_inputs(["CCO", text])
    for text in ("hello world", ""):
        with pytest.raises(
            InputError, match=rf"^'{text}' is not a file, a folder, a pattern of files or a molecule: "
        ):
            resolve_inputs(["CCO", text])
    with pytest.raises(InputError, match="no inputs"):
        resolve_inputs([])


def test_subset(folder, make_structure):
    dataset = ListDataset([make_structure(k, 3 + k) for k in range(6)])
    part = SubsetDataset(dataset, np.array([4, 0, -1]))
    assert [int(d.sid) for d in part] == [4, 0, 5]
    assert part.n_atoms.tolist() == [7, 3, 8]
    assert part[-1].sid == 5
    with pytest.raises(IndexError):
        part[3]
    for bad in (6, -7):
        with pytest.raises(InputError, match="out of range"):
            SubsetDataset(dataset, [bad])
    nested = SubsetDataset(SubsetDataset(open_dataset(folder / "shards"), range(1, 5)), [3, 0])
    assert [int(d.sid) for d in pickle.loads(pickle.dumps(nested))] == [11, 1]


def test_concatenation(make_structure):
    parts = [ListDataset([make_structure(k) for k in span]) for span in ((0, 1), (), (2,), (3, 4, 5))]
    dataset = ConcatDataset(parts)
    assert [int(d.sid) for d in dataset] == list(range(6))
    assert dataset[-6].sid == 0
    for outside in (6, -7):
        with pytest.raises(IndexError):
            dataset[outside]
    assert pickle.loads(pickle.dumps(dataset))[3].sid == 3
    assert len(ConcatDataset([])) == 0
    assert ConcatDataset([]).n_atoms.shape == (0,)


def test_fingerprint_tells_contents_apart(folder, tmp_path):
    shards = folder / "shards"
    first = fingerprint(shards)
    assert len(first) == 64
    assert fingerprint(shards) == first
    # not of the place, nor of files that come and go
    moved = tmp_path / "elsewhere"
    shards.rename(moved)
    (moved / "0.lmdb.natoms").write_bytes(b"kept")
    (moved / "0.lmdb-lock").write_bytes(b"lock")
    assert fingerprint(moved) == first
    content = bytearray((moved / "1.lmdb").read_bytes())
    content[-1] ^= 1
    (moved / "1.lmdb").write_bytes(content)
    changed = fingerprint(moved)
    assert changed != first
    (moved / "1.lmdb").rename(moved / "2.lmdb")
    assert fingerprint(moved) not in (first, changed)
    with pytest.raises(InputError, match="no such"):
        fingerprint(moved / "none")


def test_fingerprint_of_a_long_file_reads_its_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "_WHOLE", 1000)
    monkeypatch.setattr(dataset, "_END", 100)
    path = tmp_path / "a.lmdb"
    prints = set()
    for position in (0, 99, 500, 1950, 1999, None):
        content = bytearray(2000)
        if position is not None:
            content[position] = 1
        path.write_bytes(content)
        prints.add(fingerprint(path))
    # the change in the middle goes unseen, and looks like no change
    assert len(prints) == 5
    path.write_bytes(bytes(2001))
    assert fingerprint(path) not in prints


@pytest.mark.parametrize("name", ["a.smi", "a.csv", "a.sdf", "a.xyz", "a.lmdb"])
def test_a_pipe_is_no_file(name, tmp_path):
    pipe = tmp_path / name
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"is a pipe or a device; write what comes from it to a file"):
        open_dataset(pipe)
