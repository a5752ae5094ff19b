"""Geometries of organic molecules, dimers and clusters for a teacher to label.

    python -m scripts.tools.organic.geometries FOLDER
    python -m scripts.tools.organic.geometries FOLDER --parts molecules --largest 24 --shards 10

Reads the files below $MOLFLT_DATA/organic and writes FOLDER/PART-NNNNN.extxyz, a shard for every 200 molecules,
complete or not at all. Repeated, it makes the shards that are missing; each depends on the seed, on ``--largest`` and
on its number alone.

    test        of each molecule of the split `test` one geometry, after dynamics at 300 K
    conformers  of 50 of these molecules up to 12 conformers, relaxed
    dipeptides  of 40 dipeptides, neutral and capped as CH3-CO and NH-CH3, five geometries each at 300 K
    outside     of these molecules what no model is trained on, the kinds `ion`, `broken` and `squeezed` below
    spice       the conformations of the monomers of SPICE
    benchmark   the neutral dimers of SAPT10k with their reference energies, each followed by both molecules
    far         40 of these moved apart until their closest atoms are 8 to 14 Å apart, likewise
    molecules   of all other molecules, at random, the kinds below

    thermal    from Langevin dynamics on the MMFF94 force field at 300 to 1,000 K
    stretched  a single bond made 0.85 to 1.8 times as long, the parts as they are
    torsion    a rotatable bond turned by any angle
    dimer      two molecules of a shard, their closest atoms 1.6 to 12 Å apart
    cluster    2 to 30 molecules of water, or of water around a molecule
    ion        a carboxylic acid without its proton, or an amine with one more, at 300 K
    broken     a single bond made 2 to 3 times as long, the parts as they are
    squeezed   all positions times 0.8 to 0.9

Every structure has ``smiles``, ``kind``, ``charge`` and ``split``. Molecules are held out by their scaffold (Bemis
and Murcko, J. Med. Chem. 1996, 39, 2887): all that share one are in one split. The benchmark's dimers are held out by
the pair of molecules, so that all their molecules are in `train`; none is a molecule of `test`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, permutations
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.data import covalent_radii
from ase.io import read, write
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem, rdDetermineBonds, rdForceFieldHelpers, rdMolDescriptors, rdMolTransforms
from rdkit.Chem.Scaffolds import MurckoScaffold
from rich.progress import track

from molflt.files import atomic_file

KCAL = units.kcal / units.mol
WATER = "O"
PARTS = ("test", "conformers", "dipeptides", "outside", "spice", "benchmark", "far", "molecules")
MOLECULES, STRUCTURES = 200, 500
"""Molecules of a shard, and structures of a shard of those that are only read."""
SHARES = {"test": 0.05, "val": 0.03}
SALT = "h"
"""Chosen so that benzene, the scaffold of an eighth of the molecules, is one to train on."""
SPICE_LENGTH = 18.897
"""Å in a unit of the coordinates of SPICE's file."""
IONS = ("[OX2H1:1][CX3:2]=[O:3]>>[O-:1][CX3:2]=[O:3]", "[NX3;!$(N~[!#6;!#1]);!$(N-C=[!#6]);!$(N-[#6;a]):1]>>[N+:1]")
"""An acid that loses its proton, and an amine that takes one."""
STRETCH = {"stretched": (0.85, 1.8), "broken": (2.0, 3.0)}
"""How many times as long as before a bond is made."""
SIDE_CHAINS = (
    *("", "C", "C(C)C", "CC(C)C", "C(C)CC", "Cc1ccccc1", "Cc1ccc(O)cc1", "Cc1c[nH]c2ccccc12", "CO", "C(C)O"),
    *("CS", "CCSC", "CC(N)=O", "CCC(N)=O", "Cc1c[nH]cn1", "CC(=O)O", "CCC(=O)O", "CCCCN", "CCCNC(N)=N"),
)
"""Of the natural amino acids but proline, without charges."""
TOO_CLOSE = 0.5
"""Of the sum of covalent radii: geometries with closer atoms are not kept."""


def of_hash(text: str) -> float:
    """Return a number in [0, 1) that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def split_of(mol: Chem.Mol) -> str:
    """Return the split of a molecule: that of its scaffold, or of itself if it has no ring."""
    scaffold = MurckoScaffold.MurckoScaffoldSmiles(mol=Chem.RemoveHs(mol)) or Chem.MolToSmiles(Chem.RemoveHs(mol))
    return split_at(of_hash(SALT + scaffold))


def split_at(place: float) -> str:
    """Return the split of a number in [0, 1)."""
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


def records(file: Path) -> list[Atoms]:
    """Read a compressed extended XYZ file from memory: ASE's reader goes back and forth, which takes minutes."""
    found: list[Atoms] = read(io.StringIO(gzip.decompress(file.read_bytes()).decode()), ":", format="extxyz")
    return found


