"""Lines of PDB files: which are atoms, where a model ends, and what is not in the format."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np

from molflt.data.notes import Notes
from molflt.errors import InputError

_PASSED_OVER = frozenset(
    """
    HEADER OBSLTE TITLE SPLIT CAVEAT COMPND SOURCE KEYWDS EXPDTA MDLTYP AUTHOR REVDAT SPRSDE JRNL REMARK DBREF
    DBREF1 DBREF2 SEQADV SEQRES MODRES HET HETNAM HETSYN FORMUL HELIX SHEET TURN SSBOND LINK LINKR HYDBND SLTBRG
    CISPEP SITE ORIGX1 ORIGX2 ORIGX3 MTRIX1 MTRIX2 MTRIX3 TVECT ANISOU SIGATM SIGUIJ TER CONECT MASTER USER
    FTNOTE
    """.split()
)
"""Records of the format that add no atoms."""
_DECIMAL = re.compile(r"[-+]?\d+\.\d+")
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
            f"{'HETATM' if text[:1] in 'Hh' else 'ATOM  '}    1 {text[12:60]:48}{k:6d}{text[66:80]}"
            for k, (_, text) in enumerate(self.lines)
        )
        return "\n".join([self.cell, *self.scale, *atoms, "END", ""])


def models_of(text: str, where: str, notes: Notes) -> list[Model]:
    """The models of a file: those of MODEL and ENDMDL, and what stands before each END, as in trajectories.

    Raises:
        InputError: a line cannot be read, the file is cut short, or models cannot be told apart.
    """
    models: list[Model] = []
    model, cell, scale, ended, declared = Model(), "", [], True, 0
    opened = 0

    def close() -> None:
        nonlocal model
        if model.lines:
            models.append(Model(cell, scale, model.lines))
        model = Model()

    for number, line in enumerate(text.split("\n"), start=1):
        record = line[:6].rstrip().upper()
        line_name = f"{where}: line {number}"
        if record[:4] == "ATOM" and record[4:].strip().isdecimal():
            record = "ATOM"
        if record in ("ATOM", "HETATM"):
            _check_atom(line, line_name)
            model.lines.append((number, line))
            ended = False
        elif record == "MODEL" or record.startswith("MODEL "):
            if opened:
                raise InputError(f"{line_name}: MODEL, and that of line {opened} has no ENDMDL; add it")
            close()
            opened = number
        elif record == "ENDMDL":
            close()
            opened, ended = 0, True
        elif record == "END":
            if opened:
                raise InputError(f"{line_name}: END, and the MODEL of line {opened} has no ENDMDL; add it")
            close()
            ended = True
        elif record == "CRYST1":
            if model.lines:
                raise InputError(f"{line_name}: CRYST1 among the atoms of a model; end the model before it with END")
            cell, scale = _checked_cell(line, line_name), []
        elif record[:5] == "SCALE":
            scale = [*scale, line]
        elif record == "NUMMDL":
            declared = int(line[10:14]) if line[10:14].strip().isdecimal() else 0
        elif (
            record == "MTRIX1" and line[59:60] != "1" and line[10:40].split() != ["1.000000", "0.000000", "0.000000"]
        ):
            raise InputError(f"{line_name}: symmetry that is not of the crystal (MTRIX) is not applied; expand it")
        elif record not in _PASSED_OVER and record[:5] != "MTRIX" and len(_DECIMAL.findall(line)) >= 3:
            raise InputError(f"{line_name}: '{line.strip():.40}' is no record of a PDB file; correct or remove it")
    if opened or (models and not ended):
        raise InputError(
            f"{where}: the last of {len(models) + 1} models has no end; the file is cut short, or add END"
        )
    if model.lines:
        notes.add("the file has no END; if it was cut short, atoms are missing")
    close()
    models = [part for model in models for part in _frames_of(model, where)]
    if declared and declared != len(models):
        raise InputError(f"{where}: NUMMDL declares {declared} models, and there are {len(models)}; correct it")
    return models


def _check_atom(line: str, where: str) -> None:
    fields = [line[k : k + 8] for k in (30, 38, 46)]
    if "\t" in line or len(line) < 54:
        raise InputError(f"{where}: an atom needs fixed columns, coordinates in 31-54; write it so, without tabs")
    for text in fields:
        try:
            good = math.isfinite(float(text)) and "_" not in text
        except ValueError:
            good = False
        if not good:
            raise InputError(f"{where}: '{text.strip()}' in columns 31-54 is no coordinate; correct the line")


def _checked_cell(line: str, where: str) -> str:
    fields = [line[start:end] for start, end in ((6, 15), (15, 24), (24, 33), (33, 40), (40, 47), (47, 54))]
    try:
        values = [float(text) for text in fields]
    except ValueError:
        values = []
    if not values or not np.isfinite(values).all() or min(values) <= 0 or max(values[3:]) >= 180:
        raise InputError(f"{where}: {' '.join(fields).strip()} are no lengths and angles of a cell; correct CRYST1")
    return line


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
    if (
        not names[0][:5].strip()
        or len(set(names[:n])) < n
        or len(names) % n
        or names != names[:n] * (len(names) // n)
    ):
        return [model]
    places = np.array([[float(text[k : k + 8]) for k in (30, 38, 46)] for _, text in model.lines]).reshape(-1, n, 3)
    first, *_ = (model.lines[n],)
    raise_at = first[0]
    if np.linalg.norm(places[1:] - places[:-1], axis=2).min() > _NEAR:
        raise InputError(
            f"{where}: line {raise_at}: the numbers and names of its first {n} atoms begin again; write END before it "
            "if a frame of a trajectory begins there, or number on if it is one structure"
        )
    return [Model(model.cell, model.scale, model.lines[k : k + n]) for k in range(0, len(names), n)]
