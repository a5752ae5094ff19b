"""Predictions for many structures, and their files: CSV, extxyz, OC20's npz."""

from __future__ import annotations

import copy
import csv
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.extxyz import per_atom_properties
from torch_geometric.data import Data

from molflt.data.dataset import StructureDataset
from molflt.errors import InputError, listed, renamed
from molflt.files import atomic_file, sole_writer
from molflt.terminal_text import printable
from molflt.vocabulary import OC20Split

FORMATS = (".csv", ".extxyz", ".xyz", ".npz")
STRUCTURES = (".extxyz", ".xyz")
"""Formats that hold the structures as well: extended xyz by either name."""
_STANDARD_INPUT = re.compile(r"-#\d+( \([^|!]*\))?")
"""Names of structures from standard input, which no spreadsheet evaluates as a formula."""
BY_ATOM = ("forces", "atomic_energies", "embeddings")
"""Fields of a prediction that hold one array per structure."""
_ASE = {"forces": "forces", "atomic_energies": "energies"}
"""Their names among the results of ASE's calculators."""


class Conformers(NamedTuple):
    """Energies of a molecule's conformers.

    Attributes:
        n: their number.
        lowest: index of the one with the lowest energy, which is the molecule's.
        spread: eV, the highest energy minus the lowest.
    """

    n: int
    lowest: int
    spread: float


@dataclass
class Prediction:
    """Energies and other predictions, in the order of the structures.

    Attributes:
        energies: (n_structures,) eV, float64; the mean over the members of an ensemble; NaN for failures.
        names: where each structure came from.
        contractions: how the far field was computed ("waves") and for how many structures.
        uncertainty_eV: (n_structures,) eV: half-width of the 68 % interval if the model's file has it; else the
            standard deviation over the members (n − 1 in the denominator), or None for one model. For structures with
            an entry in ``warnings`` it is as uncertain as the energy.
        failures: reasons for which structures were skipped, by index.
        forces: (n_atoms, 3) eV/Å of each structure; None unless requested.
        info: further data from each structure's file, such as the columns of a table; also for failures.
        atomic_energies: (n_atoms,) eV of each structure: the terms that, with a mean per structure where the model
            has one, add up to its energy; None unless requested.
        embeddings: (n_atoms, dim) of each structure, the encoder's embeddings of its atoms; None likewise.
        ids: the structures' ``sid`` in OC20, or their names; empty for those that cannot be read.
        elements: atomic numbers seen.
        n_in_parts: batches that did not fit into memory and were computed in parts.
        conformers: of the molecules that have several, by index.
        warnings: reasons not to trust a structure's energy, by index.
        about: formula and, if known, name of the molecules that were given as graphs or names, by index.
    """

    energies: np.ndarray
    names: list[str]
    contractions: Counter[str]
    uncertainty_eV: np.ndarray | None = None  # noqa: N815 (as in files)
    failures: dict[int, str] = field(default_factory=dict)
    forces: list[np.ndarray] | None = None
    info: list[Mapping[str, Any]] = field(default_factory=list)
    atomic_energies: list[np.ndarray] | None = None
    embeddings: list[np.ndarray] | None = None
    ids: list[str] = field(default_factory=list)
    elements: set[int] = field(default_factory=set)
    n_in_parts: int = 0
    conformers: dict[int, Conformers] = field(default_factory=dict)
    warnings: dict[int, str] = field(default_factory=dict)
    about: dict[int, str] = field(default_factory=dict)
    std = renamed("std", "uncertainty_eV")

    @property
    def far_field(self) -> str:
        """``contractions`` in words: "waves (300 structures)"."""
        return "; ".join(f"{how} ({n:,} structure{'s' * (n != 1)})" for how, n in self.contractions.most_common())

    @property
    def by_atom(self) -> dict[str, list[np.ndarray]]:
        """Requested per-atom predictions, by name."""
        return {name: values for name in BY_ATOM if (values := getattr(self, name)) is not None}

    def of(self, places: Sequence[int]) -> Prediction:
        """Select the predictions of some structures, none of which failed."""
        lists = {name: [getattr(self, name)[k] for k in places] for name in (*_LISTS, *self.by_atom)}
        known = {name: getattr(self, name) for name in _BY_INDEX}
        changed: dict[str, Any] = lists | {
            name: {i: of[k] for i, k in enumerate(places) if k in of} for name, of in known.items()
        }
        width = None if self.uncertainty_eV is None else self.uncertainty_eV[places]
        return replace(self, energies=self.energies[places], uncertainty_eV=width, **changed)

    def of_conformers(self) -> str | None:
        """Summarise conformers in a line: how many, and the spread of energies; None without any."""
        if not self.conformers:
            return None
        widest = max(self.conformers, key=lambda i: self.conformers[i].spread)
        numbers = [conformers.n for conformers in self.conformers.values()]
        n = len(numbers)
        return (
            f"lowest of {min(numbers)}{f' to {max(numbers)}' if max(numbers) > min(numbers) else ''} distinct "
            f"conformers for {n:,} molecule{'s' * (n != 1)}; energies spread by up to "
            f"{self.conformers[widest].spread:.3f} eV ({self.names[widest]})"
        )

    def doubts(self) -> list[str]:
        """Describe energies not to be trusted, with the reasons, and lack of memory."""
        found = []
        if lines := [f"{self.names[i]}: {reason}" for i, reason in sorted(self.warnings.items())]:
            of = f"of {len(self.names):,} structure{'s' * (len(self.names) != 1)}"
            uncovered = "" if self.uncertainty_eV is None else ", and so is ±"
            verb = "are" if len(lines) != 1 else "is"
            what = f"{len(lines):,} {of} {verb} outside the training domain; energies are unreliable{uncovered}"
            found.append(listed(what, lines, most=5))
        if n := self.n_in_parts:
            batches = f"{n} whole batch{'es' * (n != 1)}"
            found.append(f"out of memory with {batches}: computed in parts; a smaller max_atoms is faster")
        return found


