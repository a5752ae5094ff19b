"""Geometries of organic molecules, dimers and clusters for a teacher to label.

    python -m scripts.tools.organic.geometries FOLDER
    python -m scripts.tools.organic.geometries FOLDER --molecules 40 --shard 20     # to try it

Reads the SMILES and dimers below $MOLFLT_DATA/organic and writes FOLDER/NNNNN.extxyz, a shard for every 200
molecules, complete or not at all. Repeated, it makes the shards that are missing; each depends on the seed and its
number alone.

    thermal    from Langevin dynamics on the MMFF94 force field at 300 to 1,000 K, of several conformers
    stretched  a single bond made 0.85 to 1.8 times as long, the parts as they are
    torsion    a rotatable bond turned by any angle
    dimer      two molecules of a shard, their closest atoms 1.6 to 12 Å apart
    cluster    2 to 30 molecules of water, or of water around a molecule

Every structure has ``smiles``, ``kind``, ``charge`` and ``split``. Molecules are held out by their scaffold (Bemis
and Murcko, J. Med. Chem. 1996, 39, 2887): all that share one are in one split. The molecules of the benchmark's
dimers are in none.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.data import covalent_radii
from ase.io import read, write
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem, rdDetermineBonds, rdForceFieldHelpers, rdMolTransforms
from rdkit.Chem.Scaffolds import MurckoScaffold
from rich.progress import track

from molflt.files import atomic_file

KCAL = units.kcal / units.mol
WATER = "O"
SHARES = {"test": 0.05, "val": 0.05}
TOO_CLOSE = 0.5
"""Of the sum of covalent radii: geometries with closer atoms are not kept."""


def of_hash(text: str) -> float:
    """Return a number in [0, 1) that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def split_of(mol: Chem.Mol) -> str:
    """Return the split of a molecule: that of its scaffold, or of itself if it has no ring."""
    scaffold = MurckoScaffold.MurckoScaffoldSmiles(mol=Chem.RemoveHs(mol)) or Chem.MolToSmiles(Chem.RemoveHs(mol))
    place = of_hash(scaffold)
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    return "train"


def skeleton(mol: Chem.Mol) -> str:
    """Return a molecule's connectivity without bond orders, which coordinates alone tell."""
    bare = Chem.RWMol(Chem.AddHs(mol))
    for bond in bare.GetBonds():
        bond.SetBondType(Chem.BondType.SINGLE)
        bond.SetIsAromatic(False)
    for atom in bare.GetAtoms():
        atom.SetIsAromatic(False)
        atom.SetFormalCharge(0)
        atom.SetNoImplicit(True)
        atom.SetNumRadicalElectrons(0)
    return str(Chem.MolToSmiles(bare, isomericSmiles=False))


def benchmark_skeletons(data: Path) -> set[str]:
    """Return the skeletons of the molecules of the benchmark's dimers."""
    found = set()
    # ASE's reader goes back and forth, which takes minutes in a compressed file.
    text = gzip.decompress((data / "sapt10k_part.extxyz.gz").read_bytes()).decode()
    for atoms in read(io.StringIO(text), ":", format="extxyz"):
        first = atoms.info["n_first"]
        for part in (atoms[:first], atoms[first:]):
            rows = zip(part.symbols, part.positions, strict=True)
            lines = [f"{symbol} {x:.6f} {y:.6f} {z:.6f}" for symbol, (x, y, z) in rows]
            mol = Chem.MolFromXYZBlock("\n".join([str(len(part)), "", *lines]))
            rdDetermineBonds.DetermineConnectivity(mol)
            found.add(skeleton(mol))
    return found


class Molecule:
    """A molecule with its force field.

    Raises:
        ValueError: it cannot be embedded, or MMFF94 does not know its atoms.
    """

    def __init__(self, smiles: str, seed: int) -> None:
        self.smiles, mol = smiles, Chem.AddHs(Chem.MolFromSmiles(smiles))
        if (
            AllChem.EmbedMolecule(mol, randomSeed=seed)
            or (properties := rdForceFieldHelpers.MMFFGetMoleculeProperties(mol)) is None
        ):
            raise ValueError(smiles)
        rdForceFieldHelpers.MMFFOptimizeMolecule(mol)
        self.mol = mol
        self.field = rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, properties)
        self.field.Initialize()
        self.numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
        self.masses = Atoms(self.numbers).get_masses()
        self.split = split_of(mol)

    @property
    def positions(self) -> np.ndarray:
        """(n_atoms, 3) Å."""
        return np.array(self.mol.GetConformer().GetPositions())

    def thermal(self, kelvin: float, n_steps: int, random: np.random.Generator) -> np.ndarray:
        """Return positions after Langevin dynamics (BAOAB, 1 fs, friction 0.05/fs) from the embedded ones."""
        x, step, damping = self.positions, units.fs, np.exp(-0.05)
        width = np.sqrt(units.kB * kelvin / self.masses)[:, None]
        v = width * random.normal(size=x.shape)
        force = self._force(x)
        for _ in range(n_steps):
            v += step / 2 * force / self.masses[:, None]
            x = x + step / 2 * v
            v = damping * v + np.sqrt(1 - damping**2) * width * random.normal(size=x.shape)
            x = x + step / 2 * v
            force = self._force(x)
            v += step / 2 * force / self.masses[:, None]
        return x

    def _force(self, x: np.ndarray) -> np.ndarray:
        # The field keeps distances, which only ``Initialize`` forgets.
        self.field.Initialize()
        return -KCAL * np.reshape(self.field.CalcGrad(x.ravel().tolist()), (-1, 3))

    def changed(self, kind: str, x: np.ndarray, random: np.random.Generator) -> np.ndarray | None:
        """Stretch a single bond or turn a rotatable one; None where there is none."""
        pattern = "[!#1]~[!$(*#*)&!D1]-&!@[!$(*#*)&!D1]~[!#1]" if kind == "torsion" else "*-&!@*"
        places = self.mol.GetSubstructMatches(Chem.MolFromSmarts(pattern))
        if not places:
            return None
        place = places[random.integers(len(places))]
        # A conformer keeps no molecule alive.
        copy = Chem.Mol(self.mol)
        conformer = copy.GetConformer()
        for k, point in enumerate(x):
            conformer.SetAtomPosition(k, point.tolist())
        if kind == "torsion":
            rdMolTransforms.SetDihedralDeg(conformer, *place, float(random.uniform(-180, 180)))
        else:
            length = rdMolTransforms.GetBondLength(conformer, *place)
            rdMolTransforms.SetBondLength(conformer, *place, float(length * random.uniform(0.85, 1.8)))
        return np.array(conformer.GetPositions())


