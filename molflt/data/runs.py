"""Folders of calculations: VASP runs, and pairs of initial and relaxed geometries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixConstraint
from torch_geometric.data import Data

from molflt.data.ase import from_atoms, results_at_hand
from molflt.data.dataset import ListDataset
from molflt.data.formats import (
    OUTPUTS,
    RUN_FILES,
    TABLES,
    UnfinishedError,
    ase_format,
    give_skipped,
    read_frames,
    shortfall,
)
from molflt.data.labels import agreed
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.record import ENERGIES
from molflt.data.slabs import same_atoms
from molflt.data.tables import read_table
from molflt.data.text import bare_name, bare_suffix, read_text, remark
from molflt.errors import InputError, in_line, noting

RELAXATIONS = (1, 2, 3)
"""Values of VASP's IBRION that relax to a minimum."""
_ROUNDING = 1.001
_STAGE = re.compile(r"(.*?)[-_. ]?(initial|init|unrelaxed|relaxed|final)", re.IGNORECASE)
_INITIAL = ("initial", "init", "unrelaxed")
_KEYS = ("name", "folder", "file", "path", "run", "id", "system", "structure")
"""Columns, in any case, that name the calculation of a row; without one it is the first column."""
NO_PAIRS = "no two are named alike but for 'initial' and 'relaxed' (or init, unrelaxed; final); leave --pairs out"
_CELL_CHANGE = 0.1
"""Å: largest difference in a component of a lattice vector within a pair."""
_SAME = 0.01
"""Å: largest difference of the initial structure of a run from its first step."""


@dataclass(frozen=True)
class Calculation:
    """Files of a calculation; the last of several frames counts."""

    name: str
    initial: Path | None
    relaxed: Path | None
    output: Path | None = None
    frame: int | None = None
    empty: str = ""
    """Name of an empty output file."""


def named_ends(paths: Iterable[Path]) -> dict[tuple[Path, str], tuple[list[Path], list[Path]]]:
    """Group paths called initial, and those called relaxed, by folder and rest of the name."""
    found: dict[tuple[Path, str], tuple[list[Path], list[Path]]] = {}
    for path in paths:
        if (match := _STAGE.fullmatch(_stem(path))) and (path.is_dir() or ase_format(path)):
            ends = found.setdefault((path.parent, match[1]), ([], []))
            ends[match[2].lower() not in _INITIAL].append(path)
    return found


def find_pairs(paths: Iterable[Path]) -> list[Calculation]:
    """Find relaxations among files and folders, by their names; often there are none.

    Raises:
        InputError: besides a pair, a geometry without its counterpart or with two; files of different lengths.
    """
    found = named_ends(paths)
    if not any(all(ends) for ends in found.values()):
        return []
    calculations: list[Calculation] = []
    for (_, name), (initial, relaxed) in found.items():
        if len(initial) > 1 or len(relaxed) > 1:
            raise InputError(f"{', '.join(map(str, initial + relaxed))}: which of them are a pair? Leave two")
        calculations += pair_calculations(next(iter(initial), None), next(iter(relaxed), None), name)
    return calculations


def suggest_pairs(paths: Iterable[Path], where: str) -> None:
    """Warn of names that suggest pairs if none are made."""
    pairs = [(initial[0], relaxed[0]) for initial, relaxed in named_ends(paths).values() if initial and relaxed]
    if pairs:
        first = " and ".join(path.name for path in pairs[0])
        more = f" (and {len(pairs) - 1:,} more such pairs)" if len(pairs) > 1 else ""
        remedy = "give --pairs (in training data.pairs=true) to read them as a relaxation"
        remark(where, f"{first}{more} are read as two structures; {remedy}")


def find_runs(folder: Path, pairs: Iterable[Calculation] = ()) -> list[Calculation]:
    """Find runs of VASP in this folder or its subfolders that are not ends of pairs."""
    paired = files_of(pairs)
    return [run for run in _runs(folder) if paired.isdisjoint(files_of([run]))]