_LISTS, _BY_INDEX = ("names", "ids", "info"), ("failures", "conformers", "warnings", "about")


def joined(parts: Iterable[Prediction]) -> Prediction:
    """Concatenate predictions of several sets."""
    parts = list(parts)
    whole = Prediction(np.concatenate([np.empty(0), *(part.energies for part in parts)]), [], Counter())
    for part in parts:
        before = len(whole.names)
        for name in _BY_INDEX:
            getattr(whole, name).update({before + i: found for i, found in getattr(part, name).items()})
        for name in _LISTS:
            getattr(whole, name).extend(getattr(part, name))
        whole.contractions += part.contractions
        whole.elements |= part.elements
        whole.n_in_parts += part.n_in_parts
    widths = [part.uncertainty_eV for part in parts if part.uncertainty_eV is not None]
    if parts and len(widths) == len(parts):
        whole.uncertainty_eV = np.concatenate(widths)
    for name in BY_ATOM:
        if parts and all(name in part.by_atom for part in parts):
            setattr(whole, name, [values for part in parts for values in part.by_atom[name]])
    return whole


def conformers_of(data: Data) -> list[Data]:
    """Return a structure in a list, or one structure for each of its conformers."""
    if "conformers" not in data:
        return [copy.copy(data)]
    shapes = []
    for positions in data.conformers:
        shape = copy.copy(data)
        del shape.conformers
        shape.positions = positions
        shapes.append(shape)
    return shapes


