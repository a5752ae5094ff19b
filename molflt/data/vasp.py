"""Steps of VASP's OUTCAR and vasprun.xml, with checks of completeness and convergence."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import IO, Any, NoReturn
from xml.etree import ElementTree

from ase import Atoms
from ase.io.vasp import read_vasp_xml
from ase.io.vasp_parsers.vasp_outcar_parsers import outcarchunks

from molflt.data.formats import UNCONVERGED, UnfinishedError
from molflt.data.runs import RELAXATIONS
from molflt.data.text import Notes, hydrogen_of
from molflt.errors import InputError

_SETTINGS = {
    key: re.compile(rf'\b{key}(?:"\s*>|\s*=)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)')
    for key in ("NSW", "IBRION", "EDIFF", "EDIFFG", "NELM")
}
"""Patterns for the header of OUTCAR (``NSW = 100``) and vasprun.xml (``name="NSW">100<``)."""
_NELM = 60
_ENERGY, _POSITIONS, _CELL = "FREE ENERGIE OF THE ION-ELECTRON SYSTEM", "POSITION          ", "direct lattice vectors"
_ENERGY_LINES = 4
"""Lines after the energy's heading."""
_STEP = re.compile(r"Iteration +(\d+)\( *(\d+)\)")
_N_IONS = re.compile(r"\bNIONS *= *(\d+)")
_VARRAYS = ("positions", "forces")


class _Lines:
    """Lines with the name of their file, next to which ASE looks for constraints."""

    def __init__(self, stream: IO[str], name: str) -> None:
        self._stream, self.name = stream, name
        stream.seek(0)

    def __iter__(self) -> Iterator[str]:
        return self._stream

    def __next__(self) -> str:
        return next(self._stream)


def outcar_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield the complete ionic steps of an OUTCAR, with data for :mod:`molflt.data.runs`.

    Raises:
        InputError: two runs in one file, a block of wrong length, or steps that ASE omits.
    """
    text = stream.read()
    for heading in (" executed on ", "NIONS ="):
        if len(found := _places(text, heading)) > 1:
            _refuse(text, where, found[1], "a second run begins; write each to a file of its own")
    energies = _places(text, _ENERGY)
    if energies and text.count("\n", energies[-1]) <= _ENERGY_LINES:
        energies.pop()
    iterations = _places(text, "Iteration ")
    if not iterations:
        raise UnfinishedError(f"{where}: ends before the first step begins")
    run = _run(text[: iterations[0]])
    species = [text[place : text.find("\n", place)].split() for place in _places(text, "POTCAR: ", end=iterations[0])]
    if len(species) > 1 and species[: len(species) // 2] != species[len(species) // 2 :]:
        _refuse(text, where, text.find("POTCAR: "), "lines POTCAR: do not name every element twice; one is missing")
    run["complete"] = "General timing and accounting" in text or "Voluntary context switches" in text
    run["reached"] = "reached required accuracy - stopping" in text
    ends = [0, *energies]
    if not energies:
        raise UnfinishedError(f"{where}: ends before the first step is complete")
    if run["complete"] and (n_blocks := len(blocks := _places(text, _POSITIONS))) != len(energies):
        _refuse(
            text, where, blocks[-1] if blocks else 0, f"{n_blocks} blocks of positions for {len(energies)} energies"
        )
    n_frames = 0
    frames = (chunk.build() for chunk in outcarchunks(_Lines(stream, where)))
    n_ions = int(found_ions[1]) if (found_ions := _N_IONS.search(text)) else None
    for start, end in pairwise(ends):
        if (atoms := _next(frames, text, where, start)) is None:
            break
        if n_ions not in (None, len(atoms)):
            raise InputError(f"{where}#{n_frames}: NIONS is {n_ions}, and the elements are of {len(atoms)} atoms")
        _check_blocks(text, where, start, end, len(atoms))
        _mark(atoms, run, _outcar_electrons(text, where, start, end, n_frames, run))
        n_frames += 1
        yield atoms
    if n_frames != len(energies):
        _refuse(text, where, energies[n_frames], f"{len(energies)} steps have energies, and ASE reads {n_frames}")


def _outcar_electrons(text: str, where: str, start: int, end: int, index: int, run: dict[str, Any]) -> str:
    """Reason why a step's electrons are not converged, after a check of the step's number."""
    steps = [found for place in _places(text, "Iteration ", start, end) if (found := _STEP.match(text, place))]
    if steps:
        wrong = next((found for found in steps if int(found[1]) != index + 1), None)
        if wrong is not None:
            _refuse(text, where, wrong.start(), f"step {index + 1} was expected, and this is of step {wrong[1]}")
    if text.find("aborting loop because EDIFF is reached", start, end) >= 0:
        return ""
    n = int(steps[-1][2]) if steps else 0
    return f"electrons are not converged after {n} steps (NELM={run['nelm']})"


def _check_blocks(text: str, where: str, start: int, end: int, n_atoms: int) -> None:
    """Check that a step has one block of positions of all atoms, and three lattice vectors."""
    blocks = _places(text, _POSITIONS, start, end)
    if len(blocks) != 1:
        place = blocks[1] if blocks else end
        _refuse(text, where, place, f"{len(blocks)} blocks of positions before one energy; there is one to each")
    lines = text[blocks[0] : end].split("\n", n_atoms + 3)
    rulers = [k for k, line in enumerate(lines[: n_atoms + 3]) if line.strip() and not line.strip(" -")]
    if rulers != [1, n_atoms + 2]:
        _refuse(text, where, blocks[0], f"the block of positions that begins here is not of {n_atoms} atoms")
    for place in _places(text, _CELL, start, end):
        rows = text[place : place + 2000].split("\n")[1:5]
        if [len(row.split()) > 0 for row in rows] != [True, True, True, False]:
            _refuse(text, where, place, "expected three lattice vectors and a blank line")


def vasprun_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield the complete ionic steps of a vasprun.xml, with data for :mod:`molflt.data.runs`.

    Raises:
        InputError: damaged XML, or steps with a wrong number of atoms, or that ASE omits.
    """
    text = stream.read()
    begins = _places(text, "<calculation")
    run = _run(text[: begins[0]] if begins else text)
    run["complete"] = run["reached"] = False
    last = text.rfind("</calculation>")
    if "</modeling>" in text:
        run["complete"] = True
    elif last < 0:
        raise UnfinishedError(f"{where}: ends before the first step is complete")
    else:
        text = text[:last] + "</calculation></modeling>"
    text = re.sub(r"<c>([DT])\s*</c>", lambda found: f"<c>{hydrogen_of(found[1], notes)}</c>", text)
    begins, n_ends = _places(text, "<calculation"), text.count("</calculation>")
    if not begins:
        raise UnfinishedError(f"{where}: holds no step")
    if len(begins) != n_ends:
        _refuse(text, where, begins[-1], f"the last of {len(begins)} steps that begin, and {n_ends} end")
    moves = run["nsw"] is not None and run["ibrion"] in (None, -1, 0, *RELAXATIONS)
    n_frames = 0
    frames = read_vasp_xml(io.StringIO(text), index=slice(None))
    for begin, end in pairwise([*begins, len(text)]):
        atoms = _next(frames, text, where, begin)
        # For damaged XML, ASE gives the initial structure.
        if atoms is None or atoms.calc is None:
            break
        if text[begin:end] == text[end : 2 * end - begin] or (moves and n_frames == max(run["nsw"], 1)):
            _refuse(text, where, end, f"a step too many: twice the same, or more than NSW={run['nsw']}")
        if len(_places(text, "<structure", begin, text.find("</calculation>", begin))) != 1:
            _refuse(text, where, begin, "a step with more or less than one structure")
        for name, n in (("basis", 3), *((name, len(atoms)) for name in _VARRAYS)):
            for place in _places(text, f'name="{name}"', begin, end):
                if (rows := text.count("<v>", place, text.find("</varray>", place))) != n:
                    _refuse(text, where, place, f"{rows} rows of {name}, and there should be {n}")
        n_steps = text.count("<scstep", begin, end)
        why = f"electrons are not converged after {n_steps} steps (NELM={run['nelm']})"
        _mark(atoms, run, why if n_steps >= run["nelm"] else "")
        n_frames += 1
        yield atoms
    if n_frames != len(begins):
        # ASE ignores errors in the XML once there is a structure.
        try:
            ElementTree.fromstring(text)  # noqa: S314 (as ASE did before)
        except ElementTree.ParseError as error:
            raise InputError(f"{where}: line {error.position[0]}: damaged XML: {error}") from error
        _refuse(text, where, begins[n_frames], f"there are {len(begins)} steps, and ASE reads {n_frames}")


