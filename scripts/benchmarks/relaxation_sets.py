"""Structures for ``relaxation``: clusters and slabs of two potentials, peptides, and drugs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, fcc100, fcc110, fcc111
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT, beta, parameters
from ase.constraints import FixAtoms
from ase.data import covalent_radii
from ase.units import kcal, mol
from rdkit import Chem
from rdkit.Chem import AllChem

from molflt.data.neighbours import neighbour_list
from molflt.simulate.pair_lbfgs import REACH, batch

METALS = ("Al", "Cu", "Ag", "Au", "Ni", "Pd", "Pt")
SMALLEST, LARGEST = 60, 150
SMILES = """
CC(=O)Oc1ccccc1C(=O)O CC(C)Cc1ccc(cc1)C(C)C(=O)O Cn1cnc2c1c(=O)n(C)c(=O)n2C CC(=O)Nc1ccc(O)cc1 CN1CCCC1c1cccnc1
CC(N)Cc1ccccc1 NCCc1ccc(O)c(O)c1 NCCc1c[nH]c2ccc(O)cc12 COc1ccc2[nH]cc(CCNC(C)=O)c2c1 NC(Cc1ccccc1)C(=O)O
NCCc1c[nH]cn1 CNCC(O)c1ccc(O)c(O)c1 CC1CCC(C(C)C)C(O)C1 CC1(C)C2CCC1(C)C(=O)C2 COc1cc(C=O)ccc1O
O=c1ccc2ccccc2o1 CN(C)C(=N)NC(N)=N NNC(=O)c1ccncc1 Nc1ccc(S(N)(=O)=O)cc1 CC(C)(S)C(N)C(=O)O
CC(=C)C1CC=C(C)C(=O)C1 OCC1OC(O)C(O)C(O)C1O OCC(O)C1OC(=O)C(O)=C1O OC(=O)CC(O)(CC(=O)O)C(=O)O CCCC(CCC)C(=O)O
CCC1(CC)C(=O)NC(=O)NC1=O CCOC(=O)c1ccc(N)cc1 CSCCC(N)C(=O)O NC(CCC(N)=O)C(=O)O Clc1ccc(cc1)C1CCNC1
""".split()  # noqa: SIM905 (a list is four times as long)
"""Thirty drugs and natural products of 17 to 33 atoms."""
RESIDUES = list("AGSTVLNDKFYW")


class LennardJones(Calculator):  # type: ignore[misc]
    """Wells of ``depth`` eV at ``contact`` times the sum of the covalent radii."""

    implemented_properties = ("energy", "forces")

    def __init__(self, depth: float, contact: float) -> None:
        super().__init__()
        self.depth, self.contact = depth, contact

    def calculate(self, atoms: Atoms = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        """See ASE."""
        super().calculate(atoms, properties, system_changes)
        packed = batch([atoms])
        x = packed.positions.requires_grad_()
        r = packed.displacements(x)[1]
        radii = torch.from_numpy(covalent_radii)[packed.numbers.flatten()]
        well = self.contact * (radii[packed.i] + radii[packed.j])
        sixth = (well / r) ** 6
        taper = (1 - (r / REACH) ** 2).clamp(min=0) ** 3 * (1 + 3 * (well / REACH) ** 2)
        energy = (0.5 * self.depth * (sixth**2 - 2 * sixth) * taper).sum()
        (gradient,) = torch.autograd.grad(energy, x)
        self.results = {"energy": float(energy), "forces": -gradient[0].numpy()}


class MMFF94(Calculator):  # type: ignore[misc]
    """RDKit's force field as an ASE calculator."""

    implemented_properties = ("energy", "forces")

    def __init__(self, molecule: Chem.Mol) -> None:
        super().__init__()
        # The field does not keep the molecule alive whose positions it points to.
        self.molecule = molecule
        self.field = AllChem.MMFFGetMoleculeForceField(molecule, AllChem.MMFFGetMoleculeProperties(molecule))

    def calculate(self, atoms: Atoms = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        """See ASE."""
        super().calculate(atoms, properties, system_changes)
        x = atoms.positions.ravel().tolist()
        # In this order: the gradient is taken at the distances that the energy has left behind.
        energy = self.field.CalcEnergy(x)
        forces = -np.array(self.field.CalcGrad(x)).reshape(-1, 3)
        self.results = {"energy": energy * kcal / mol, "forces": forces * kcal / mol}


def _cluster(random: np.random.Generator, n: int, symbols: list[str], spacing: float) -> Atoms:
    """A ball cut out of a crystal, or a random packing."""
    if random.random() < 0.5:
        crystal = bulk("Cu", "fcc", a=spacing * 2**0.5, cubic=True).repeat(9)
        around = crystal.cell.sum(axis=0) / 2 + spacing * random.random(3)
        nearest = np.argsort(np.linalg.norm(crystal.positions - around, axis=1))[:n]
        positions = crystal.positions[nearest]
    else:
        radius, found = spacing * (n / 0.74) ** (1 / 3) / 2, []
        while len(found) < n:
            radius *= 1.0005
            trial = random.normal(size=3)
            trial *= radius * random.random() ** (1 / 3) / np.linalg.norm(trial)
            if all(np.linalg.norm(trial - other) > 0.88 * spacing for other in found):
                found.append(trial)
        positions = np.array(found)
    return Atoms(random.choice(symbols, n), positions=positions - positions.mean(axis=0))


def _slab(random: np.random.Generator, n: int, symbols: list[str], spacing: float) -> Atoms:
    """Two to four layers of an fcc crystal, with a vacancy or an adatom, often fixed below."""
    layers = int(random.integers(2, 5))
    side = max(2, int((n / layers) ** 0.5))
    across = max(2, n // (layers * side))
    make = [fcc111, fcc100, fcc110][random.integers(3)]
    atoms = make("Cu", (side, across, layers), a=spacing * 2**0.5, vacuum=8.0)
    atoms.pbc = (True, True, False)
    atoms.symbols = random.choice(symbols, len(atoms))
    moved = int(random.choice(np.flatnonzero(atoms.get_tags() == 1)))
    if random.random() < 0.5:
        atoms.positions[moved, 2] += 0.9 * spacing
        atoms.positions[moved, :2] += 0.5 * spacing * random.random(2)
    else:
        del atoms[moved]
    if random.random() < 0.5:
        atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == layers))
    return atoms


