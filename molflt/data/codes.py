"""Structures from DFTB+ gen, XCrySDen xsf, Gaussian cube and Quantum ESPRESSO input."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import IO

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import atomic_numbers
from ase.io.cube import read_cube
from ase.io.espresso import read_espresso_in, read_fortran_namelist
from ase.units import Bohr, Hartree

from molflt.data.text import Line, Notes, hydrogen_of, numbered, numbers, refuse
from molflt.errors import InputError

_SPECIES = re.compile(r"([A-Za-z]{1,2})(?:[\d_].*)?")
_ENERGY = re.compile(r"^[ \t]*#[^\n]*\benergy\b[^\n]*", re.MULTILINE | re.IGNORECASE)
_GRID = re.compile(r"^[ \t]*(BEGIN|END)_BLOCK_DATAGRID_?[23]D", re.MULTILINE)
_PERIODIC = {"CRYSTAL": 3, "SLAB": 2, "POLYMER": 1}
"""Number of periodic axes."""
_CASTEP = "castep2cube"


def gen_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield the structure of a DFTB+ gen file.

    Raises:
        InputError: an unexpected line, more or fewer lines than atoms, or a helix.
    """
    lines = numbered(stream, "#")
    head = lines[0].words if lines else []
    if len(head) != 2 or not head[0].isdigit() or head[1].upper() not in ("C", "S", "F"):
        refuse(where, lines, "expected the number of atoms and C, S or F (helices, H, are not read)")
    n, kind = int(head[0]), head[1].upper()
    expected = 2 + n + (0 if kind == "C" else 4)
    if len(lines) != expected:
        refuse(where, lines[expected:] or lines[-1:], f"{n} atoms make {expected} lines, and there are {len(lines)}")
    symbols = []
    for name in lines[1].words:
        match = _SPECIES.fullmatch(name)
        symbol = hydrogen_of(match[1].capitalize(), notes) if match else ""
        if match is None or symbol not in atomic_numbers:
            refuse(where, lines[1:], f"expected symbols of elements, found '{name:.40}'")
        if len(name) > len(match[1]):
            notes.add("numbers in the names of species, as in Fe1, are ignored")
        symbols.append(symbol)
    order, positions, vectors = [], [], []
    for line in lines[2 : 2 + n]:
        row, species = numbers(line.words[2:]), line.words[1] if len(line.words) == 5 else ""
        if row is None or not species.isdigit() or not 0 < int(species) <= len(symbols):
            refuse(where, [line], "expected the number of an atom, that of its species, and three coordinates")
        order.append(symbols[int(species) - 1])
        positions.append(row)
    for line in lines[2 + n :]:
        row = numbers(line.words)
        if row is None or len(row) != 3:
            refuse(where, [line], "expected three numbers, of the origin or a lattice vector")
        vectors.append(row)
    if kind == "C":
        yield Atoms(order, positions)
    elif kind == "S":
        yield Atoms(order, positions, cell=vectors[1:], pbc=True)
    else:
        yield Atoms(order, scaled_positions=positions, cell=vectors[1:], pbc=True)


