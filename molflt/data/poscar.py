"""Structures from POSCAR and CONTCAR, with a check of every line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import IO, NoReturn

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from ase.io.vasp import atomtypes_outpot, set_constraints
from ase.units import Ang, fs

from molflt.data.text import Notes, hydrogen_of, numbers
from molflt.errors import InputError

_WORD = re.compile(r"([A-Z][a-z]?)(\d*)")


def poscar_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield the structure of a POSCAR or CONTCAR, with its velocities and constraints.

    Raises:
        InputError: an unexpected line, or lines after the structure: more atoms than announced, or a second
            structure.
    """
    yield _Poscar(stream.read().split("\n"), where, notes).atoms()


class _Poscar:
    """Parser of the lines of a POSCAR."""

    def __init__(self, lines: Sequence[str], where: str, notes: Notes) -> None:
        self._lines, self._where, self._notes = [*lines], where, notes
        self._at = 0

    def atoms(self) -> Atoms:
        comment = self._next("a comment")
        words = self._next("the scale of the cell").split()
        factors = numbers(words[:3]) or numbers(words[:1]) or []
        scale = np.array(factors)
        if len(scale) not in (1, 3) or not np.isfinite(scale).all() or (len(scale) == 3 and scale.min() <= 0):
            self._refuse("expected the scale of the cell: one number, or three that are positive")
        cell = np.array([self._numbers("a lattice vector", 3) for _ in range(3)])
        if scale[0] < 0:
            # A negative scale is the volume.
            if (volume := abs(float(np.linalg.det(cell)))) == 0:
                self._refuse("the lattice vectors span no volume")
            scale = np.cbrt(-scale / volume)
        symbols, counts = self._species(comment)
        mode = self._next("'Direct' or 'Cartesian'").strip()
        selective = mode[:1].lower() == "s"
        if selective:
            mode = self._next("'Direct' or 'Cartesian'").strip()
        if mode[:1].lower() not in ("d", "c", "k"):
            self._refuse(f"expected 'Direct' or 'Cartesian', found '{mode:.40}'")
        order = [symbol for symbol, n in zip(symbols, counts, strict=True) for _ in range(n)]
        positions = np.array([self._numbers(f"an atom of {symbol}", 3) for symbol in order])
        fixed = self._flags(order, selective)
        atoms = Atoms(order, cell=cell * scale, pbc=True)
        if mode[0].lower() == "d":
            atoms.set_scaled_positions(positions)
        else:
            atoms.set_positions(positions * scale)
        if selective:
            set_constraints(atoms, fixed)
        if velocities := self._velocities(len(order)):
            atoms.set_velocities(np.array(velocities) * (Ang / fs))
        return atoms

    def _refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self._where}: line {self._at}: {why}")

    def _next(self, what: str) -> str:
        if self._at == len(self._lines) or (self._at == len(self._lines) - 1 and not self._lines[-1]):
            raise InputError(
                f"{self._where}: line {self._at + 1}: expected {what}, and the file ends; it is cut short"
            )
        self._at += 1
        return self._lines[self._at - 1]

    def _numbers(self, what: str, n: int, more: bool = True) -> list[float]:
        line = self._next(what)
        words = line.split()
        found = numbers(words[:n])
        if found is None or len(found) < n or (len(words) > n and not more):
            self._refuse(f"expected {what} ({n} number{'s' * (n > 1)}), found '{line.strip():.60}'")
        return found

    def _species(self, comment: str) -> tuple[list[str], list[int]]:
        """Symbols of the elements and their numbers of atoms."""
        line = self._next("the symbols of the elements")
        symbols = None
        if not line.split()[:1] or not line.split()[0].isdigit():
            # Names as in POTCAR, as VASP writes them: Na_pv/6a2f546d
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
            self._notes.add(
                f"has no line of symbols; taken for {' '.join(symbols)} by its comment or the files beside"
            )
        elif from_comment is not None and from_comment != symbols:
            self._notes.add(
                f"names {' '.join(from_comment)} as comment and {' '.join(symbols)} as symbols, which are taken"
            )
        if len(symbols) != len(counts):
            self._refuse(f"{len(counts)} numbers of atoms for {len(symbols)} elements")
        return symbols, counts

    def _flags(self, order: Sequence[str], selective: bool) -> np.ndarray:
        """Check labels, and return (n, 3) bool: the components fixed by the flags just read."""
        fixed = np.zeros((len(order), 3), dtype=bool)
        first = self._at - len(order)
        for k, symbol in enumerate(order):
            rest = self._lines[first + k].split()[3:]
            if not rest and not selective:
                continue
            self._at = first + k + 1
            if selective:
                flags = [word.lstrip(".")[:1].upper() for word in rest[:3]]
                if len(flags) < 3 or not set(flags) <= {"T", "F"}:
                    self._refuse(f"expected three flags, T or F, behind the position, found '{' '.join(rest):.40}'")
                fixed[k], rest = [flag == "F" for flag in flags], rest[3:]
            elif len(rest) == 3 and {word.upper() for word in rest} <= {"T", "F"}:
                self._notes.add("flags T and F without a line 'Selective dynamics' mean nothing to VASP: ignored")
            label = _WORD.fullmatch(rest[0]) if len(rest) == 1 else None
            if label and label[1] in atomic_numbers and label[1] != symbol:
                self._refuse(f"an atom called {rest[0]}, where the header has {symbol}")
        self._at = first + len(order)
        return fixed

    def _velocities(self, n: int) -> list[list[float]]:
        """Read velocities in Å/fs, if there are any.

        After the positions there may be lattice velocities, velocities, and the state of an interrupted MD run.
        """
        if self._peek()[:1].lower() == "l":
            self._next("lattice velocities")
            self._numbers("the state of the lattice's velocities", 1)
            for _ in range(6):
                self._numbers("a lattice velocity or vector", 3, more=False)
        found: list[list[float]] = []
        header = self._peek()
        if not self._is_over():
            self._next("velocities")
            if header and header[0].lower() not in ("d", "c", "k"):
                self._refuse(
                    f"expected nothing behind {n} atoms, found '{header:.60}': more atoms, or a second structure"
                )
            if header or len(self._peek().split()) != 1:
                found = [self._numbers(f"the velocity of one of {n} atoms", 3, more=False) for _ in range(n)]
                if header[:1].lower() == "d":
                    self._notes.add("velocities in units of the cell are not read")
                    found = []
                if not self._is_over():
                    self._blank()
        if not self._is_over():
            self._predictor(n)
        return found

    def _predictor(self, n: int) -> None:
        """Skip VASP's predictor-corrector block: flag, time step, thermostat, 3 lines an atom."""
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
