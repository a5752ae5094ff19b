"""Frames of xyz and extended xyz files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import IO, Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.constraints import FixAtoms, FixCartesian
from ase.io.extxyz import set_calc_and_arrays

from molflt.data.extxyz import PLAIN, has_keys, parse_comment, parse_properties, read_column, reals
from molflt.data.text import Notes, is_label
from molflt.errors import InputError
from molflt.terminal_text import shown

_MOST_DIGITS = 12
_FEWEST = 4
"""Fewest words of a row."""
_QM9 = ("A", "B", "C", "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "U0", "U", "H", "G", "Cv")
"""Values after ``gdb`` and a number in the comment of a raw QM9 file, named as in its readme."""
_STATED = re.compile(r"(?:lattice|properties|pbc|cell|energy)[\s:\"'\[(]*[-+]?\.?\d", re.IGNORECASE)


def xyz_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms | InputError]:
    """Yield every frame of an xyz file, as ASE reads it if it is well-formed.

    The comment of a frame alone decides whether that frame is extended xyz. A frame is an ``Atoms`` with the keys of
    the comment in ``info`` (a free text as ``comment``), its columns as arrays, and a calculator with results such as
    ``energy``, ``forces`` and ``stress``. Raw QM9 files are read as well.

    Args:
        stream: text with universal newlines, from its start.
        where: the file, for messages.
        notes: collects remarks on ignored content.

    Returns:
        Frames in order; in place of an unreadable one its error, with the line.

    Raises:
        InputError: the boundaries of a frame are unclear; with the line.
    """
    lines = _Lines(stream)
    found: Atoms | InputError | None = None
    for index in count():
        try:
            frame = _next_frame(lines, f"{where}#{index}")
        except InputError:
            # An error in the frame before may be the reason why its end was missed.
            if isinstance(found, InputError):
                raise found from None
            raise
        except UnicodeDecodeError as error:
            raise InputError(
                f"{where}#{index}: not UTF-8 text, from line {lines.n_read + 1} on: {error.reason}; save it as UTF-8"
            ) from error
        if frame is None:
            return
        try:
            found = _atoms(frame, notes)
        except InputError as error:
            # A row of too few words may be the first line of the next frame.
            if any(len(row.split()) < _FEWEST for row in frame.rows):
                raise
            found = error
        yield found


class _Lines:
    """Lines of a stream, counted."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = iter(stream)
        self._ahead: list[str] = []
        self.n_read = 0

    def take(self, n: int) -> list[str]:
        """Return the next lines, fewer if the stream ends."""
        found, self._ahead = self._ahead[:n], self._ahead[n:]
        found += islice(self._stream, n - len(found))
        self.n_read += len(found)
        return found

    def peek(self) -> str:
        """Return the next line, stripped, without consuming it; empty at the end."""
        self._ahead = self._ahead or list(islice(self._stream, 1))
        return self._ahead[0].strip() if self._ahead else ""


@dataclass
class _Frame:
    """Lines of a frame.

    Attributes:
        where: file and index.
        line: number of the first line, which holds the number of atoms; lines are counted from 1.
        comment: the second line.
        rows: a line for each atom.
        vectors: lines ``VEC`` after them.
        tail: other lines after them, of QM9.
    """

    where: str
    line: int
    comment: str
    rows: list[str]
    vectors: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)

    def at(self, row: int = -1) -> str:
        """Location of a row, for messages; by default of the comment."""
        return f"{self.where}, line {self.line + 2 + row}"


def _next_frame(lines: _Lines, where: str) -> _Frame | None:
    """Read the next frame, by its stated number of atoms; None at the end."""
    word = ""
    while not word:
        if not (found := lines.take(1)):
            return None
        # byte-order marks occur inside concatenated files
        word = found[0].strip().strip("\ufeff")
    line = lines.n_read
    here = f"{where}, line {line}"
    if not (word.isascii() and word.isdigit()):
        before = "" if where.endswith("#0") else "; or the frame before announces too few atoms"
        raise InputError(
            f"{here}: {shown(word)} stands where the number of atoms of a frame should. A frame is that number, "
            f"alone, a comment, and a line SYMBOL X Y Z for every atom{before}"
        )
    n_atoms = int(word) if len(word) <= _MOST_DIGITS else 10**_MOST_DIGITS
    comment, rows = lines.take(1), lines.take(n_atoms)
    if not comment or len(rows) < n_atoms:
        raise InputError(
            f"{here}: the frame announces {word[:_MOST_DIGITS]} atoms, and the file ends after {len(rows):,} of "
            "them; it is cut short, or that number is wrong"
        )
    frame = _Frame(where, line, comment[0].strip(), rows)
    while lines.peek()[:3].upper() == "VEC":
        frame.vectors += lines.take(1)
    # some leave these lines out
    if _is_qm9(frame.comment) and lines.peek() and not lines.peek().isdigit():
        frame.tail = lines.take(3)
    return frame


def _atoms(frame: _Frame, notes: Notes) -> Atoms:
    if has_keys(frame.comment):
        info = parse_comment(frame.comment, frame.at())
    elif _is_qm9(frame.comment):
        info = _qm9_info(frame, notes)
    else:
        info = {"comment": frame.comment} if frame.comment else {}
        if _STATED.search(frame.comment):
            notes.add(
                "the comment is free text, of which nothing is read, but it seems to hold a cell or an energy; write "
                'Lattice="AX AY AZ BX BY BZ CX CY CZ" or energy=VALUE',
                frame.where,
            )
    cell, pbc = _cell(frame, info)
    arrays = _arrays(frame, info.pop("Properties", None), notes)
    for name in arrays:
        if name in info and name in all_properties:
            raise InputError(
                f"{frame.at()}: '{name}' is a key and a column: two things of one name; rename one of them"
            )
    numbers, positions = arrays.pop("numbers"), arrays.pop("positions")
    charges = arrays.pop("initial_charges", None)
    atoms = Atoms(numbers=numbers, positions=positions, charges=charges, cell=cell, pbc=pbc, info=info)
    if (mask := arrays.pop("move_mask", None)) is not None:
        fixed = ~mask.astype(bool)
        atoms.set_constraint(
            FixAtoms(mask=fixed) if fixed.ndim == 1 else [FixCartesian(i, mask=row) for i, row in enumerate(fixed)]
        )
    set_calc_and_arrays(atoms, arrays)
    return atoms


