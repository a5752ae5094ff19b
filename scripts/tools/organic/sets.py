"""Labelled shards sorted into the sets that `pretrained:organic` is trained and judged on.

    python -m scripts.tools.organic.sets LABELLED [LABELLED ...] FOLDER

Writes FOLDER/train.extxyz, val.extxyz, test.extxyz (one geometry at 300 K of each molecule held out),
conformers.extxyz, dipeptides.extxyz, benchmark.extxyz and far.extxyz (dimers held out, with both molecules of each),
outside.extxyz (ions, broken and squeezed molecules), and prints what each has.
Structures of the split `test` that belong to none of these, such as conformations of SPICE, are left out.

Not all is learnt from the teacher. The energy of a dimer of the benchmark is that of its two molecules by the
teacher and the benchmark's interaction energy. Dimers beyond the teacher's cutoff are left out: it shares charges
evenly among all atoms, so that its molecules charge each other from any distance.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import read, write
from scipy.spatial.distance import cdist

from molflt.files import atomic_file

MOST = 500
"""Structures to validate on, evenly chosen: more only takes time."""


CUTOFF = 4.5
"""Å, of the teacher's messages."""


def by_reference(structures: list[Atoms]) -> list[Atoms]:
    """Give dimers their reference interaction energies; each comes just before its two molecules."""
    groups: dict[int, list[Atoms]] = {}
    for atoms in structures:
        groups.setdefault(int(atoms.info["dimer"]), []).append(atoms)
    kept = []
    for dimer, *molecules in groups.values():
        if "n_first" not in dimer.info or len(molecules) != 2:
            continue
        dimer.calc.results["energy"] = dimer.info["interaction_energy"] + sum(
            molecule.get_potential_energy() for molecule in molecules
        )
        kept += [dimer, *molecules]
    return kept


def beyond_cutoff(atoms: Atoms) -> bool:
    """True for a dimer whose molecules the teacher couples by their charges alone."""
    if atoms.info["kind"] != "dimer":
        return False
    first, second = np.split(atoms.positions, [atoms.info["n_first"]])
    return bool(cdist(first, second).min() > CUTOFF)


def set_of(part: str, split: str) -> str | None:
    """Return the set of a structure of a part of the geometries and a split."""
    if part in ("test", "conformers", "dipeptides", "far", "outside"):
        return part
    if split == "test":
        return part if part == "benchmark" else None
    return split


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labelled", nargs="+", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Atoms]] = {}
    for file in sorted(path for folder in options.labelled for path in folder.glob("*.extxyz")):
        part = file.name.split("-")[0]
        for atoms in read(file, ":"):
            name = set_of(part, atoms.info["split"])
            if name is not None and not beyond_cutoff(atoms):
                found.setdefault(name, []).append(atoms)
    for name in ("train", "val"):
        dimers = [atoms for atoms in found[name] if "dimer" in atoms.info]
        # Molecules of dimers that are held out are in other dimers, which are not.
        kept = by_reference(dimers)[:: 1 if name == "train" else 3]
        found[name] = [atoms for atoms in found[name] if "dimer" not in atoms.info] + kept
    found["val"] = found["val"][:: -(-len(found["val"]) // MOST)]
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, structures in found.items():
        with atomic_file(options.folder / f"{name}.extxyz") as unfinished:
            write(unfinished, structures, format="extxyz")
        kinds = Counter(atoms.info["kind"] for atoms in structures)
        print(f"{name}: {len(structures)} structures, {sum(map(len, structures))} atoms; {dict(kinds)}")


if __name__ == "__main__":
    main()
