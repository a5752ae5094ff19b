"""What the learned relaxation is tested on: larger structures of its own potentials, and molecules of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.units import kcal, mol
from rdkit import Chem
from rdkit.Chem import AllChem

from scripts.literature.relaxation_structures import TorchCalculator, draw, energy_of

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


def embedded(molecule: Chem.Mol) -> tuple[Chem.Mol, Atoms]:
    """With hydrogens, at RDKit's first guess of a geometry."""
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
            atoms, constants = draw(random, name, 60, 150)
            atoms.calc = TorchCalculator(energy_of(name, [constants]))
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