def _cell(frame: _Frame, info: dict[str, Any]) -> tuple[np.ndarray | None, Any]:
    """Return cell, in Å, and periodicity, removing them from ``info``."""
    lattice, pbc = info.pop("Lattice", None), info.pop("pbc", None)
    if pbc is not None:
        given = np.asarray(pbc).reshape(-1).tolist()
        if len(given) not in (1, 3) or any(repeats not in (0, 1) for repeats in given):
            raise InputError(f'{frame.at()}: pbc is {shown(pbc)}; write pbc="T T F", T for a direction that repeats')
        pbc = [bool(repeats) for repeats in given] * (3 // len(given))
    cell = None
    if lattice is not None:
        vectors = np.asarray(lattice)
        if vectors.shape != (9,) or vectors.dtype.kind not in "if" or not np.isfinite(vectors).all():
            raise InputError(
                f"{frame.at()}: Lattice is {shown(lattice)}, expected nine numbers, in Å; write "
                'Lattice="AX AY AZ BX BY BZ CX CY CZ"'
            )
        cell, pbc = vectors.reshape(3, 3).astype(np.float64), True if pbc is None else pbc
    if not frame.vectors:
        return cell, pbc
    if cell is not None or pbc is not None:
        raise InputError(f"{frame.at()}: Lattice or pbc stands beside lines VEC; leave one of them out")
    cell = np.zeros((3, 3))
    for k, line in enumerate(frame.vectors):
        words = line.split()
        vector = reals([words[1:]])
        if k == 3 or words[0].upper() != f"VEC{k + 1}" or vector is None or vector.shape != (1, 3):
            raise InputError(
                f"{frame.at(len(frame.rows) + k)}: expected VEC1 X Y Z, then VEC2 and VEC3 if they repeat"
            )
        cell[k] = vector[0]
    return cell, [k < len(frame.vectors) for k in range(3)]


def _arrays(frame: _Frame, properties: Any, notes: Notes) -> dict[str, np.ndarray]:
    """Columns by ASE's names, among them ``numbers`` (n_atoms,) and ``positions`` (n_atoms, 3)."""
    try:
        columns = parse_properties(PLAIN if properties is None else str(properties))
    except ValueError as error:
        raise InputError(f"{frame.at()}: 'Properties' {error}") from error
    width = columns[-1].start + columns[-1].width
    rows = [row.split() for row in frame.rows]
    if any(len(words) != width for words in rows):
        for i, words in enumerate(rows):
            if len(words) < width or (len(words) > width and properties is not None):
                expected = "SYMBOL X Y Z" if properties is None else f"the {width} columns of 'Properties'"
                raise InputError(f"{frame.at(i)}: expected {expected}, found {len(words)}: {shown(' '.join(words))}")
        notes.add("columns behind X, Y and Z are not read; name them in Properties=...", frame.where)
    texts = list(zip(*rows, strict=False)) or [()] * width
    arrays: dict[str, np.ndarray] = {}
    for column in columns:
        array = read_column(column, texts[column.start : column.start + column.width], frame.at)
        name = "numbers" if column.name == "symbols" else column.name
        if name in arrays and not (same := array == arrays[name]).all():
            row = int(np.argmin(same))
            raise InputError(f"{frame.at(row)}: symbol and atomic number differ: {shown(frame.rows[row].strip())}")
        if column.name == "symbols" and any(map(is_label, set(texts[column.start]))):
            notes.add("labels of atoms, such as C1 or Fe_2, are read as their elements", frame.where)
        arrays[name] = array
    return arrays


def _is_qm9(comment: str) -> bool:
    words = comment.split()
    return len(words) == 2 + len(_QM9) and words[0] == "gdb" and words[1].isdigit()


def _qm9_info(frame: _Frame, notes: Notes) -> dict[str, Any]:
    """Properties of the molecule of a raw QM9 file."""
    words = frame.comment.split()
    if (values := reals([words[2:]])) is None:
        raise InputError(f"{frame.at()}: a comment of QM9 has 15 numbers behind 'gdb {words[1]}'")
    info = {"name": f"gdb {words[1]}", **dict(zip(_QM9, values[0].tolist(), strict=True))}
    if frame.tail:
        frequencies = reals([frame.tail[0].split()])
        if frequencies is None or len(frame.tail) < 3 or not frame.tail[2].startswith("InChI="):
            end = frame.at(len(frame.rows))
            raise InputError(f"{end}: expected three lines of QM9 behind the atoms: frequencies, SMILES and InChI")
        info["frequencies"] = frequencies[0]
        for name, line in zip(("smiles", "inchi"), frame.tail[1:], strict=True):
            info |= dict(zip((name, f"{name}_relaxed"), line.split(), strict=False))
    if frame.rows and len(frame.rows[0].split()) == 5:
        info["Properties"] = f"{PLAIN}:mulliken:R:1"
    notes.add(
        "raw QM9; its properties keep their names and units, for U0, U, H, G, zpve, homo, lumo and gap Hartree "
        "(data.label=U0 data.unit=Hartree)"
    )
    return info