def turned(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Centre positions and turn them by a random rotation."""
    q, r = np.linalg.qr(random.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return (x - x.mean(axis=0)) @ (q * np.sign(np.linalg.det(q)))


def beside(x: np.ndarray, y: np.ndarray, gap: float, random: np.random.Generator) -> np.ndarray:
    """Return the second positions moved in a random direction until the closest atoms are ``gap`` Å apart."""
    direction = random.normal(size=3)
    direction /= np.linalg.norm(direction)
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        distance = np.linalg.norm(x[:, None] - y[None] - middle * direction, axis=-1).min()
        low, high = (middle, high) if distance < gap else (low, middle)
    return y + high * direction


def usable(numbers: np.ndarray, x: np.ndarray) -> bool:
    """True if no two atoms are too close for a teacher."""
    distance = np.linalg.norm(x[:, None] - x[None], axis=-1) + 10 * np.eye(len(x))
    return bool((distance > TOO_CLOSE * np.add.outer(covalent_radii[numbers], covalent_radii[numbers])).all())


def structures(smiles: list[str], seed: int) -> Iterator[Atoms]:
    """Yield the structures of a shard."""
    random, molecules = np.random.default_rng(seed), []
    for text in smiles:
        try:
            molecules.append(Molecule(text, int(random.integers(2**31))))
        except ValueError:
            continue
    water = Molecule(WATER, 1)
    for molecule in molecules:
        for kind in ("thermal", "thermal", "thermal", "stretched", "torsion"):
            x: np.ndarray | None = molecule.thermal(random.uniform(300, 1000), 200, random)
            if kind != "thermal":
                x = molecule.changed(kind, x, random)
            if x is not None:
                yield labelled([molecule], [x], kind)
        other = molecules[random.integers(len(molecules))]
        if other.split == molecule.split:
            first, second = (turned(m.thermal(300.0, 200, random), random) for m in (molecule, other))
            gap = random.uniform(1.6, 4.0) if random.random() < 0.7 else random.uniform(4.0, 12.0)
            yield labelled([molecule, other], [first, beside(first, second, gap, random)], "dimer")
        if random.random() < 0.15 and len(molecule.numbers) < 40:
            parts = [water if random.random() < 0.5 else molecule]
            places = [turned(parts[0].thermal(300.0, 200, random), random)]
            for _ in range(int(random.integers(1, 20))):
                parts.append(water)
                around, drop = np.concatenate(places), turned(water.thermal(300.0, 50, random), random)
                tries = [beside(around, drop, random.uniform(1.7, 2.2), random) for _ in range(8)]
                places.append(min(tries, key=lambda y: float(np.linalg.norm(y.mean(axis=0) - around.mean(axis=0)))))
            yield labelled(parts, places, "cluster")


def labelled(parts: list[Molecule], places: list[np.ndarray], kind: str) -> Atoms:
    """Join molecules into a structure."""
    atoms = Atoms(np.concatenate([part.numbers for part in parts]), np.concatenate(places))
    names = ".".join(dict.fromkeys(part.smiles for part in parts))
    splits = {part.split for part in parts if part.smiles != WATER} or {"train"}
    atoms.info = {"smiles": names, "kind": kind, "charge": 0, "split": splits.pop(), "n_first": len(parts[0].numbers)}
    return atoms


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--molecules", type=int, help="the first so many, in random order; all if not given")
    parser.add_argument("--shard", type=int, default=200, help="molecules of a shard")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    data = Path(os.environ["MOLFLT_DATA"]) / "organic"
    with gzip.open(data / "smiles.csv.gz", "rt", encoding="utf-8") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    np.random.default_rng(options.seed).shuffle(smiles)
    known = benchmark_skeletons(data)
    smiles = [text for text in smiles[: options.molecules] if skeleton(Chem.MolFromSmiles(text)) not in known]
    options.folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(smiles), options.shard)
    for k, start in enumerate(track(starts, "geometries")):
        file = options.folder / f"{k:05d}.extxyz"
        if not file.exists():
            found = structures(smiles[start : start + options.shard], options.seed + k)
            kept = [atoms for atoms in found if usable(atoms.numbers, atoms.positions)]
            with atomic_file(file) as partial:
                write(partial, kept, format="extxyz")


if __name__ == "__main__":
    main()