def check_output(path: Path, oc20_split: OC20Split | None, overwrite: bool) -> None:
    """Refuse an unusable output path before the computation starts.

    Raises:
        InputError: an unknown suffix, a file that exists, or leaderboard keys in anything but npz.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: output must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if oc20_split is not None and path.suffix != ".npz":
        raise InputError(f"{path}: the leaderboard takes npz; use -o NAME.npz with --oc20-split")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; choose another name")
    if not path.exists():
        return
    if oc20_split is None:
        if not overwrite:
            raise InputError(f"{path}: exists already; choose another name or give --overwrite")
    elif f"{oc20_split}_energy" in _load_npz(path) and not overwrite:
        raise InputError(f"{path}: holds split '{oc20_split}' already; choose another name or give --overwrite")


def write_predictions(
    path: Path,
    prediction: Prediction,
    structures: StructureDataset | None,
    target: str,
    oc20_split: OC20Split | None = None,
) -> None:
    """Write predictions, atomically; the suffix decides the format.

    Args:
        path: ``.csv`` (name, energy, and every column or property of the inputs, ``input_NAME`` where the name is
            taken; an apostrophe before text that a spreadsheet would evaluate), ``.extxyz`` or ``.xyz`` (the
            structures with all data from their files, predictions as results of a calculator, and ``input_NAME``
            for results in the file; a warning names what the format cannot hold), or ``.npz``.
        prediction: of the structures; those that failed keep their place in csv and npz, with NaN for an energy, and
            are left out of extxyz.
        structures: in the same order; None suffices for csv and npz.
        target: the predicted quantity; names the energy.
        oc20_split: for npz: use the leaderboard's keys, ``{split}_ids`` and ``{split}_energy``; other splits already
            in the file stay, so that four runs make one submission.

    Raises:
        InputError: extxyz without structures.
    """
    if structures is None and path.suffix in STRUCTURES:
        raise InputError(f"{path}: extxyz holds structures, and there are energies only; choose csv or npz")
    # Of four runs that make one file, each reads the results of the others.
    with sole_writer(path, wait=True) if oc20_split else nullcontext(), atomic_file(path) as temporary:
        if path.suffix == ".csv":
            with open(temporary, "w", newline="", encoding="utf-8") as handle:
                writer = csv.writer(handle)
                columns = _columns(prediction, target)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
        elif path.suffix in STRUCTURES:
            from molflt.data.extras import extra_of
            from molflt.data.extxyz_output import write_extxyz
            from molflt.data.text import Notes

            assert structures is not None
            notes = Notes(str(path))
            with open(temporary, "w", encoding="utf-8") as handle:
                for i in range(len(prediction.names)):
                    if i not in prediction.failures:
                        structure = structures[i]
                        left = write_extxyz(handle, _with_prediction(structure, prediction, i, target))
                        for what in (*extra_of(structure).left, *left):
                            notes.add(f"extxyz has no place for {what}", prediction.names[i])
            notes.give()
        elif oc20_split is None:
            arrays = {"name": np.asarray(prediction.names), "energy": prediction.energies, "unit": np.asarray("eV")}
            if prediction.uncertainty_eV is not None:
                arrays["uncertainty_eV"] = prediction.uncertainty_eV
            if prediction.warnings:
                arrays["warning"] = np.asarray([prediction.warnings.get(i, "") for i in range(len(prediction.names))])
            np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        else:
            others = _load_npz(path) if path.exists() else {}
            new = {f"{oc20_split}_ids": np.asarray(prediction.ids), f"{oc20_split}_energy": prediction.energies}
            np.savez_compressed(temporary, **{**others, **new})  # type: ignore[arg-type]


def _columns(prediction: Prediction, target: str) -> dict[str, list[str]]:
    """Columns of the CSV file, by name: predictions, then data from the structures' files."""
    n = len(prediction.names)
    # Predictions made elsewhere have no such columns.
    info = prediction.info or [{}] * n
    own = [str(given.get("name") or "") for given in info]
    columns = {
        "name": [_no_formula(name or record) for name, record in zip(own, prediction.names, strict=True)],
        f"{target}_eV": [repr(e) for e in prediction.energies.tolist()],
    }
    if prediction.uncertainty_eV is not None:
        columns["uncertainty_eV"] = [repr(s) for s in prediction.uncertainty_eV.tolist()]
    places = range(len(prediction.names))
    if prediction.conformers:
        columns["conformers"] = [str(c.n) if (c := prediction.conformers.get(i)) else "1" for i in places]
        columns["conformer_spread_eV"] = [
            repr(c.spread) if (c := prediction.conformers.get(i)) else "" for i in places
        ]
    if prediction.warnings:
        columns["warning"] = [_no_formula(prediction.warnings.get(i, "")) for i in places]
    if prediction.failures:
        columns["error"] = [_no_formula(prediction.failures.get(i, "")) for i in places]
    if any(own):
        columns["record"] = [_no_formula(record) for record in prediction.names]
    for key in dict.fromkeys(key for given in info for key in given if key != "name"):
        column = f"input_{key}" if key in columns else key
        columns[_no_formula(column)] = [_cell(given.get(key, "")) for given in info]
    if "uncertainty_eV" in columns:
        # Deprecated, for one release.
        columns.setdefault("std_eV", columns["uncertainty_eV"])
    return columns


def _cell(value: Any) -> str:
    """Format a number, or text that no spreadsheet evaluates; empty for arrays."""
    if np.ndim(value):
        return ""
    try:
        float(value)
    except (TypeError, ValueError):
        return _no_formula(str(value))
    return str(value)


def _no_formula(text: str) -> str:
    """Prefix an apostrophe to text that a spreadsheet would evaluate as a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _STANDARD_INPUT.fullmatch(text) else text


def _with_prediction(structure: Data, prediction: Prediction, i: int, target: str) -> Atoms:
    if (conformers := prediction.conformers.get(i)) is not None:
        structure = conformers_of(structure)[conformers.lowest]
    from molflt.data.ase import to_atoms

    atoms = to_atoms(structure)
    atoms.info["name"] = (structure.get("info") or {}).get("name") or prediction.names[i]
    if conformers is not None:
        atoms.info |= {"conformers": conformers.n, "conformer_spread": conformers.spread}
    if i in prediction.warnings:
        atoms.info["warning"] = prediction.warnings[i]
    atoms.info[f"predicted_{target}"] = float(prediction.energies[i])
    if prediction.uncertainty_eV is not None:
        atoms.info["uncertainty_eV"] = float(prediction.uncertainty_eV[i])
    given = getattr(atoms.calc, "results", {})
    for key, value in given.items():
        (atoms.arrays if key in per_atom_properties else atoms.info)[f"input_{key}"] = value
    atoms.calc = SinglePointCalculator(atoms, energy=float(prediction.energies[i]))
    atoms.calc.results |= {_ASE[key]: values[i] for key, values in prediction.by_atom.items() if key in _ASE}
    return atoms


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    known = {f"{split}_{key}" for split in get_args(OC20Split) for key in ("ids", "energy")}
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise InputError(f"{path}: not a readable npz file ({error}); choose another name") from error
    if set(arrays) - known:
        raise InputError(f"{path}: not a leaderboard file (it holds {', '.join(arrays)}); choose another name")
    return arrays