def benchmark(data: Path) -> tuple[list[Atoms], set[str]]:
    """Return the benchmark's neutral dimers with their split, and the skeletons of all its molecules."""
    found, known = [], set()
    for k, atoms in enumerate(records(data / "sapt10k_part.extxyz.gz")):
        first = atoms.info["n_first"]
        parts = atoms[:first], atoms[first:]
        pair = []
        for part in parts:
            rows = zip(part.symbols, part.positions, strict=True)
            lines = [f"{symbol} {x:.6f} {y:.6f} {z:.6f}" for symbol, (x, y, z) in rows]
            mol = Chem.MolFromXYZBlock("\n".join([str(len(part)), "", *lines]))
            rdDetermineBonds.DetermineConnectivity(mol)
            pair.append(skeleton(mol))
        known |= set(pair)
        if atoms.info["charge_first"] or atoms.info["charge_second"]:
            continue
        names = {"smiles": ".".join(pair), "kind": "benchmark", "charge": 0, "dimer": k}
        # The shares of a split by pair are coarse: one pair, of two waters, has a fifth of the dimers.
        split = (
            "train"
            if pair[0] == pair[1] == skeleton(Chem.MolFromSmiles(WATER))
            else split_at(of_hash("|".join(sorted(pair))) / 2)
        )
        reference = {key: atoms.info[key] for key in ("n_first", "interaction_energy", "dispersion")}
        for part in (atoms, *parts):
            copy = Atoms(
                part.numbers, part.positions, info={**names, "split": split, **(reference if part is atoms else {})}
            )
            found.append(copy)
    return found, known


def distant(dimers: list[Atoms], seed: int) -> list[Atoms]:
    """Return dimers held out, one of each pair of molecules, moved apart, each followed by both molecules."""
    random, found = np.random.default_rng(seed), []
    held = {
        atoms.info["smiles"]: atoms for atoms in dimers if atoms.info["split"] == "test" and "n_first" in atoms.info
    }
    for atoms in list(held.values())[:40]:
        first = atoms.info["n_first"]
        moved = beside(atoms.positions[:first], atoms.positions[first:], random.uniform(8.0, 14.0), random)
        apart = Atoms(
            atoms.numbers, np.concatenate([atoms.positions[:first], moved]), info={**atoms.info, "kind": "far"}
        )
        single = {key: apart.info[key] for key in ("smiles", "kind", "charge", "split", "dimer")}
        parts = [Atoms(part.numbers, part.positions, info=single) for part in (apart[:first], apart[first:])]
        found += [apart, *parts]
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
            rdMolTransforms.SetBondLength(conformer, *place, float(length * random.uniform(*STRETCH[kind])))
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
        for kind in ("thermal", "thermal", random.choice(["stretched", "torsion"])):
            x: np.ndarray | None = molecule.thermal(random.uniform(300, 1000), 200, random)
            if kind != "thermal":
                x = molecule.changed(kind, x, random)
            if x is not None:
                yield labelled([molecule], [x], kind)
        other = molecules[random.integers(len(molecules))]
        if other.split == molecule.split and random.random() < 0.4:
            first, second = (turned(m.thermal(300.0, 200, random), random) for m in (molecule, other))
            gap = random.uniform(1.6, 4.0) if random.random() < 0.7 else random.uniform(4.0, 12.0)
            yield labelled([molecule, other], [first, beside(first, second, gap, random)], "dimer")
        if random.random() < 0.08 and len(molecule.numbers) < 40:
            parts = [water if random.random() < 0.5 else molecule]
            places = [turned(parts[0].thermal(300.0, 200, random), random)]
            for _ in range(int(random.integers(1, 20))):
                parts.append(water)
                around, drop = np.concatenate(places), turned(water.thermal(300.0, 50, random), random)
                tries = [beside(around, drop, random.uniform(1.7, 2.2), random) for _ in range(8)]
                places.append(min(tries, key=lambda y: float(np.linalg.norm(y.mean(axis=0) - around.mean(axis=0)))))
            yield labelled(parts, places, "cluster")


def held_out(smiles: list[str], seed: int) -> Iterator[Atoms]:
    """Yield one geometry at 300 K of each molecule."""
    random = np.random.default_rng(seed)
    for text in smiles:
        try:
            molecule = Molecule(text, int(random.integers(2**31)))
        except ValueError:
            continue
        yield labelled([molecule], [molecule.thermal(300.0, 500, random)], "thermal")


def dipeptides(n: int, seed: int) -> list[str]:
    """Choose dipeptides of different residues in different order, as SMILES."""
    pairs = list(permutations(SIDE_CHAINS, 2))
    chosen = np.random.default_rng(seed).choice(len(pairs), n, replace=False)
    residues = {side: f"N[C@@H]({side})C(=O)" if side else "NCC(=O)" for side in SIDE_CHAINS}
    return [f"CC(=O){residues[pairs[k][0]]}{residues[pairs[k][1]]}NC" for k in chosen]


