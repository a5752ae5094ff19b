"""Lines of PDB files: which are atoms, where a model ends, and what is not in the format."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from molflt.data.notes import Notes
from molflt.errors import InputError

_PASSED_OVER = frozenset(
    """
    HEADER OBSLTE TITLE SPLIT CAVEAT COMPND SOURCE KEYWDS EXPDTA MDLTYP AUTHOR REVDAT SPRSDE JRNL REMARK DBREF
    DBREF1 DBREF2 SEQADV SEQRES MODRES HET HETNAM HETSYN FORMUL HELIX SHEET TURN SSBOND LINK LINKR HYDBND SLTBRG
    CISPEP SITE ORIGX1 ORIGX2 ORIGX3 MTRIX1 MTRIX2 MTRIX3 TVECT ANISOU SIGATM SIGUIJ TER CONECT MASTER USER
    FTNOTE
    """.split()  # noqa: SIM905
)
"""Records of the format that add no atoms."""
COLUMNS = (30, 38, 46)
"""Where coordinates begin, of eight letters each."""
_COORDINATES = 3
_FIRST_ROW = ["1.000000", "0.000000", "0.000000"]
_DECIMAL = re.compile(r"[-+]?\d+\.\d+")
_ELEMENT = re.compile(r"[ A-Za-z]{2}(  |\d[-+]|[-+]\d)")
_NEAR = 0.3
"""Å: no two atoms are so close, but two frames of a trajectory have theirs nearly in the same places."""


@dataclass
class Model:
    """A model: its atoms' lines, by number and text, and the line that has its cell."""

    cell: str = ""
    scale: list[str] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)

    def text(self) -> str:
        """The model as a PDB file, in which B factors count its atoms."""
        atoms = (
            f"{'HETATM' if text[:1] in 'Hh' else 'ATOM  '}    1 {text[12:60]:48}{k:6d}{'':10}{_tail(text)}"
            for k, (_, text) in enumerate(self.lines)
        )
        return "\n".join([self.cell, *self.scale, *atoms, "END", ""]).encode("ascii", "replace").decode()


def _tail(line: str) -> str:
    """Element and charge; in files of before 1996 numbers of lines stand there."""
    tail = line[76:80].ljust(4)
    return "" if tail.replace(" ", "").isdecimal() else tail


def models_of(text: str, where: str, notes: Notes) -> list[Model]:
    """The models of a file: those of MODEL and ENDMDL, and what stands before each END, as in trajectories.

    Raises:
        InputError: a line cannot be read, the file is cut short, or models cannot be told apart.
    """
    models: list[Model] = []
    # the cell and SCALE at the beginning are those of all models that have none of their own
    model = Model()
    opened, declared = 0, 0
    for number, line in enumerate(text.split("\n"), start=1):
        record, here = _record(line), f"{where}: line {number}"
        if record in ("ATOM", "HETATM"):
            _check_atom(line, here)
            model.lines.append((number, line))
        elif record in ("MODEL", "END", "ENDMDL"):
            if opened and record != "ENDMDL":
                raise InputError(f"{here}: {record}, and the MODEL of line {opened} has no ENDMDL; add it")
            if model.lines:
                models.append(model)
            model = Model(model.cell, model.scale)
            opened = number if record == "MODEL" else 0
        elif record == "CRYST1":
            if model.lines:
                raise InputError(f"{here}: CRYST1 among the atoms of a model; end the model before it with END")
            _check_cell(line, here)
            model = Model(line)
        elif record.startswith("SCALE"):
            model.scale = [*model.scale[-2:], line]
        elif record == "NUMMDL" and line[10:14].strip().isdecimal():
            declared = int(line[10:14])
        elif record == "MTRIX1" and line[59:60] != "1" and line[10:40].split() != _FIRST_ROW:
            raise InputError(f"{here}: symmetry that is not of the crystal (MTRIX) is not applied; expand it")
        elif record not in _PASSED_OVER and len(_DECIMAL.findall(line)) >= _COORDINATES:
            raise InputError(f"{here}: '{line.strip():.40}' is no record of a PDB file; correct or remove it")
    if opened or (models and model.lines):
        raise InputError(
            f"{where}: line {model.lines[0][0] if model.lines else opened}: the model that begins here has no end; "
            "the file is cut short, or END or ENDMDL is missing"
        )
    if model.lines:
        notes.add("the file has no END: if it was cut short, atoms are missing")
        models = _frames_of(model, where)
    if declared and declared != len(models):
        raise InputError(f"{where}: NUMMDL declares {declared} models, and there are {len(models)}; correct it")
    return models


def _record(line: str) -> str:
    """The name of a line's record; serial numbers of six digits may touch it."""
    record = line[:6].upper()
    if record.startswith(("ATOM", "MODEL")) and not record.strip("ATOMDEL 0123456789"):
        return record[:5].strip()
    return record.rstrip()


def _check_atom(line: str, where: str) -> None:
    fields = [line[k : k + 8] for k in COLUMNS]
    if not line.isprintable() or len(line) < 54:
        raise InputError(f"{where}: an atom needs fixed columns, coordinates in 31-54; write it so, without tabs")
    if _tail(line).strip() and not _ELEMENT.fullmatch(_tail(line)):
        raise InputError(f"{where}: '{_tail(line)}' in columns 77-80 is no element with a charge; correct the line")
    for text in fields:
        try:
            good = math.isfinite(float(text)) and "_" not in text
        except ValueError:
            good = False
        if not good:
            raise InputError(f"{where}: '{text.strip()}' in columns 31-54 is no coordinate; correct the line")


def _check_cell(line: str, where: str) -> None:
    fields = [line[start:end] for start, end in pairwise((6, 15, 24, 33, 40, 47, 54))]
    try:
        values = [float(text) for text in fields]
    except ValueError:
        values = [math.nan]
    if not all(0 < value < math.inf for value in values) or max(values[3:]) >= 180:
        raise InputError(f"{where}: '{line[6:54].strip()}' are no lengths and angles of a cell; correct CRYST1")


def _frames_of(model: Model, where: str) -> list[Model]:
    """The parts of a model whose atoms are numbered several times, as by a program that writes frames without END.

    Raises:
        InputError: it may be frames, or molecules side by side.
    """
    # serial number, name, residue, chain: the same again from where the first stands a second time
    names = [text[6:27] for _, text in model.lines]
    if names[0] not in names[1:]:
        return [model]
    n = names.index(names[0], 1)
    if len(set(names[:n])) < n or names != names[:n] * (len(names) // n):
        return [model]
    places = np.array([[float(text[k : k + 8]) for k in COLUMNS] for _, text in model.lines]).reshape(-1, n, 3)
    if np.linalg.norm(places[1:] - places[:-1], axis=2).min() > _NEAR:
        raise InputError(
            f"{where}: line {model.lines[n][0]}: the numbers and names of its first {n} atoms begin again; write END "
            "before it if another frame begins there, or number on if it is one structure"
        )
    return [Model(model.cell, model.scale, model.lines[k : k + n]) for k in range(0, len(names), n)]