def xsf_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield every structure of an xsf file, with forces if it has them.

    Raises:
        InputError: an unexpected line, more or fewer structures than ANIMSTEPS says, or more or fewer atoms than
            announced.
    """
    text = stream.read()
    if "#" in text and (energy := _ENERGY.search(text)):
        notes.add(f"a comment names an energy, which is not read: '{energy[0].strip():.80}'")
    yield from _Xsf(numbered(_without_grids(text, where).split("\n"), "#"), where, notes).frames


def _without_grids(text: str, where: str) -> str:
    """Return the part of an xsf file before its volume data, which are at its end."""
    marks = list(_GRID.finditer(text)) if "DATAGRID" in text else []
    if not marks:
        return text
    for k, mark in enumerate(marks):
        is_end = mark[1] == "END"
        behind = text[mark.end() : marks[k + 1].start() if k + 1 < len(marks) else None].split("\n")[1:]
        if is_end != (k % 2 == 1) or (is_end and any(map(str.strip, behind))) or (not is_end and mark is marks[-1]):
            line = text.count("\n", 0, mark.start()) + 1
            raise InputError(f"{where}: line {line}: a block of volumes without an end, or with something behind it")
    return text[: marks[0].start()]


class _Xsf:
    """Parser of the blocks of an xsf file.

    Attributes:
        frames: the structures.
    """

    def __init__(self, lines: Sequence[Line], where: str, notes: Notes) -> None:
        self.frames: list[Atoms] = []
        self._lines, self._where, self._notes, self._at = lines, where, notes, 0
        n_announced, periodic = 1, 0
        cell: list[list[float]] = []
        while self._at < len(lines):
            line = lines[self._at]
            key, rest = line.words[0].upper(), line.words[1:]
            self._at += 1
            if key == "ANIMSTEPS" and line is lines[0] and len(rest) == 1 and rest[0].isdigit():
                n_announced = int(rest[0])
            elif key in _PERIODIC and not (periodic or self.frames or rest):
                periodic = _PERIODIC[key]
            elif key in ("PRIMVEC", "CONVVEC") and periodic:
                rows = self._numbers(self._rows(3, (3,), "lattice vectors"))
                cell = rows if key == "PRIMVEC" else cell
            elif key == "PRIMCOORD" and cell:
                self._add(line, self._counted(), cell, periodic)
            elif key == "CONVCOORD" and cell:
                self._counted()
            elif key == "ATOMS" and not periodic:
                self._add(line, self._rows(None, (4, 7), "atoms"), [], 0)
            elif key == "BEGIN_INFO":
                while self._at < len(lines) and lines[self._at - 1].words[0].upper() != "END_INFO":
                    self._at += 1
            elif key != "MOLECULE" or self.frames or rest:
                refuse(where, [line], f"expected a keyword of xsf, or the end of the file, found '{line.text:.40}'")
        sizes = sorted(map(len, self.frames))
        if not periodic and sizes and sizes[0] != sizes[-1]:
            notes.add(f"structures of {sizes[0]} to {sizes[-1]} atoms, which the file itself does not count")
        if len(sizes) != n_announced:
            refuse(where, lines[-1:], f"{n_announced} structures should end here, and {len(sizes)} do")

    def _rows(self, n: int | None, widths: tuple[int, ...], what: str) -> list[Line]:
        """Take the next lines with one of these numbers of words; ``n`` lines."""
        end = len(self._lines) if n is None else self._at + n
        rows = list(takewhile(lambda line: len(line.words) in widths, self._lines[self._at : end]))
        if not rows or (n is not None and len(rows) != n):
            after = self._lines[self._at + len(rows) :] or self._lines[-1:]
            refuse(self._where, after, f"expected {n or ''} {what}, found {len(rows)}")
        self._at += len(rows)
        return rows

    def _counted(self) -> list[Line]:
        line = self._lines[self._at : self._at + 1]
        if not line or len(line[0].words) > 2 or not line[0].words[0].isdigit():
            refuse(self._where, line or self._lines[-1:], "expected the number of atoms")
        self._at += 1
        return self._rows(int(line[0].words[0]), (4, 7), "atoms")

    def _numbers(self, rows: Sequence[Line]) -> list[list[float]]:
        """Convert lines of 3, 4 or 7 words to numbers, all but a symbol."""
        found = []
        for row in rows:
            values = numbers(row.words[len(row.words) % 3 :])
            if values is None:
                refuse(self._where, [row], f"expected numbers, found '{row.text:.60}'")
            found.append(values)
        return found

    def _add(self, line: Line, rows: Sequence[Line], cell: list[list[float]], periodic: int) -> None:
        """Add a structure, whose keyword may state its index."""
        if line.words[1:] not in ([], [str(len(self.frames) + 1)]):
            refuse(self._where, [line], f"step {line.words[1]} where step {len(self.frames) + 1} should be")
        if len({len(row.words) for row in rows}) > 1:
            refuse(self._where, rows, "some atoms of this block have forces, and some have none")
        elements = []
        for row in rows:
            symbol = row.words[0]
            number = int(symbol) if symbol.isdigit() else atomic_numbers.get(hydrogen_of(symbol.title(), self._notes))
            if number is None:
                refuse(self._where, [row], f"'{symbol:.40}' is not an element")
            elements.append(number)
        values = np.array(self._numbers(rows))
        pbc = [axis < periodic for axis in range(3)]
        atoms = Atoms(elements, values[:, :3], cell=cell or None, pbc=pbc)
        if values.shape[1] == 6:
            atoms.calc = SinglePointCalculator(atoms, forces=values[:, 3:] * Hartree)
        self.frames.append(atoms)


def cube_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield the structure of a cube file, as an isolated molecule.

    The format has no periodicity. Lengths are in Bohr, or in Å if the numbers of voxels are negative. A file of
    CASTEP is of a crystal.

    Raises:
        InputError: an unexpected line, or more or fewer numbers than voxels.
    """
    comments = [next(stream, ""), next(stream, "")]
    head = [Line(number, next(stream, "").split()) for number in range(3, 7)]
    for line in head:
        words = line.words
        n_words = (4, 5) if line.number == 3 else (4,)
        if len(words) not in n_words or not words[0].lstrip("-").isdigit() or numbers(words) is None:
            refuse(where, [line], "expected a whole number and three lengths, as in the header of a cube")
    n, counts = int(head[0].words[0]), [int(line.words[0]) for line in head[1:]]
    if 0 in counts or len({count > 0 for count in counts}) != 1:
        refuse(where, head[1:], "numbers of voxels are all positive (lengths in Bohr), or all negative (in Å)")
    rows = []
    for number in range(7, 7 + abs(n)):
        rows.append(Line(number, next(stream, "").split()))
        if len(rows[-1].words) != 5 or not rows[-1].words[0].isdigit() or numbers(rows[-1].words) is None:
            refuse(where, rows[-1:], f"expected one of {abs(n)} atoms: its number, its charge, three coordinates")
    n_voxels = abs(counts[0] * counts[1] * counts[2])
    n_values = int(head[0].words[4]) if len(head[0].words) == 5 else 1
    found = 0
    orbitals = next(stream, "").split() if n < 0 else []
    if n < 0:
        # First the number of orbitals and their indices, on as many lines as they need.
        n_values = int(orbitals[0]) if orbitals and orbitals[0].isdigit() else 0
        found = len(orbitals) - 1 - n_values
    found += sum(len(line.split()) for line in stream)
    if found != n_voxels * n_values:
        where_from = Line(7 + abs(n), [])
        refuse(where, [where_from], f"{found} values from here on, and {n_voxels * n_values} are announced")
    is_castep = _CASTEP in comments[1]
    text = ["", _CASTEP if is_castep else "", " ".join([str(abs(n)), *head[0].words[1:4]])]
    text += [" ".join([str(abs(count)), *line.words[1:]]) for count, line in zip(counts, head[1:], strict=True)]
    atoms: Atoms = read_cube(io.StringIO("\n".join(text + [row.text for row in rows])), read_data=False)["atoms"]
    if counts[0] < 0:
        atoms.set_cell(np.asarray(atoms.cell) / Bohr)
        atoms.positions /= Bohr
    if not is_castep:
        atoms.pbc, atoms.cell = False, np.zeros((3, 3))
        notes.add(
            "a cube does not record periodicity: read as an isolated molecule; give a crystal in another format"
        )
    yield atoms


