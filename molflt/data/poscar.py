"""Structures from POSCAR and CONTCAR, every line of which is accounted for before ASE reads them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from ase.io.vasp import atomtypes_outpot, read_vasp

from molflt.data.elements import hydrogen_of
from molflt.data.lines import are_numbers
from molflt.data.notes import Notes
from molflt.errors import InputError

_WORD = re.compile(r"([A-Z][a-z]?)(\d*)")
_FLAGS = {"T": "T", ".T": "T", "F": "F", ".F": "F"}


def poscar_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """The structure of a POSCAR or CONTCAR, with its velocities and constraints.

    Raises:
        InputError: a line that is not what should stand there, or lines behind the structure: more atoms than are
            announced, or a second structure.
    """
    yield _Poscar(stream.read().split("\n"), where, notes).atoms()


class _Poscar:
    """The lines of a POSCAR, and which of them are what."""

    def __init__(self, lines: Sequence[str], where: str, notes: Notes) -> None:
        self._lines, self._where, self._notes = [*lines], where, notes
        self._at = 0

    def atoms(self) -> Atoms:
        comment = self._next("a comment")
        scale = self._next("the scale of the cell").split()
        n_scales = next((k for k, word in enumerate(scale[:3]) if not are_numbers([word])), len(scale[:3]))
        if n_scales not in (1, 3) or (n_scales == 3 and any(float(word) <= 0 for word in scale[:3])):
            self._refuse("expected the scale of the cell: one number, or three that are positive")
        cell = [self._numbers("a lattice vector", 3) for _ in range(3)]
        if n_scales == 1 and float(scale[0]) < 0:
            # the volume; ASE would turn a left-handed cell inside out
            volume = abs(float(np.linalg.det([[float(word) for word in row.split()] for row in cell])))
            if volume == 0:
                self._refuse("the lattice vectors span no volume")
            scale = [repr(float(np.cbrt(-float(scale[0]) / volume)))]
        symbols, counts, n_header = self._species(comment)
        mode = self._next("'Direct' or 'Cartesian'").strip()
        selective = mode[:1].lower() == "s"
        if selective:
            mode = self._next("'Direct' or 'Cartesian'").strip()
        if mode[:1].lower() not in ("d", "c", "k"):
            self._refuse(f"expected 'Direct' or 'Cartesian', found '{mode:.40}'")
        order = [symbol for symbol, n in zip(symbols, counts, strict=True) for _ in range(n)]
        rows = [self._row(symbol, selective) for symbol in order]
        velocities = self._velocities(len(order))
        text = [comment, " ".join(scale[:n_scales]), *cell, " ".join(symbols), " ".join(map(str, counts))]
        text += [*(["Selective dynamics"] if selective else []), mode, *rows, *velocities, ""]
        atoms: Atoms = read_vasp(io.StringIO("\n".join(text)))
        if atoms.get_chemical_symbols() != order:
            raise InputError(f"{self._where}: line {n_header} announces {len(order)} atoms, and ASE reads {len(atoms)}")
        return atoms

    def _refuse(self, why: str) -> None:
        raise InputError(f"{self._where}: line {self._at}: {why}")

    def _next(self, what: str) -> str:
        if self._at == len(self._lines) or (self._at == len(self._lines) - 1 and not self._lines[-1]):
            raise InputError(f"{self._where}: line {self._at + 1}: expected {what}, and the file ends; it is cut short")
        self._at += 1
        return self._lines[self._at - 1]

    def _numbers(self, what: str, n: int, more: bool = True) -> str:
        line = self._next(what)
        words = line.split()
        if len(words) < n or (len(words) > n and not more) or not are_numbers(words[:n]):
            self._refuse(f"expected {what} ({n} number{'s' * (n > 1)}), found '{line.strip():.60}'")
        return " ".join(words[:n])

    def _species(self, comment: str) -> tuple[list[str], list[int], int]:
        """Symbols and numbers of atoms, and the line of the numbers."""
        line = self._next("the symbols of the elements")
        symbols = None
        if not line.split()[:1] or not line.split()[0].isdigit():
            # POTCAR's names, as VASP writes them: Na_pv/6a2f546d
            words = [word.split("/")[0].split("_")[0] for word in line.split("!")[0].split()]
            symbols = [hydrogen_of(word, self._notes) for word in words]
            if unknown := [word for word in symbols if word not in atomic_numbers]:
                self._refuse(f"expected symbols of elements, found '{unknown[0]:.40}'")
            line = self._next("the numbers of atoms")
        words = line.split("!")[0].split()
        if not words or not all(word.isdigit() and len(word) < 10 for word in words):
            self._refuse(f"expected the numbers of atoms of each element, found '{line.strip():.60}'")
        counts = [int(word) for word in words]
        if sum(counts) > len(self._lines):
            self._refuse(f"{sum(counts)} atoms are announced, and the file has {len(self._lines)} lines")
        found = [_WORD.fullmatch(word) for word in comment.split()]
        named = [match for match in found if match is not None and match[1] in atomic_numbers]
        # Other comments are words that may look like elements.
        plain = len(named) == len(found) == len(counts)
        plain &= all(not match[2] or int(match[2]) == n for match, n in zip(named, counts, strict=False))
        from_comment = [match[1] for match in named] if plain else None
        if symbols is None:
            symbols = from_comment
            if symbols is None:
                try:
                    symbols = list(atomtypes_outpot(self._where, len(counts)))
                except Exception as error:
                    raise InputError(
                        f"{self._where}: line {self._at}: no line of symbols before the numbers of atoms; add the "
                        f"symbols of {len(counts)} elements as line {self._at}"
                    ) from error
            self._notes.add(f"has no line of symbols; taken for {' '.join(symbols)} by its comment or the files beside")
        elif from_comment is not None and from_comment != symbols:
            self._notes.add(f"the comment names {' '.join(from_comment)}, the line of symbols {' '.join(symbols)}: the latter is taken")
        if len(symbols) != len(counts):
            self._refuse(f"{len(counts)} numbers of atoms for {len(symbols)} elements")
        return symbols, counts, self._at

    def _row(self, symbol: str, selective: bool) -> str:
        """The line of an atom, with flags that are T or F."""
        position = self._numbers(f"an atom of {symbol}", 3)
        rest = self._lines[self._at - 1].split()[3:]
        if selective:
            flags = [_FLAGS.get(word.upper()[: 2 if word[0] == "." else 1], "") for word in rest[:3]]
            if len(flags) < 3 or not all(flags):
                self._refuse(f"expected three flags, T or F, behind the position, found '{' '.join(rest):.40}'")
            position, rest = f"{position} {' '.join(flags)}", rest[3:]
        elif len(rest) == 3 and {word.upper() for word in rest} <= {"T", "F"}:
            self._notes.add("flags T and F without a line 'Selective dynamics' mean nothing to VASP: passed over")
        if len(rest) == 1 and (label := _WORD.fullmatch(rest[0])) and label[1] in atomic_numbers and label[1] != symbol:
            self._refuse(f"an atom called {rest[0]}, where the header has {symbol}")
        return position

    def _velocities(self, n: int) -> list[str]:
        """The lines of velocities for ASE; none where there are none in Å/fs.

        Behind the positions may stand lattice velocities, velocities, and where molecular dynamics was interrupted.
        """
        if self._peek()[:1].lower() == "l":
            self._next("lattice velocities")
            self._numbers("the state of the lattice's velocities", 1)
            for _ in range(6):
                self._numbers("a lattice velocity or vector", 3, more=False)
        found: list[str] = []
        header = self._peek()
        if not self._is_over():
            self._next("velocities")
            if header and header[0].lower() not in ("d", "c", "k"):
                self._refuse(f"expected nothing behind {n} atoms, found '{header:.60}': more atoms, or a second structure")
            if header or len(self._peek().split()) != 1:
                found = ["", *(self._numbers(f"the velocity of one of {n} atoms", 3, more=False) for _ in range(n))]
                if header[:1].lower() == "d":
                    self._notes.add("velocities in units of the cell are not read")
                    found = []
                if not self._is_over():
                    self._blank()
        if not self._is_over():
            self._predictor(n)
        return found

    def _predictor(self, n: int) -> None:
        """Pass over VASP's predictor-corrector block: a flag, a time step, a thermostat, and three lines an atom."""
        for what in ("the flag of a predictor-corrector block, or the end of the file", "a time step"):
            self._numbers(what, 1, more=False)
        self._numbers("the state of a thermostat", 1)
        for _ in range(3 * n):
            self._numbers("a coordinate of the predictor and corrector", 3, more=False)
        if not self._is_over():
            self._next("the end")
            self._refuse("expected the end of the file")

    def _blank(self) -> None:
        if self._next("a blank line").strip():
            self._refuse("expected a blank line")

    def _peek(self) -> str:
        return self._lines[self._at].strip() if self._at < len(self._lines) else ""

    def _is_over(self) -> bool:
        return not any(line.strip() for line in self._lines[self._at :])
