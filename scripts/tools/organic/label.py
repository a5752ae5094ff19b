"""Labels of a teacher for the geometries of ``geometries``: energy, forces, dipole and partial charges.

    python -m scripts.tools.organic.label GEOMETRIES LABELLED [--processes 2]

It runs in an environment of its own, with ``pip install so3krates-torch tblite``, and needs nothing of this package.
The teacher is SO3LR (Kabylda et al., J. Am. Chem. Soc. 2025; code and weights MIT), of the class PBE0+MBD. GFN2-xTB
(Bannwarth et al., J. Chem. Theory Comput. 2019, 15, 1652) is the second opinion on geometries that are no thermal
ones of one molecule: a structure is left out if one of the two fails, a force exceeds 25 eV/Å, or forces differ by
more than 8 eV/Å, and the number is printed for each kind.
Repeated, it makes the shards that are missing.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import CalculationFailed
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

LARGEST, APART = 25.0, 8.0
"""eV/Å: the largest force, and the largest difference between the forces of the two methods."""
TRUSTED, TOGETHER = ("thermal", "spice", "conformer", "benchmark", "far", "ion"), 16
"""Kinds without a second opinion, and structures that the teacher computes at once."""
CUTOFF, DAMPING = 1_000.0, 2.0
"""Å: all pairs count in the teacher's long-range terms."""


def so3lr() -> Any:
    """Return the teacher, on one thread."""
    import torch
    from so3krates_torch.calculator.so3 import SO3LRCalculator

    torch.set_num_threads(1)
    return SO3LRCalculator(default_dtype="float64", r_max_lr=CUTOFF, dispersion_energy_cutoff_lr_damping=DAMPING)


def taught(teacher: Any, many: list[Atoms]) -> list[dict[str, Any]]:
    """Return the teacher's energy, forces, dipole and partial charges of structures, computed together."""
    from so3krates_torch.data.atomic_data import AtomicData
    from so3krates_torch.data.utils import config_from_atoms
    from so3krates_torch.tools.torch_geometric.dataloader import DataLoader

    bare = [Atoms(atoms.numbers, atoms.positions, info={"charge": float(atoms.info["charge"])}) for atoms in many]
    configs = [config_from_atoms(atoms, key_specification=teacher.key_specification) for atoms in bare]
    reach = {"z_table": teacher.z_table, "cutoff": teacher.r_max, "cutoff_lr": teacher.r_max_lr}
    data = [AtomicData.from_config(config, **reach) for config in configs]
    batch = next(iter(DataLoader(dataset=data, batch_size=len(data), shuffle=False, drop_last=False)))
    found = teacher.models[0](batch.to_dict(), compute_stress=False)
    energies, dipoles = (found[name].detach().numpy() for name in ("energy", "dipole"))
    ends = np.cumsum([len(atoms) for atoms in many])[:-1]
    by_atom = zip(
        *(np.split(found[name].detach().numpy(), ends) for name in ("forces", "partial_charges")), strict=True
    )
    return [
        {"energy": float(energy), "forces": forces, "dipole": dipole, "partial_charges": charges}
        for energy, dipole, (forces, charges) in zip(energies, dipoles, by_atom, strict=True)
    ]


def labelled(atoms: Atoms, found: dict[str, Any], second: Any) -> Atoms | None:
    """Return a structure with its labels in ASE's place and in ``arrays``; None if they are doubtful."""
    forces = found["forces"]
    if not np.isfinite(forces).all() or abs(forces).max() > LARGEST:
        return None
    if atoms.info["kind"] not in TRUSTED:
        copy = Atoms(atoms.numbers, atoms.positions, calculator=second)
        if abs(forces - copy.get_forces()).max() > APART:
            return None
    result = Atoms(atoms.numbers, atoms.positions, info=atoms.info)
    result.arrays["partial_charges"] = found.pop("partial_charges")
    result.calc = SinglePointCalculator(result, **found)
    return result


def label(file: Path, target: Path) -> Counter[str]:
    """Label a shard and count what was kept and left out of each kind."""
    from tblite.ase import TBLite

    warnings.simplefilter("ignore")
    teacher, kept, counts = so3lr(), [], Counter()
    second = TBLite(method="GFN2-xTB", verbosity=0)
    structures = read(file, ":")
    for start in range(0, len(structures), TOGETHER):
        some = structures[start : start + TOGETHER]
        for atoms, found in zip(some, taught(teacher, some), strict=True):
            try:
                made = labelled(atoms, found, second)
            except CalculationFailed:
                made = None
            counts[f"{atoms.info['kind']}, {'left out' if made is None else 'kept'}"] += 1
            if made is not None:
                kept.append(made)
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
    missing = [pair for pair in pairs if not pair[1].exists()]
    total: Counter[str] = Counter()
    with get_context("spawn").Pool(options.processes, maxtasksperchild=4) as pool:
        waiting = [pool.apply_async(label, pair) for pair in missing]
        for k, result in enumerate(waiting):
            total += result.get()
            print(f"{k + 1} of {len(missing)} shards; {dict(sorted(total.items()))}", flush=True)


if __name__ == "__main__":
    main()
