"""Labels of a teacher for the geometries of ``geometries``: energy, forces, dipole and partial charges.

    python -m scripts.tools.organic.label GEOMETRIES LABELLED [--processes 2]

It runs in an environment of its own, with ``pip install so3krates-torch tblite``, and needs nothing of this package.
The teacher is SO3LR (Kabylda et al., J. Am. Chem. Soc. 2025; code and weights MIT), of the class PBE0+MBD. GFN2-xTB
(Bannwarth et al., J. Chem. Theory Comput. 2019, 15, 1652) is the second opinion: a structure is left out if one of
the two fails, a force exceeds 25 eV/Å, or forces differ by more than 8 eV/Å, and the number is printed for each kind.
Repeated, it makes the shards that are missing.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

LARGEST, APART = 25.0, 8.0
"""eV/Å: the largest force, and the largest difference between the forces of the two methods."""
CUTOFF, DAMPING = 1_000.0, 2.0
"""Å: all pairs count in the teacher's long-range terms."""


def labelled(atoms: Atoms, teacher: object, second: object) -> Atoms | None:
    """Return a structure with its labels in ASE's place and in ``info`` and ``arrays``; None if they are doubtful."""
    copy = Atoms(atoms.numbers, atoms.positions, info={"charge": 0.0})
    copy.calc = teacher
    energy, forces = copy.get_potential_energy(), copy.get_forces()
    found = dict(copy.calc.results)
    copy.calc = second
    other = copy.get_forces()
    if not np.isfinite(forces).all() or abs(forces).max() > LARGEST or abs(forces - other).max() > APART:
        return None
    result = Atoms(atoms.numbers, atoms.positions, info={**atoms.info, "energy_gfn2": copy.get_potential_energy()})
    result.arrays["partial_charges"] = np.asarray(found["partial_charges"])
    result.calc = SinglePointCalculator(result, energy=energy, forces=forces, dipole=np.asarray(found["dipole"]))
    return result


def label(file: Path, target: Path) -> Counter[str]:
    """Label a shard and count what was kept and left out of each kind."""
    import torch
    from so3krates_torch.calculator.so3 import SO3LRCalculator
    from tblite.ase import TBLite

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    teacher = SO3LRCalculator(default_dtype="float64", r_max_lr=CUTOFF, dispersion_energy_cutoff_lr_damping=DAMPING)
    second, kept, counts = TBLite(method="GFN2-xTB", verbosity=0), [], Counter()
    for atoms in read(file, ":"):
        try:
            found = labelled(atoms, teacher, second)
        except Exception:
            found = None
        counts[f"{atoms.info['kind']}, {'left out' if found is None else 'kept'}"] += 1
        if found is not None:
            kept.append(found)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    write(partial, kept, format="extxyz")
    partial.replace(target)
    return counts


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("geometries", type=Path)
    parser.add_argument("labelled", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.labelled.mkdir(parents=True, exist_ok=True)
    pairs = [(file, options.labelled / file.name) for file in sorted(options.geometries.glob("*.extxyz"))]
    missing, total = [pair for pair in pairs if not pair[1].exists()], Counter()
    with get_context("spawn").Pool(options.processes, maxtasksperchild=4) as pool:
        waiting = [pool.apply_async(label, pair) for pair in missing]
        for k, result in enumerate(waiting):
            total += result.get()
            print(f"{k + 1} of {len(missing)} shards; {dict(sorted(total.items()))}", flush=True)


if __name__ == "__main__":
    main()
