"""Make the bundled FG set, in the layout of OC20's IS2RE, from the publishers' slices.

Example:
    MOLFLT_DATA=../shared/data python -m scripts.tools.fg.make --out data/fg

The same slices give the same records. Slice 0 belongs to nobody who trains and is not asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import ase.io
import numpy as np
import typer
from ase import Atoms

from molflt.data.oc20.writer import write_lmdb

SPLITS = {"train": (2, 3, 4), "val": (1,)}
"""Slices of every file."""


def to_record(atoms: Atoms) -> dict[str, Any]:
    """Record in OC20's layout of a row of a slice: the initial geometry, arrays and info."""
    info, arrays = atoms.info, atoms.arrays
    # Not from info: ASE reads 13_1, the name of a molecule, as the number 131.
    metal, molecule, _ = info["name"].split("-")
    return {
        "pos": atoms.positions.astype(np.float32),
        "pos_relaxed": arrays["pos_relaxed"].astype(np.float32),
        "cell": np.array(atoms.cell, dtype=np.float32)[None],
        "atomic_numbers": atoms.numbers.astype(np.uint8),
        "tags": arrays["tags"].astype(np.uint8),
        "fixed": arrays["fixed"].astype(np.uint8),
        "natoms": len(atoms),
        "y_init": float(info["y_init"]),
        "y_relaxed": float(info["y_relaxed"]),
        "sid": int(info["sid"]),
        "name": info["name"],
        "metal": metal.capitalize(),
        "molecule": molecule,
        "group": info["group"],
        "slice": int(info["slice"]),
    }


def read_slice(folder: Path, number: int) -> list[Atoms]:
    """The rows of a slice in their order.

    Raises:
        typer.BadParameter: there is no such file.
    """
    path = folder / f"slice{number}.extxyz.gz"
    if not path.exists():
        raise typer.BadParameter(f"{path}: no such file; name the folder of the slices with --source")
    return ase.io.read(path, index=":", format="extxyz")


def main(
    source: Annotated[Path, typer.Option(help="Folder of data that holds fg/.", envvar="MOLFLT_DATA")],
    out: Annotated[Path, typer.Option(help="Folder for the LMDB files.")] = Path("data/fg"),
    overwrite: Annotated[bool, typer.Option(help="Replace existing files.")] = False,
) -> None:
    """Write OUT/train.lmdb and OUT/val.lmdb."""
    out.mkdir(parents=True, exist_ok=True)
    for split, numbers in SPLITS.items():
        records = [to_record(atoms) for number in numbers for atoms in read_slice(source / "fg", number)]
        path = out / f"{split}.lmdb"
        write_lmdb(path, records, overwrite=overwrite, resume=False)
        typer.echo(f"{path}: {len(records)} structures, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    typer.run(main)
