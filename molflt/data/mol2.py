"""Molecules from mol2 files, whose lines are counted apart from RDKit; atom types of GAFF become elements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ase.data import atomic_numbers
from rdkit import Chem

from molflt.data.lines import Line, numbered, numbers, refuse
from molflt.data.notes import Notes
from molflt.data.reading import ReadOptions
from molflt.data.symbols import hydrogen_of
from molflt.errors import InputError

_MOL2 = re.compile(r"^@<TRIPOS>MOLECULE", re.MULTILINE)
_SECTION = "@<TRIPOS>"
_GAFF = re.compile(r"(cl|br|[fi])|([chnops])[a-z0-9+]?")
"""Of GAFF and GAFF2: lower case, and the first letter is the element but for halogens; Sybyl's types begin with the
element in upper case."""
_TYPE = 5
"""Place of the atom type among the words of an atom: number, name, x, y, z, type, ..."""


@dataclass(frozen=True)
class Mol2:
    """The text of one molecule of a mol2 file."""

    text: str
    first_line: int

    def mol(self, name: str, notes: Notes, options: ReadOptions) -> Chem.Mol | None:
        """The molecule, or None where RDKit cannot read it.

        Raises:
            InputError: more or fewer atoms or bonds than are announced, an atom type of an unknown kind, or partial
                charges of an ion where the bonds are of another charge.
        """
        lines = [Line(self.first_line + line.number - 1, line.words) for line in numbered(self.text.split("\n"), "#")]
        sections: dict[str, list[Line]] = {}
        for line in lines:
            if line.words[0].startswith(_SECTION):
                key = line.words[0].removeprefix(_SECTION)
                if key in sections and key in ("ATOM", "BOND"):
                    refuse(name, [line], f"a second section {key}")
                section = sections.setdefault(key, [])
            else:
                section.append(line)
        # Its name may be blank.
        head = self.text.split("\n")[2:3]
        counts = head[0].split() if head else []
        atoms = sections.get("ATOM", [])
        for what, n, rows in zip(("atoms", "bonds"), counts, (atoms, sections.get("BOND", [])), strict=False):
            if not n.isdigit() or len(rows) != int(n):
                place = Line(self.first_line + 2, [])
                refuse(name, [place], f"announces {n:.20} {what}, and there are {len(rows)}")
        if not counts:
            refuse(name, lines[:1], "the number of atoms does not stand two lines below")
        text = "\n".join(self._typed(lines, atoms, name, notes))
        # Of bonds that RDKit finds no structure for, positions and elements are still right.
        mol = Chem.MolFromMol2Block(text, removeHs=False) or Chem.MolFromMol2Block(
            text, sanitize=False, removeHs=False
        )
        if mol is None:
            return None
        if mol.GetNumAtoms() != len(atoms):
            raise InputError(f"{name}: has {len(atoms)} atoms, of which RDKit reads {mol.GetNumAtoms()}")
        partial = numbers(row.words[8] for row in atoms if len(row.words) > 8)
        total, formal = sum(partial or []), Chem.GetFormalCharge(mol)
        if round(total) not in (0, formal) and not options.allow_charged:
            raise InputError(
                f"{name}: its partial charges add up to {total:+.2f} e, and its bonds and atom types to {formal:+d} "
                "e; correct them, or take it as if it were neutral with --allow-charged"
            )
        return mol

    def _typed(self, lines: Sequence[Line], atoms: Sequence[Line], name: str, notes: Notes) -> Iterator[str]:
        """The lines with types that RDKit reads."""
        types = {}
        for row in atoms:
            if len(row.words) <= _TYPE:
                refuse(name, [row], "expected an atom: its number, name, three coordinates and type")
            kind = row.words[_TYPE]
            if gaff := _GAFF.fullmatch(kind):
                notes.add("atom types of GAFF are read as their elements, as c3 for carbon")
                types[row.number] = gaff[0][0].upper() + (gaff[0][1] if gaff[1] and len(gaff[1]) > 1 else "")
                continue
            element = hydrogen_of(kind.split(".")[0], notes)
            if element not in atomic_numbers:
                refuse(
                    name,
                    [row],
                    f"'{kind:.20}' is no atom type of Sybyl or GAFF; give Sybyl's types (with Open Babel: obabel "
                    "in.mol2 -O out.mol2) or an SDF",
                )
            if element != kind.split(".")[0]:
                types[row.number] = element
        raw = self.text.split("\n")
        for number, line in enumerate(raw, self.first_line):
            words = line.split()
            yield line if number not in types else " ".join([*words[:_TYPE], types[number], *words[_TYPE + 1 :]])


def mol2_blocks(text: str, where: str) -> Iterator[Mol2]:
    """Every molecule of a mol2 file.

    Raises:
        InputError: something stands before the first.
    """
    starts = [found.start() for found in _MOL2.finditer(text)]
    if before := numbered(text[: starts[0] if starts else None].split("\n"), "#"):
        refuse(where, before, "expected @<TRIPOS>MOLECULE")
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield Mol2(text[start:end], text.count("\n", 0, start) + 1)
