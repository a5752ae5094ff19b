"""Dynamics of small molecules at three temperatures, to see how forces hold outside their training set.

Langevin dynamics by GFN2-xTB (Bannwarth, Ehlert and Grimme 2019, doi:10.1021/acs.jctc.8b01176) in steps of 1 fs, a
geometry every 20 fs: 500 at 300 K (the last 50 to validate on), and others from runs of their own, 200 each at 300,
600 and 1,200 K. ``scan.xyz`` turns a bond, all else being rigid, in steps of 10° as far as 2 eV above the lowest.
``bonds.xyz`` presses and stretches every bond of a hydrogen to 0.75 to 1.4 of its length.

    python -m venv .venv-xtb && .venv-xtb/bin/pip install tblite ase rdkit
    .venv-xtb/bin/python -m scripts.benchmarks.xtb_molecules --out runs/xtb --molecules acetylacetone

Needs no other part of the package. A file that is there is not made again.
"""

from __future__ import annotations

import argparse
import os
import zlib
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read as read_frames
from ase.io import write as write_frames
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import BFGS

MOLECULES = {
    "acetylacetone": (r"C\C(O)=C\C(C)=O", (1, 3, 4, 6)),
    "malonaldehyde": (r"O\C=C/C=O", (1, 2, 3, 4)),
    "ethanol": ("CCO", (0, 1, 2, 8)),
    "aspirin": ("CC(=O)Oc1ccccc1C(=O)O", (1, 3, 4, 5)),
    "alanine dipeptide": ("CC(=O)NC(C)C(=O)NC", (1, 3, 4, 6)),
}
"""SMILES, and the atoms of the dihedral angle that is scanned; hydrogens come last."""
SETS = {"train": (300, 500), "test_300K": (300, 200), "test_600K": (600, 200), "test_1200K": (1200, 200)}
"""Temperature in K and number of geometries."""
EVERY, SETTLE, FRICTION = 20, 2000, 0.01
"""Steps between geometries, steps before the first, and 1/fs."""
SCAN_STEP, SCAN_HIGHEST = 10, 2.0
"""Degrees, and eV above the lowest energy."""
BOND_SCALES = (0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3, 1.4)
"""Lengths of bonds over those of the lowest geometry."""


def calculator() -> object:
    """GFN2-xTB of tblite."""
    from tblite.ase import TBLite  # type: ignore[import-not-found]

    return TBLite(method="GFN2-xTB", verbosity=0)


def relaxed(smiles: str) -> Atoms:
    """Return the lowest of ten conformers."""
    from rdkit import Chem
    from rdkit.Chem import rdDistGeom

    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    found = []
    for conformer in rdDistGeom.EmbedMultipleConfs(mol, 10, randomSeed=1):
        positions = mol.GetConformer(conformer).GetPositions()
        atoms = Atoms([atom.GetAtomicNum() for atom in mol.GetAtoms()], positions, calculator=calculator())
        BFGS(atoms, logfile=None).run(fmax=0.02, steps=300)
        found.append((atoms.get_potential_energy(), atoms))
    return min(found, key=lambda pair: pair[0])[1]


def labelled(atoms: Atoms) -> Atoms:
    """Copy a geometry with its energy (eV) and forces (eV/Å)."""
    copy = Atoms(atoms.numbers, atoms.positions)
    copy.calc = SinglePointCalculator(copy, energy=atoms.get_potential_energy(), forces=atoms.get_forces())
    return copy


def run(start: Atoms, temperature: float, n: int, seed: int) -> list[Atoms]:
    """Return ``n`` geometries of a run at ``temperature`` (K)."""
    rng = np.random.default_rng(seed)
    atoms = start.copy()
    atoms.calc = calculator()
    thermalize_momenta(atoms, temperature_K=temperature, rng=rng)
    dynamics = Langevin(
        atoms, units.fs, temperature_K=temperature, friction=FRICTION / units.fs, rng=rng, fixcm=False
    )
    dynamics.run(SETTLE)
    found = []
    for _ in range(n):
        dynamics.run(EVERY)
        found.append(labelled(atoms))
    return found


def scan(start: Atoms, dihedral: tuple[int, ...], bonds: np.ndarray) -> list[Atoms]:
    """Turn the part of the molecule behind a bond."""
    atoms = start.copy()
    atoms.calc = calculator()
    behind, border = {dihedral[2]}, {dihedral[2]}
    while border:
        border = {int(j) for i in border for j in np.flatnonzero(bonds[i])} - behind - {dihedral[1]}
        behind |= border
    at = start.get_dihedral(*dihedral)
    found = []
    for angle in np.arange(0, 360, SCAN_STEP):
        atoms.set_dihedral(*dihedral, angle=at + angle, indices=sorted(behind))
        found.append(labelled(atoms))
    lowest = min(frame.get_potential_energy() for frame in found)
    return [frame for frame in found if frame.get_potential_energy() < lowest + SCAN_HIGHEST]


def pressed(start: Atoms, bonds: np.ndarray) -> list[Atoms]:
    """Move each hydrogen along its bond."""
    found = []
    for h in np.flatnonzero(start.numbers == 1):
        (partner,) = np.flatnonzero(bonds[h])[:1]
        for scale in BOND_SCALES:
            atoms = start.copy()
            atoms.calc = calculator()
            atoms.positions[h] = start.positions[partner] + scale * (start.positions[h] - start.positions[partner])
            found.append(labelled(atoms))
    return found


def bonded(atoms: Atoms) -> np.ndarray:
    """(n, n), which atoms are nearer than 1.25 times the sum of their covalent radii."""
    from ase.data import covalent_radii

    radii = covalent_radii[atoms.numbers]
    distances = atoms.get_all_distances()
    return (distances < 1.25 * (radii[:, None] + radii)) & (distances > 0)


def write(path: Path, frames: list[Atoms]) -> None:
    """Write extxyz, whole or not at all."""
    part = path.with_suffix(".part")
    write_frames(part, frames, format="extxyz")
    part.replace(path)
    print(path, len(frames), flush=True)


def main() -> None:
    """Make the sets that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--molecules", nargs="+", choices=list(MOLECULES), default=list(MOLECULES))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in options.molecules:
        smiles, dihedral = MOLECULES[name]
        folder = options.out / name.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        lowest = folder / "lowest.xyz"
        if not lowest.exists():
            write(lowest, [labelled(relaxed(smiles))])
        start = read_frames(lowest)
        for part, (temperature, n) in SETS.items():
            path = folder / f"{part}.xyz"
            if not path.exists():
                write(path, run(start, temperature, n, zlib.crc32(f"{name} {part}".encode())))
        if not (folder / "scan.xyz").exists():
            write(folder / "scan.xyz", scan(start, dihedral, bonded(start)))
        if not (folder / "bonds.xyz").exists():
            write(folder / "bonds.xyz", pressed(start, bonded(start)))


if __name__ == "__main__":
    main()