def strange(smiles: list[str], seed: int) -> Iterator[Atoms]:
    """Yield an ion of each molecule that has an acid or an amine, and of each a broken or a squeezed geometry."""
    random = np.random.default_rng(seed)
    for text in smiles:
        for change, charge in zip(IONS, (-1, 1), strict=True):
            made = AllChem.ReactionFromSmarts(change).RunReactants((Chem.MolFromSmiles(text),))
            if not made:
                continue
            try:
                Chem.SanitizeMol(made[0][0])
                ion = Molecule(Chem.MolToSmiles(made[0][0]), int(random.integers(2**31)))
            except ValueError:
                continue
            yield labelled([ion], [ion.thermal(300.0, 500, random)], "ion", charge)
        try:
            molecule = Molecule(text, int(random.integers(2**31)))
        except ValueError:
            continue
        x: np.ndarray | None = molecule.thermal(300.0, 500, random)
        kind = random.choice(["broken", "squeezed"])
        x = molecule.changed(kind, x, random) if kind == "broken" else random.uniform(0.8, 0.9) * x
        if x is not None:
            yield labelled([molecule], [x], kind)


def conformers(smiles: list[str], seed: int) -> Iterator[Atoms]:
    """Yield up to 12 relaxed conformers of each molecule."""
    embedding = AllChem.ETKDGv3()
    # With a seed of 0 all conformers are one.
    embedding.randomSeed, embedding.pruneRmsThresh = seed + 1, 0.5
    for text in smiles:
        try:
            molecule = Molecule(text, seed)
        except ValueError:
            continue
        AllChem.EmbedMultipleConfs(molecule.mol, 12, embedding)
        AllChem.MMFFOptimizeMoleculeConfs(molecule.mol)
        for conformer in molecule.mol.GetConformers():
            yield labelled([molecule], [np.array(conformer.GetPositions())], "conformer")


def labelled(parts: list[Molecule], places: list[np.ndarray], kind: str, charge: int = 0) -> Atoms:
    """Join molecules into a structure."""
    atoms = Atoms(np.concatenate([part.numbers for part in parts]), np.concatenate(places))
    names = ".".join(dict.fromkeys(part.smiles for part in parts))
    splits = {part.split for part in parts if part.smiles != WATER} or {"train"}
    atoms.info = {
        "smiles": names,
        "kind": kind,
        "charge": charge,
        "split": splits.pop(),
        "n_first": len(parts[0].numbers),
    }
    return atoms


def monomers(data: Path) -> list[Atoms]:
    """Return the conformations of SPICE's monomers, with their split."""
    return [
        Atoms(
            atoms.numbers,
            SPICE_LENGTH * atoms.positions,
            info={"smiles": text, "kind": "spice", "charge": 0, "split": split_of(Chem.MolFromSmiles(text))},
        )
        for atoms in records(data / "spice_monomers.extxyz.gz")
        for text in [atoms.info["smiles"]]
    ]


def shards(data: Path, part: str, largest: int, seed: int) -> Iterator[Callable[[], Iterable[Atoms]]]:
    """Yield what makes each shard of a part."""
    dimers, known = benchmark(data) if part not in ("spice", "dipeptides") else ([], set())
    if part in ("spice", "benchmark", "far"):
        whole = monomers(data) if part == "spice" else dimers if part == "benchmark" else distant(dimers, seed)
        yield from (partial(lambda k: whole[k : k + STRUCTURES], k) for k in range(0, len(whole), STRUCTURES))
        return
    if part == "dipeptides":
        yield partial(held_out, [text for text in dipeptides(40, seed) for _ in range(5)], seed)
        return
    with gzip.open(data / "smiles.csv.gz", "rt", encoding="utf-8") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    np.random.default_rng(seed).shuffle(smiles)
    made = {text: Chem.AddHs(Chem.MolFromSmiles(text)) for text in smiles}
    tests = [text for text in smiles if split_of(made[text]) == "test" and skeleton(made[text]) not in known]
    if part == "molecules":
        smiles = [text for text in smiles if made[text].GetNumAtoms() <= largest and split_of(made[text]) != "test"]
    else:
        smiles = (
            tests
            if part in ("test", "outside")
            else [t for t in tests if rdMolDescriptors.CalcNumRotatableBonds(made[t]) > 2][:50]
        )
    make = {"test": held_out, "conformers": conformers, "outside": strange, "molecules": structures}[part]
    for k, start in enumerate(range(0, len(smiles), MOLECULES)):
        yield partial(make, smiles[start : start + MOLECULES], seed + k)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--largest", type=int, default=200, help="atoms of a molecule of the part `molecules`")
    parser.add_argument("--shards", type=int, help="the first so many of each part; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    data = Path(os.environ["MOLFLT_DATA"]) / "organic"
    options.folder.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        made = shards(data, part, options.largest, options.seed)
        for k, make in enumerate(track(list(islice(made, options.shards)), part)):
            file = options.folder / f"{part}-{k:05d}.extxyz"
            if not file.exists():
                kept = [atoms for atoms in make() if usable(atoms.numbers, atoms.positions)]
                with atomic_file(file) as unfinished:
                    write(unfinished, kept, format="extxyz")


if __name__ == "__main__":
    main()
