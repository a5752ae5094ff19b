"""Predictions as files: CSV, extxyz, and the OC20 leaderboard's npz."""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
from ase import Atoms
from torch_geometric.data import Data

from molflt.data.ase import to_atoms
from molflt.data.dataset import StructureDataset
from molflt.data.extras import extra_of
from molflt.data.extxyz_output import write_extxyz
from molflt.data.text import Notes
from molflt.errors import InputError
from molflt.files import atomic_file, sole_writer
from molflt.prediction.prediction import Prediction
from molflt.prediction.predictor import conformers_of
from molflt.terminal_text import printable
from molflt.vocabulary import OC20Split

FORMATS = (".csv", ".extxyz", ".npz")
_STANDARD_INPUT = re.compile(r"-#\d+( \([^|!]*\))?")
"""Names of structures from standard input, which no spreadsheet can compute."""


def check_output(path: Path, oc20_split: OC20Split | None, overwrite: bool) -> None:
    """Refuse an output before anything is computed for it.

    Raises:
        InputError: an unknown suffix, a file that exists, or leaderboard keys in anything but npz.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: output must end in {', '.join(FORMATS)}")
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
            taken; an apostrophe before text that a spreadsheet would compute), ``.extxyz`` (the structures with all
            that their files say of them, the energy in ``info``; a warning names what has no place), or ``.npz``.
        prediction: of the structures; those that failed keep their place in csv and npz, with NaN for an energy, and
            are left out of extxyz.
        structures: in the same order; None does for csv and npz.
        target: what was predicted; names the energy.
        oc20_split: for npz: use the leaderboard's keys, ``{split}_ids`` and ``{split}_energy``; other splits already
            in the file stay, so that four runs make one submission.

    Raises:
        InputError: extxyz without structures.
    """
    if structures is None and path.suffix == ".extxyz":
        raise InputError(f"{path}: extxyz holds structures, and there are energies only; choose csv or npz")
    # Of four runs that make one file, each reads what the others have written.
    with sole_writer(path, wait=True) if oc20_split else nullcontext(), atomic_file(path) as temporary:
        if path.suffix == ".csv":
            with open(temporary, "w", newline="", encoding="utf-8") as handle:
                writer = csv.writer(handle)
                columns = _columns(prediction, target)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
        elif path.suffix == ".extxyz":
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
            arrays = {"name": np.asarray(prediction.names), "energy": prediction.energies}
            if prediction.std is not None:
                arrays["std"] = prediction.std
            if prediction.warnings:
                arrays["warning"] = np.asarray([prediction.warnings.get(i, "") for i in range(len(prediction.names))])
            np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        else:
            others = _load_npz(path) if path.exists() else {}
            new = {f"{oc20_split}_ids": np.asarray(prediction.ids), f"{oc20_split}_energy": prediction.energies}
            np.savez_compressed(temporary, **{**others, **new})  # type: ignore[arg-type]


def _columns(prediction: Prediction, target: str) -> dict[str, list[str]]:
    """Of the CSV file, by their names: what is predicted, then what the structures' files say of them."""
    n = len(prediction.names)
    # Predictions of elsewhere have no such columns.
    info = prediction.info or [{}] * n
    own = [str(given.get("name") or "") for given in info]
    columns = {
        "name": [_no_formula(name or record) for name, record in zip(own, prediction.names, strict=True)],
        f"{target}_eV": [repr(e) for e in prediction.energies.tolist()],
    }
    if prediction.std is not None:
        columns["std_eV"] = [repr(s) for s in prediction.std.tolist()]
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
    return columns


def _cell(value: Any) -> str:
    """A number as it is, other text such that no spreadsheet computes it; nothing for arrays."""
    if np.ndim(value):
        return ""
    try:
        float(value)
    except (TypeError, ValueError):
        return _no_formula(str(value))
    return str(value)


def _no_formula(text: str) -> str:
    """With an apostrophe before what a spreadsheet would compute, as spreadsheets write text that is no formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _STANDARD_INPUT.fullmatch(text) else text


def _with_prediction(structure: Data, prediction: Prediction, i: int, target: str) -> Atoms:
    if (conformers := prediction.conformers.get(i)) is not None:
        structure = conformers_of(structure)[conformers.lowest]
    atoms = to_atoms(structure)
    atoms.info["name"] = (structure.get("info") or {}).get("name") or prediction.names[i]
    if conformers is not None:
        atoms.info |= {"conformers": conformers.n, "conformer_spread": conformers.spread}
    if i in prediction.warnings:
        atoms.info["warning"] = prediction.warnings[i]
    atoms.info[f"predicted_{target}"] = float(prediction.energies[i])
    if prediction.std is not None:
        atoms.info[f"predicted_{target}_std"] = float(prediction.std[i])
    for key, values in prediction.by_atom.items():
        atoms.set_array(f"predicted_{key}", values[i])
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
