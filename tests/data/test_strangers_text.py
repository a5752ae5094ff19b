"""Text files that ask their reader for more than they hold."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.build import molecule
from ase.io import write

from molflt.data import strangers_text
from molflt.data.ase_io import read_ase
from molflt.data.rdkit_io import from_smiles
from molflt.data.records import to_data
from molflt.errors import InputError
from molflt.printable import printable


@pytest.mark.parametrize("count", ["1000", "100000000", "9" * 30])
@pytest.mark.parametrize("name", ["a.extxyz", "a.xyz", "a.xyz.gz"])
def test_columns_are_counted_before_memory_is_taken(
    count: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_to_be_called(*_: Any, **__: Any) -> None:
        raise AssertionError("ASE was asked")

    monkeypatch.setattr("ase.io.iread", not_to_be_called)
    for spec in (f"Properties=species:S:1:pos:R:{count}", f'e=1 pROPERTIES = "species:S:1:pos:R:3:x:I:{count}"'):
        text = f"1\n{spec}\nH 0 0 0\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        with pytest.raises(InputError, match="'Properties' names 1,000 columns or more"):
            read_ase(tmp_path / name)


def test_columns_of_a_later_frame(tmp_path: Path) -> None:
    file = tmp_path / "a.extxyz"
    write(file, [molecule("H2O")] * 2)
    file.write_text(file.read_text() + "1\nProperties=species:S:1:pos:R:99999999\nH 0 0 0\n")
    with pytest.raises(InputError, match="columns or more"):
        read_ase(file)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_what_unpacks_to_hundreds_of_times_its_size(ending: str, pack: Any, tmp_path: Path) -> None:
    file = tmp_path / f"a.xyz.{ending}"
    file.write_bytes(pack(b"1" * (70 << 20)))
    with pytest.raises(InputError, match=f"a.xyz.{ending}.*refused, it unpacks to more than 200 times"):
        read_ase(file)


def test_honest_compressed_files_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_text, "_ALWAYS_ALLOWED", 0)
    write(tmp_path / "a.xyz.gz", [molecule("C6H6")] * 20, format="extxyz")
    assert len(read_ase(tmp_path / "a.xyz.gz")) == 20


def test_molecules_too_large_for_a_geometry() -> None:
    with pytest.raises(InputError, match=r"atoms are too many .* give one"):
        from_smiles("C" * 1000)


def test_smiles_that_are_no_text() -> None:
    with pytest.raises(InputError, match="not a valid SMILES"):
        from_smiles("CC\udc80")


def test_names_do_not_command_terminals() -> None:
    record = {
        "pos": np.zeros((1, 3)),
        "atomic_numbers": [1],
        "name": "a\x1b[2Jb\nc\ud800\u202ed",
        "adsorbate": "\x9bx",
    }
    data = to_data(record, "x")
    assert data.name == r"a\x1b[2Jb\nc\ud800\u202ed"
    assert data.adsorbate == r"\x9bx"
    assert printable("Öl ü → 日本 'q'") == "Öl ü → 日本 'q'"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize("count", ["20000000", "9" * 30])
@pytest.mark.parametrize("before", ["", '1\nLattice="5 0 0 0 5 0 0 0 5" Properties=species:S:1:pos:R:3\nH 0 0 0\n'])
def test_atoms_are_counted_before_they_are_read(count: str, before: str, tmp_path: Path) -> None:
    path = tmp_path / "a.extxyz"
    path.write_text(f"{before}{count}\nProperties=species:S:1:pos:R:3\nH 0 0 0\n")
    with pytest.raises(InputError, match=r"a\.extxyz: a frame announces .* atoms, and the file ends after 2 lines"):
        read_ase(path)


def test_a_comment_may_be_a_number_and_a_frame_have_vectors(tmp_path: Path) -> None:
    """What ASE accepts passes: a large number as the comment of a frame is no number of atoms."""
    path = tmp_path / "a.extxyz"
    water = "3\n20000000 energy=1.0\nO 0 0 0\nH 0 0 1\nH 0 1 0\n"
    path.write_text(2 * water)
    assert [len(data.positions) for data in read_ase(path)] == [3, 3]
    strangers_text.refuse_counts(iter("1\nx\nH 0 0 0\nVEC1 5 0 0\n1\nx\nH 0 0 0\n".splitlines(True)), "x")