_CARDS = {
    *("ATOMIC_SPECIES", "ATOMIC_POSITIONS", "K_POINTS", "ADDITIONAL_K_POINTS", "CELL_PARAMETERS", "CONSTRAINTS"),
    *("OCCUPATIONS", "ATOMIC_VELOCITIES", "ATOMIC_FORCES", "SOLVENTS", "HUBBARD"),
}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_SIGNS = re.compile(r"\W")
_KEY = re.compile(r"(\w+(?:\s*\([^)=]*\))?)\s*=")
_ISOTOPE = re.compile(r"[DT](?![a-z])")
_MEANT = {"tot_magnetization": (-1, 0), "assume_isolated": ("none",), "starting_charge(1)": (0,)}
"""Variables that describe an unsupported state, and their harmless values."""


def pwi_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield the structure of a pw.x input; ``info["charge"]`` is a nonzero ``tot_charge``.

    Raises:
        InputError: duplicate names, a card whose length contradicts nat and ntyp, or a lattice given by ibrav instead
            of vectors.
    """
    text, cards = _scan(stream.read().split("\n"), where)
    system = read_fortran_namelist(io.StringIO("\n".join(text)))[0].get("system", {})
    if system.get("ibrav") != 0:
        raise InputError(
            f"{where}: &SYSTEM has {'ibrav=' + str(system['ibrav']) if 'ibrav' in system else 'no ibrav'}; only "
            "lattice vectors are read: give ibrav=0 and a card CELL_PARAMETERS"
        )
    for card, n in (
        ("ATOMIC_SPECIES", system.get("ntyp")),
        ("ATOMIC_POSITIONS", system.get("nat")),
        ("CELL_PARAMETERS", 3),
    ):
        if card not in cards:
            raise InputError(f"{where}: has no card {card}; add it")
        head, *rows = cards[card]
        if len(rows) != n:
            refuse(where, [head], f"{card} has {len(rows)} lines, and should have {n}")
    moments = {}
    for k, row in enumerate(cards["ATOMIC_SPECIES"][1:], 1):
        moments[row.words[0]] = system.get(f"starting_magnetization({k})", 0.0)
    labels = []
    for row in cards["ATOMIC_POSITIONS"][1:]:
        labels.append(row.words[0])
        if len(row.words) not in (4, 7) or row.words[0] not in moments or not set(row.words[4:]) <= {"0", "1"}:
            refuse(where, [row], "expected a species of ATOMIC_SPECIES, three coordinates, and three flags or none")
    for key, silent in _MEANT.items():
        if key in system and system[key] not in silent:
            notes.add(f"{key}={system[key]} is ignored; every input of pw.x is read as periodic along three axes")
    for card in ("ATOMIC_VELOCITIES", "ATOMIC_FORCES", "CONSTRAINTS"):
        if card in cards:
            notes.add(f"the card {card} is ignored")
    for card, (head, *rows) in cards.items():
        text.append(" ".join([card, *head.words[1:]]))
        for row in rows:
            words = [*row.words]
            if card in ("ATOMIC_SPECIES", "ATOMIC_POSITIONS") and (isotope := _ISOTOPE.match(words[0])):
                words[0] = hydrogen_of(isotope[0], notes) + words[0][1:]
            text.append(" ".join(words))
    atoms: Atoms = read_espresso_in(io.StringIO("\n".join(text)))
    if len(atoms) != len(labels):
        raise InputError(f"{where}: ATOMIC_POSITIONS has {len(labels)} lines, and ASE reads {len(atoms)} atoms")
    # ASE would apply those of Fe2 to Fe1 as well.
    atoms.set_initial_magnetic_moments([moments[label] for label in labels])
    if charge := system.get("tot_charge", 0.0):
        atoms.info["charge"] = charge
    yield atoms


def _plain(quoted: re.Match[str]) -> str:
    """Mask special characters in quoted text, and write it in single quotes, as ASE expects."""
    return f"'{_SIGNS.sub('_', quoted[0][1:-1])}'"


def _scan(lines: list[str], where: str) -> tuple[list[str], dict[str, list[Line]]]:
    """Split into namelists, without comments and quoted text, and the lines of every card."""
    namelists: list[str] = []
    cards: dict[str, list[Line]] = {}
    seen: set[str] = set()
    section = card = ""
    for number, text in enumerate(lines, 1):
        line = Line(number, _QUOTED.sub(_plain, text).split("!")[0].split())
        if not line.words or line.words[0].startswith("#"):
            continue
        first = line.words[0].upper()
        if not section and first.startswith("&"):
            section = first
        if section:
            for name in [first] * (first == section) + [section + key for key in _KEY.findall(line.text.upper())]:
                if name in seen:
                    refuse(where, [line], f"{name.removeprefix(section)} a second time; leave one")
                seen.add(name)
            namelists.append(line.text)
            if "/" in line.text:
                section = ""
        elif first in _CARDS:
            if first in cards:
                refuse(where, [line], f"{first} a second time; leave one")
            card = first
            cards[card] = [line]
        elif card:
            cards[card].append(Line(number, line.text.split("#")[0].split()))
        else:
            refuse(where, [line], f"expected a namelist or a card of pw.x, found '{line.text:.40}'")
    if section:
        raise InputError(f"{where}: the namelist {section} does not end in /; the file is cut short")
    return namelists, cards
