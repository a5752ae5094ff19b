"""Errors of any ASE calculator on the sets of ``sets``, as one row of a table.

    python -m scripts.tools.organic.score CALCULATOR FOLDER [--most 200]

CALCULATOR is one of those of ``molflt benchmark``, `so3lr` (so3krates-torch), or `labels`: what the teacher has
without computing it again. Models of molflt apart, this needs NumPy and ASE alone, so that it runs in the environment
of ``label`` as well.

    forces        mean absolute error of components against the teacher, meV/Å; one geometry of each molecule held out
    dipole        mean length of the error against the teacher, D
    conformers    mean absolute error of the energies of a molecule's conformers against the teacher, each less the
                  mean of its molecule's, meV
    dipeptides, dipeptides_relative   as forces and conformers, of geometries of dipeptides at 300 K
    interaction   mean absolute error of interaction energies of dimers against the benchmark, meV
    far           of interaction energies of dimers 8 to 14 Å apart, the median and the largest difference from those
                  of the charges that the teacher gives to each molecule alone, meV; dispersion is below 1 meV there
    51, 999       milliseconds of energy and forces of the molecule nearest to 51 atoms, and of 333 molecules of water
                  in a cell: the median of five after atoms have moved by 0.01 Å
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.io import read

from molflt.simulate.benchmark import bare, named_calculator, score
from scripts.tools.organic.label import so3lr

MEV = 1000.0
COULOMB = 14.3996
"""e²/(4πε₀), eV Å."""


def calculator(name: str) -> Any:
    """Return the ASE calculator of a name; None for the labels."""
    warnings.simplefilter("ignore")
    if name == "labels":
        return None
    if name == "so3lr":
        return so3lr()
    return named_calculator(name)


def of_molecules(structures: list[Atoms], calc: Any) -> dict[str, float]:
    """Errors of forces and dipoles."""
    found = score(structures, calc)
    return {"forces": MEV * found.force_mae, "dipole": found.dipole_mae}


def of_conformers(structures: list[Atoms], calc: Any) -> dict[str, float]:
    """Errors of the energies of conformers."""
    return {"conformers": MEV * score(structures, calc).relative_mae}


def of_dipeptides(structures: list[Atoms], calc: Any) -> dict[str, float]:
    """Errors of forces, and of energies between geometries of one dipeptide."""
    found = score(structures, calc)
    return {"dipeptides": MEV * found.force_mae, "dipeptides_relative": MEV * found.relative_mae}


def interactions(structures: list[Atoms], calc: Any) -> tuple[np.ndarray, list[Atoms]]:
    """Interaction energies, eV, of dimers that are followed by their two molecules; the dimers."""
    energies = [(atoms if calc is None else bare(atoms, calc)).get_potential_energy() for atoms in structures]
    places = [k for k, atoms in enumerate(structures[:-2]) if "n_first" in atoms.info]
    return np.array([energies[k] - energies[k + 1] - energies[k + 2] for k in places]), [
        structures[k] for k in places
    ]


def of_dimers(structures: list[Atoms], calc: Any) -> dict[str, float]:
    """Errors of interaction energies against the benchmark's."""
    found, dimers = interactions(structures, calc)
    reference = np.array([atoms.info["interaction_energy"] for atoms in dimers])
    return {"interaction": MEV * float(abs(found - reference).mean())}


def of_distant(structures: list[Atoms], calc: Any) -> dict[str, float]:
    """Deviations of the interaction energies of distant dimers from those of point charges."""
    found, _ = interactions(structures, calc)
    expected = []
    for one, other in zip(structures[1::3], structures[2::3], strict=True):
        q, p = one.arrays["partial_charges"], other.arrays["partial_charges"]
        r = np.linalg.norm(one.positions[:, None] - other.positions[None], axis=-1)
        expected.append(COULOMB * float(q @ (1 / r) @ p))
    wrong = MEV * abs(found - np.array(expected))
    return {"far": float(np.median(wrong)), "far_max": float(wrong.max())}


def water(n: int = 333) -> Atoms:
    """Molecules of water turned at random on sites of a lattice, at the density of the liquid."""
    random, drop = np.random.default_rng(0), molecule("H2O")
    length, sites = (n * 29.9) ** (1 / 3), int(np.ceil(n ** (1 / 3) - 1e-9))
    grid = np.stack(np.meshgrid(*[np.arange(sites)] * 3), axis=-1).reshape(-1, 3) * length / sites
    places = []
    for site in random.permutation(grid)[:n]:
        turned = drop.copy()
        turned.rotate(random.uniform(0, 360), random.normal(size=3))
        places.append(turned.positions + site)
    return Atoms("OH2" * n, np.concatenate(places), cell=[length] * 3, pbc=True, info={"charge": 0.0})


def milliseconds(atoms: Atoms, calc: Any, n: int = 5) -> float:
    """Median time of energy and forces after small moves."""
    atoms.calc, random, found = calc, np.random.default_rng(0), []
    for _ in range(n + 1):
        atoms.positions += 0.01 * random.normal(size=atoms.positions.shape)
        begun = time.perf_counter()
        atoms.get_forces()
        found.append(MEV * (time.perf_counter() - begun))
    return float(np.median(found[1:]))


PARTS = {
    "test": of_molecules,
    "conformers": of_conformers,
    "dipeptides": of_dipeptides,
    "benchmark": of_dimers,
    "far": of_distant,
}


def scores(calc: Any, folder: Path, most: int | None = None, times: bool = True) -> dict[str, float]:
    """Errors on the sets of a folder, of at most so many molecules or dimers each, and times if wanted."""
    found: dict[str, float] = {}
    for name, judge in PARTS.items():
        file = folder / f"{name}.extxyz"
        if file.exists():
            of_each = {"test": 1, "conformers": 12, "dipeptides": 5}.get(name, 3)
            found |= judge(read(file, ":")[: most and most * of_each], calc)
    if times:
        long = min(read(folder / "test.extxyz", ":"), key=lambda atoms: abs(len(atoms) - 51))
        found |= {"51": milliseconds(bare(long, calc), calc), "999": milliseconds(water(), calc)}
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calculator")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=None, help="molecules and dimers of each set; all if not given")
    parser.add_argument("--no-times", action="store_true")
    options = parser.parse_args()
    found = scores(calculator(options.calculator), options.folder, options.most, not options.no_times)
    print(json.dumps({"calculator": options.calculator, **found}))


if __name__ == "__main__":
    main()