def files_of(calculations: Iterable[Calculation]) -> set[Path]:
    """Return the files that are read from calculations."""
    return {p for c in calculations for p in (c.initial, c.relaxed, c.output) if p is not None}


def read_calculations(
    calculations: Sequence[Calculation], folder: Path, options: ReadOptions = DEFAULT, with_table: bool = True
) -> ListDataset:
    """Read calculations found by ``find_pairs`` and ``find_runs``.

    The structures are named ``FOLDER/NAME``. The initial geometry of a run is that of POSCAR, else the first of
    vasprun.xml or OUTCAR; the relaxed one that of CONTCAR, else their last. Energies in the files become ``y_init``
    and ``y_relaxed``, or ``energy`` if there is one geometry. Incomplete and unconverged runs are left out, and named
    in an ``InputWarning``, unless ``options`` accepts them. Columns of a CSV table in the folder become entries of
    ``info``, among which labels are looked for, unless ``with_table`` is False. Other arguments are those of
    :func:`molflt.data.open.open_dataset`.

    Raises:
        InputError: unreadable files, pairs of different atoms, contradictory values of a label, a calculation without
            a row in the table, or no converged calculation.
    """
    table = _table(folder) if with_table else None
    bad: dict[int, InputError] = {}
    structures: list[Data] = []
    skipped: list[str] = []
    # Pairs of two files are read frame by frame.
    read = lru_cache(maxsize=2)(read_frames)
    for index, calculation in enumerate(track(calculations, f"reading {folder.name}", total=len(calculations))):
        where = str(folder / calculation.name) if calculation.name else str(folder)
        row = None if table is None else table[1].get(_key(calculation.name or folder.name))
        with noting(bad, index - len(skipped), where, row or {}):
            if table is not None and row is None:
                raise InputError(f"{where}: {table[0]} has no row named '{calculation.name or folder.name}'; add it")
            try:
                atoms = _atoms(calculation, where, read, options.accept_unconverged)
            except UnfinishedError as error:
                skipped.append(str(error))
                continue
            for label in {"y_init", "y_relaxed"} | (
                {options.labels.name} if options.labels and options.of_relaxation else set()
            ):
                ends = [end for end in (calculation.initial, calculation.relaxed) if end is not None]
                places = {f"in {end}": _frame(read(end), calculation.frame).info.get(label) for end in ends}
                agreed({"in the table": (row or {}).get(label), **places}, label, where)
            atoms.info.update(row or {})
            structures.append(from_atoms(atoms, where, options))
    give_skipped(skipped, len(calculations), str(folder), "calculations")
    if table is not None:
        unused = sorted(table[1].keys() - {_key(calculation.name or folder.name) for calculation in calculations})
        if unused:
            remark(str(table[0]), f"rows of no calculation that is in the folder: {in_line(unused)}")
    return ListDataset.read(structures, bad, options.on_bad, str(folder), "calculations")


