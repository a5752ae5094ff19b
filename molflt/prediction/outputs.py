"""Predictions as files: CSV, extxyz, and the OC20 leaderboard's npz."""

from __future__ import annotations

import csv
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal, get_args

import ase.io
import numpy as np

from molflt.atomic_file import atomic_file
from molflt.data.ase_io import to_atoms
from molflt.data.sources import StructureDataset
from molflt.errors import InputError
from molflt.prediction.predictor import Prediction

OC20Split = Literal["id", "ood_ads", "ood_cat", "ood_both"]
FORMATS = (".csv", ".extxyz", ".npz")


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
    path: Path, prediction: Prediction, structures: StructureDataset, target: str, oc20_split: OC20Split | None = None
) -> None:
    """Write predictions, atomically; the suffix decides the format.

    Args:
        path: ``.csv`` (name, energy), ``.extxyz`` (the structures, the energy in ``info``), or ``.npz``.
        prediction: of the structures.
        structures: in the same order.
        target: what was predicted; names the energy.
        oc20_split: for npz: use the leaderboard's keys, ``{split}_ids`` and ``{split}_energy``; other splits already
            in the file stay, so that four runs make one submission.
    """
    with atomic_file(path) as temporary:
        if path.suffix == ".csv":
            with open(temporary, "w", newline="") as handle:
                writer = csv.writer(handle)
                writer.writerow(["name", f"{target}_eV"])
                writer.writerows([name, repr(float(e))] for name, e in _rows(prediction))
        elif path.suffix == ".extxyz":
            with open(temporary, "w") as handle:
                for i, (name, energy) in enumerate(_rows(prediction)):
                    atoms = to_atoms(structures[i])
                    atoms.info.update({"name": name, f"predicted_{target}": float(energy)})
                    ase.io.write(handle, atoms, format="extxyz")
        elif oc20_split is None:
            np.savez_compressed(temporary, name=np.asarray(prediction.names), energy=prediction.energies)
        else:
            others = _load_npz(path) if path.exists() else {}
            ids = np.asarray([_system_id(structures[i]) for i in range(len(structures))])
            new = {f"{oc20_split}_ids": ids, f"{oc20_split}_energy": prediction.energies}
            np.savez_compressed(temporary, **{**others, **new})  # type: ignore[arg-type]


def _system_id(structure: Any) -> str:
    return str(int(structure.sid)) if "sid" in structure else str(structure.name)


def _rows(prediction: Prediction) -> list[tuple[str, float]]:
    return list(zip(prediction.names, prediction.energies.tolist(), strict=True))


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