def draw(random: np.random.Generator, kind: str) -> Atoms:
    """A disturbed cluster or slab of one or two metals with its potential, ``lj`` or ``emt``."""
    while True:
        n = int(random.integers(SMALLEST, LARGEST + 1))
        symbols = [str(s) for s in random.choice(METALS, int(random.integers(1, 3)), replace=False)]
        if kind == "lj":
            depth, contact = float(np.exp(random.uniform(np.log(0.1), 0.0))), random.uniform(0.9, 1.15)
            calculator: Calculator = LennardJones(depth, contact)
            spacing = 2 * contact * 0.98 * float(np.mean([covalent_radii[Atoms(s).numbers[0]] for s in symbols]))
        else:
            calculator = EMT()
            spacing = float(np.mean([beta * parameters[s][1] * 0.529177 for s in symbols]))
        make = _cluster if random.random() < 0.5 else _slab
        atoms = make(random, n, symbols, spacing * random.uniform(0.96, 1.04))
        free = np.ones(len(atoms), dtype=bool)
        for constraint in atoms.constraints:
            free[constraint.get_indices()] = False
        atoms.positions[free] += random.uniform(0.03, 0.15) * random.normal(size=(int(free.sum()), 3))
        # From atoms that are closer than this no calculation would start.
        if len(neighbour_list(atoms.positions, atoms.cell.array, atoms.pbc, 0.8 * spacing)[1]) == 0:
            atoms.calc = calculator
            return atoms


def embedded(molecule: Chem.Mol) -> tuple[Chem.Mol, Atoms]:
    """A molecule with hydrogens, at RDKit's first guess of its geometry."""
    molecule = Chem.AddHs(molecule)
    if AllChem.EmbedMolecule(molecule, randomSeed=1) < 0:
        AllChem.EmbedMolecule(molecule, randomSeed=1, useRandomCoords=True)
    return molecule, Atoms([a.GetSymbol() for a in molecule.GetAtoms()], molecule.GetConformer().GetPositions())


def tasks(name: str, n: int) -> Iterator[Atoms]:
    """The first ``n`` structures of a set, with their calculators.

    Args:
        name: ``lj`` and ``emt``, clusters and slabs of 60 to 150 atoms; ``mmff``, peptides of 4 to 7 residues;
            ``xtb``, :data:`SMILES` with GFN2-xTB, which needs the package tblite.
        n: how many.
    """
    random = np.random.default_rng(2_000_000)
    for k in range(n):
        if name in ("lj", "emt"):
            atoms = draw(random, name)
        elif name == "mmff":
            letters = "".join(random.choice(RESIDUES, int(random.integers(4, 8))))
            molecule, atoms = embedded(Chem.MolFromSequence(letters))
            atoms.calc = MMFF94(molecule)
        else:
            from tblite.ase import TBLite

            _, atoms = embedded(Chem.MolFromSmiles(SMILES[k]))
            atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
        # ASE's preconditioner does not find neighbours without a cell.
        if not atoms.pbc.any():
            atoms.center(vacuum=10.0)
        yield atoms
