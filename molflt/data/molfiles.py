"""Molecules with positions from SDF, MOL and mol2 files."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rdkit import Chem
from torch_geometric.data import Data

from molflt.data.compression import BYTE_ORDER_MARK, bare_suffix, content, read_text
from molflt.data.datasets import ListDataset
from molflt.data.mol2 import Mol2, mol2_blocks
from molflt.data.notes import Notes
from molflt.data.rdkit_io import because, captured, from_mol, named
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.errors import InputError, noting

_END = b"$$$$"
_FIELD = re.compile(rb">.*?<(.+)>")
_PROPERTIES = (b"M  ", b"A  ", b"V  ", b"G  ", b"S  ")
_WITH_TEXT = (b"A  ", b"G  ")
"""Properties with a line of text behind them."""
_V3000_COUNTS = re.compile(rb"M  V30 COUNTS +(\d+)")


def read_sdf(
    path: str | os.PathLike[str],
    options: ReadOptions = DEFAULT,
) -> ListDataset:
    """Read every molecule of an SDF, MOL or mol2 file, with the positions it has, named ``PATH#INDEX (TITLE)``.

    Raises:
        InputError: no such file, no molecules, or a molecule that cannot be read.
    """
    file = Path(path)
    structures: list[Data] = []
    bad: dict[int, InputError] = {}
    notes = Notes(str(file))
    with captured():
        for index, record in enumerate(_records_of(file)):
            name = f"{file}#{index}"
            info: dict[str, Any] = {}
            # What is wrong is said with the record's own name where it has one.
            with noting(bad, index, name, info):
                mol = record.mol(name, notes, options)
                if mol is None:
                    with captured() as said:
                        record.mol(name, notes, options)
                        why = because(said())
                    raise InputError(f"{name}: not a readable molecule block, from line {record.first_line} on{why}")
                info |= _properties(mol)
                with noting(bad, index, named(name, info.get("name", "")), info):
                    options.refuse_stated(name, info, "property {!r}")
                    structure = from_mol(mol, name, options)
                    structure.name, structure.info = named(name, info.get("name", "")), info
                    structures.append(structure)
    notes.give()
    if not structures and not bad:
        raise InputError(f"{file}: holds no molecules")
    return ListDataset.read(structures, bad, options.on_bad, str(file))


def _records_of(file: Path) -> Iterator[Mol2 | _Record]:
    if bare_suffix(file) == ".mol2":
        yield from mol2_blocks(read_text(file), str(file))
    else:
        yield from _records(
            content(file).replace(BYTE_ORDER_MARK.encode(), b""), must_end=bare_suffix(file) != ".mol"
        )


def _properties(mol: Chem.Mol) -> dict[str, Any]:
    """The title and the properties of a molecule of an SDF file; those that are no text are passed over."""
    found: dict[str, Any] = {}
    # from_mol says what is wrong with properties.
    with suppress(UnicodeDecodeError, RuntimeError):
        if mol.HasProp("_Name") and (title := mol.GetProp("_Name").strip()):
            found["name"] = title
        found |= mol.GetPropsAsDict(includePrivate=False, includeComputed=False)
    return {key: value for key, value in found.items() if isinstance(value, str | int | float)}


@dataclass(frozen=True)
class _Record:
    """The lines of one record of an SDF file, without the one that ends it."""

    lines: list[bytes]
    first_line: int
    problem: str

    def mol(self, name: str, notes: Notes, options: ReadOptions) -> Chem.Mol | None:
        """The molecule, or None where RDKit cannot read it.

        Raises:
            InputError: an empty record or one that is cut short; lines that belong to nothing; two fields of one
                name; or atoms or fields that RDKit passes over.
        """
        if self.problem:
            self._refuse(name, len(self.lines) - 1, self.problem)
        if not any(line.strip() for line in self.lines):
            self._refuse(name, 0, "an empty record; remove it")
        stripped = [*map(bytes.rstrip, self.lines)]
        if b"M  END" not in stripped:
            self._refuse(name, len(self.lines) - 1, "the record has no line 'M  END'; it is cut short")
        end = stripped.index(b"M  END")
        n_atoms = self._announced(name, end)
        fields = self._fields(name, end + 1, notes)
        block = b"\n".join([*self.lines, b"$$$$", b""])
        mol = next(Chem.ForwardSDMolSupplier(io.BytesIO(block), sanitize=False, removeHs=False), None)
        if mol is None:
            return None
        if n_atoms is not None and mol.GetNumAtoms() != n_atoms:
            self._refuse(name, 3, f"announces {n_atoms} atoms, and RDKit reads {mol.GetNumAtoms()}")
        # from_mol says what is wrong with these.
        with suppress(UnicodeDecodeError, RuntimeError):
            if lost := fields - set(mol.GetPropNames(includePrivate=True)):
                self._refuse(name, end + 1, f"RDKit passes over the field '{min(lost):.40}'")
        return mol

    def _refuse(self, name: str, k: int, why: str) -> NoReturn:
        raise InputError(f"{name}: line {self.first_line + max(k, 0)}: {why}")

    def _announced(self, name: str, end: int) -> int | None:
        """The number of atoms that the record states, after a check of the lines that follow atoms and bonds."""
        counts = self.lines[3] if end > 3 else b""
        if b"V3000" in counts:
            found = next(filter(None, map(_V3000_COUNTS.match, self.lines[:end])), None)
            return None if found is None else int(found[1])
        if not counts[:3].strip().isdigit() or not counts[3:6].strip().isdigit():
            self._refuse(name, 3, "expected the numbers of atoms and bonds, three columns each")
        n_atoms, n_bonds = int(counts[:3]), int(counts[3:6])
        k = 4 + n_atoms + n_bonds
        if k > end:
            self._refuse(name, end, f"{n_atoms} atoms and {n_bonds} bonds are announced, and the block ends before")
        while k < end:
            line = self.lines[k]
            if line.strip() and not line.startswith(_PROPERTIES):
                self._refuse(name, k, f"more lines than the {n_atoms} atoms and {n_bonds} bonds that are announced")
            k += 2 if line.startswith(_WITH_TEXT) else 1
        return n_atoms

    def _fields(self, name: str, start: int, notes: Notes) -> set[str]:
        """The names of the fields behind the molecule."""
        found: set[str] = set()
        within = False
        for k in range(start, len(self.lines)):
            line = self.lines[k]
            if not line.strip():
                within = False
            elif line.startswith(b">") and (not within or _FIELD.match(line)):
                if within:
                    self._refuse(name, k, "no blank line before this field")
                within = True
                if (match := _FIELD.match(line)) is None:
                    self._refuse(name, k, "a field without a name in <>")
                field = match[1].decode("utf-8", "replace")
                if field in found:
                    self._refuse(name, k, f"a second field '{field:.40}'; leave one")
                if field.startswith("_") and not field.startswith("__"):
                    notes.add("fields with names that begin with '_' are not read")
                found.add(field)
            elif not within:
                self._refuse(name, k, "expected a field, > <NAME>, or the end of the record, $$$$")
        return found


def _records(raw: bytes, must_end: bool) -> Iterator[_Record]:
    """The records of an SDF file; what follows the last ``$$$$`` is one where it is not blank."""
    lines = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    start = 0
    for k, line in enumerate(lines):
        if line.startswith(_END):
            yield _Record(lines[start:k], start + 1, "")
            start = k + 1
    if any(line.strip() for line in lines[start:]):
        cut = "ends without $$$$: cut short; a file of one molecule without that line is to be named .mol"
        yield _Record(lines[start:], start + 1, cut if must_end or start else "")