def _atoms(
    calculation: Calculation, where: str, read: Callable[[Path], list[Atoms]], accept_unconverged: bool
) -> Atoms:
    """Build a calculation's structure; ``UnfinishedError`` if it is incomplete or unconverged."""
    if calculation.empty and not accept_unconverged:
        raise UnfinishedError(f"{where}: {calculation.empty} is empty")
    frames = [] if calculation.output is None else read(calculation.output)
    initial = frames[0] if calculation.initial is None else _frame(read(calculation.initial), calculation.frame)
    relaxed = _frame(read(calculation.relaxed), calculation.frame) if calculation.relaxed else None
    why = relaxation_shortfall(frames, initial.constraints) if frames else shortfall(relaxed or initial)
    if why and not accept_unconverged:
        raise UnfinishedError(f"{where}: {why}")
    if frames and is_static(frames):
        return frames[-1]
    if frames and calculation.initial is not None:
        same_atoms(initial.numbers, frames[0].numbers, where)
        apart = initial.get_scaled_positions(wrap=False) - frames[0].get_scaled_positions(wrap=False)
        away = float(np.abs((apart - apart.round()) @ np.asarray(initial.cell)).max())
        if away > _SAME:
            raise InputError(
                f"{where}: {calculation.initial.name} is not the structure that the run begins with, atoms are up to "
                f"{away:.2g} Å away from it; put back the one that was computed, or remove it"
            )
    if relaxed is None and (len(frames) > 1 or (frames and calculation.initial)):
        relaxed = frames[-1]
    if relaxed is None:
        return initial
    same_atoms(initial.numbers, relaxed.numbers, where)
    change = float(np.abs(np.asarray(relaxed.cell) - np.asarray(initial.cell)).max())
    if change > _CELL_CHANGE:
        raise InputError(
            f"{where}: the cells of the initial and the relaxed geometry differ by {change:.2f} Å; relaxations of "
            "the cell are not read, take the relaxed structure alone"
        )
    atoms: Atoms = initial.copy()
    atoms.info = {**relaxed.info, **initial.info}
    atoms.set_array("positions_relaxed", relaxed.positions)
    for label, end in (
        ("y_init", frames[0] if frames else initial),
        ("y_relaxed", frames[-1] if frames else relaxed),
    ):
        energy = results_at_hand(end).get("energy")
        if energy is not None:
            atoms.info.setdefault(label, float(energy))
    return atoms


def relaxation_shortfall(frames: Sequence[Atoms], constraints: Sequence[FixConstraint] = ()) -> str:
    """Explain why the last step of a run is not a relaxed structure; empty if it is one.

    Args:
        frames: all steps of an OUTCAR or vasprun.xml.
        constraints: of the initial structure, if the steps have none: forces on fixed atoms do not count.
    """
    last, run = frames[-1], frames[-1].calc.parameters
    if not run["complete"]:
        return "the run was cut short: its output has no end"
    for which, frame in (("first", frames[0]), ("last", last)):
        if why := shortfall(frame):
            return f"{which} step: {why}"
    if is_static(frames) or run["reached"]:
        return ""
    nsw, ibrion, criterion = run["nsw"], run["ibrion"], run["ediffg"]
    if ibrion is not None and ibrion not in RELAXATIONS:
        return f"molecular dynamics or vibrations, no relaxation (IBRION={ibrion})"
    stopped = "" if nsw is None or len(frames) < nsw else f" after all NSW={nsw} steps"
    if criterion is None:
        return f"not relaxed{stopped}" if stopped else ""
    if criterion < 0:
        forces = np.array(last.calc.results.get("forces", np.full((len(last), 3), np.nan)))
        for constraint in last.constraints or constraints:
            constraint.adjust_forces(last, forces)
        largest = float(np.linalg.norm(forces, axis=1).max())
        converged, what = largest <= -criterion * _ROUNDING, f"a force of {largest:.3g} eV/Å is left"
    else:
        energies = [frame.calc.results.get("free_energy", np.nan) for frame in frames[-2:]]
        change = abs(energies[1] - energies[0]) if len(energies) == 2 else np.nan
        converged, what = change <= criterion * _ROUNDING, f"the energy changed by {change:.3g} eV in the last step"
    return "" if converged else f"not relaxed{stopped}: {what} (EDIFFG={criterion:g})"


def is_static(frames: Sequence[Atoms]) -> bool:
    """True if the steps of an OUTCAR or vasprun.xml are of a run without moving atoms."""
    nsw = frames[-1].calc.parameters["nsw"]
    return nsw is not None and nsw <= 0


def _frame(frames: list[Atoms], frame: int | None) -> Atoms:
    atoms = frames[-1 if frame is None else frame]
    # Results belong to the geometry in the file.
    if atoms.calc is not None and not isinstance(atoms.calc, SinglePointCalculator):
        atoms.calc = None
    return atoms


