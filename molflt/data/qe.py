"""Structures from the input of Quantum ESPRESSO's pw.x; ASE reads it once every card is accounted for."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO

from ase import Atoms
from ase.io.espresso import read_espresso_in, read_fortran_namelist

from molflt.data.lines import Line, refuse
from molflt.data.notes import Notes
from molflt.data.symbols import hydrogen_of
from molflt.errors import InputError

_CARDS = {
    *("ATOMIC_SPECIES", "ATOMIC_POSITIONS", "K_POINTS", "ADDITIONAL_K_POINTS", "CELL_PARAMETERS", "CONSTRAINTS"),
    *("OCCUPATIONS", "ATOMIC_VELOCITIES", "ATOMIC_FORCES", "SOLVENTS", "HUBBARD"),
}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_SIGNS = re.compile(r"\W")
_KEY = re.compile(r"(\w+(?:\s*\([^)=]*\))?)\s*=")
_ISOTOPE = re.compile(r"[DT](?![a-z])")
_MEANT = {"tot_magnetization": (-1, 0), "assume_isolated": ("none",), "starting_charge(1)": (0,)}
"""Variables that say something of a structure that is not read, and their values that say nothing."""


def pwi_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """The structure of an input of pw.x; ``info["charge"]`` is its ``tot_charge``, if that is not zero.

    Raises:
        InputError: two things of one name, a card that is not as long as nat and ntyp say, or a lattice given by
            ibrav instead of vectors.
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
            notes.add(f"{key}={system[key]} is passed over; every input of pw.x is read as periodic along three axes")
    for card in ("ATOMIC_VELOCITIES", "ATOMIC_FORCES", "CONSTRAINTS"):
        if card in cards:
            notes.add(f"the card {card} is passed over")
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
    # ASE takes those of Fe2 for Fe1 as well.
    atoms.set_initial_magnetic_moments([moments[label] for label in labels])
    if charge := system.get("tot_charge", 0.0):
        atoms.info["charge"] = charge
    yield atoms


def _plain(quoted: re.Match[str]) -> str:
    """Quoted text without what has a meaning elsewhere; ASE knows no double quotes."""
    return f"'{_SIGNS.sub('_', quoted[0][1:-1])}'"


def _scan(lines: list[str], where: str) -> tuple[list[str], dict[str, list[Line]]]:
    """The namelists, without comments and quoted text, and the lines of every card, with its name."""
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