def _run(header: str) -> dict[str, Any]:
    """Read settings of a run; None if not in the header: VASP's defaults depend on others."""
    found: dict[str, Any] = {}
    for key, pattern in _SETTINGS.items():
        values = pattern.findall(header)
        found[key.lower()] = None
        # a row of asterisks replaces a number that is too long
        with suppress(ValueError, IndexError):
            found[key.lower()] = float(values[-1])
    for key in ("nsw", "ibrion", "nelm"):
        found[key] = None if found[key] is None else int(found[key])
    found["nelm"] = found["nelm"] or _NELM
    if found["ediffg"] is None and found["ediff"] is not None:
        found["ediffg"] = 10 * found["ediff"]
    return found


def _mark(atoms: Atoms, run: dict[str, Any], why: str) -> None:
    """Attach the settings of the run to a frame, and the reason why its results are no labels."""
    atoms.calc.parameters = {**atoms.calc.parameters, **run}
    if why:
        atoms.info[UNCONVERGED] = why


def _next(frames: Iterator[Atoms], text: str, where: str, place: int) -> Atoms | None:
    """Return ASE's next frame; on a damaged file ASE raises almost any error."""
    try:
        return next(frames, None)
    except ElementTree.ParseError as error:
        raise InputError(f"{where}: line {error.position[0]}: damaged XML: {error}") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        _refuse(text, where, place, f"the step that begins here cannot be read ({reason:.200})")


def _places(text: str, word: str, start: int = 0, end: int | None = None) -> list[int]:
    """Places of a word in a text, found much faster than line by line."""
    end = len(text) if end is None else end
    found = []
    while (start := text.find(word, start, end)) >= 0:
        found.append(start)
        start += len(word)
    return found


def _refuse(text: str, where: str, place: int, why: str) -> NoReturn:
    raise InputError(f"{where}: line {text.count(chr(10), 0, place) + 1}: {why}")