def _runs(folder: Path) -> Iterator[Calculation]:
    for place in sorted([folder, *(path for path in folder.rglob("*") if path.is_dir())]):
        found = {bare_name(file): file for file in place.iterdir() if file.is_file()}
        files = {name: file for name, file in found.items() if file.stat().st_size}
        if any(name in files for name in RUN_FILES):
            name = "" if place == folder else place.relative_to(folder).as_posix()
            output = next((files[name] for name in OUTPUTS if name in files), None)
            initial, relaxed = files.get("poscar"), files.get("contcar")
            if initial is None and output is None:
                initial, relaxed = relaxed, None
            # If there is vasprun.xml, an empty OUTCAR is left over from a clean-up.
            outputs = () if output is not None else OUTPUTS
            empty = next((found[key].name for key in ("contcar", *outputs) if key in found and key not in files), "")
            yield Calculation(name, initial, relaxed, output, empty=empty)


def pair_calculations(initial: Path | None, relaxed: Path | None, name: str = "") -> Iterator[Calculation]:
    """Yield the pairs of two files, frame by frame, or of two folders, by file name.

    Raises:
        InputError: one is missing, files with different numbers of frames, or names in only one folder.
    """
    if initial is None or relaxed is None:
        there = initial or relaxed
        raise InputError(f"{there}: has no {'relaxed' if relaxed is None else 'initial'} counterpart; add it")
    if initial.is_dir() != relaxed.is_dir():
        raise InputError(f"{initial} and {relaxed}: one is a folder, the other a file; give two of a kind")
    if not initial.is_dir():
        n, n_relaxed = len(read_frames(initial)), len(read_frames(relaxed))
        if n != n_relaxed:
            raise InputError(f"{initial} holds {n} structures, and {relaxed} {n_relaxed}; they must be as many")
        if n == 1:
            yield Calculation(name, initial, relaxed)
            return
        yield from (Calculation(f"{name}#{k}", initial, relaxed, frame=k) for k in range(n))
        return
    files = [[file for file in sorted(end.iterdir()) if ase_format(file)] for end in (initial, relaxed)]
    ends = [{_stem(file): file for file in some} for some in files]
    for end, some, named in zip((initial, relaxed), files, ends, strict=True):
        if twice := [file.name for file in some if named[_stem(file)] != file]:
            raise InputError(
                f"{end}: {in_line(twice)}: there is another file of this name but for its ending; leave one"
            )
    if alone := sorted(ends[0].keys() ^ ends[1].keys()):
        raise InputError(
            f"{initial} and {relaxed}: {len(alone)} names are in one of them only: {', '.join(alone[:10])}; add the "
            "others, or remove these"
        )
    yield from (Calculation(f"{name}/{stem}".lstrip("/"), ends[0][stem], ends[1][stem]) for stem in ends[0])


def _stem(path: Path) -> str:
    """Name of a file without its suffix, or of a folder."""
    return path.name if path.is_dir() else bare_name(path).removesuffix(bare_suffix(path))


def _key(name: str) -> str:
    return name.strip().strip("/").lower()


def _table(folder: Path) -> tuple[Path, dict[str, dict[str, str | float]]] | None:
    """Read the only table of a folder, with rows by calculation, also by a path's last part."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    tables = [path for path in files if bare_suffix(path) in TABLES]
    if len(tables) > 1:
        names = ", ".join(path.name for path in tables)
        raise InputError(f"{folder}: several tables ({names}); leave the one with the energies")
    if not tables:
        return None
    (file,) = tables
    columns, lines = read_table(file, read_text(file), _KEYS)
    others = (column for name, column in columns.items() if name not in ENERGIES)
    key = next((columns[name] for name in _KEYS if name in columns), next(others, None))
    if key is None:
        raise InputError(f"{file}: no column says which calculation a row is of; add one, called 'name'")
    rows: dict[str, dict[str, str | float]] = {}
    for _, cells, problem in lines:
        name = _key(cells.pop(key))
        problem = problem or (f"two rows are named '{name}'; leave one" if name in rows else "")
        if problem:
            raise InputError(f"{file}: {problem}")
        cells |= {label: cells[columns[label]] for label in ENERGIES if label in columns}
        rows[name] = {column: _value(cell) for column, cell in cells.items() if cell}
    return file, rows


def _value(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell
