"""Molecules that the FG set is about: neutral, closed-shell, small."""

from __future__ import annotations

import warnings

from ase import Atoms
from rdkit import Chem

from molflt.data.ase import to_atoms
from molflt.data.rdkit import check_text, from_smiles, from_text
from molflt.data.reading import ReadOptions
from molflt.data.tables import refuse_ambiguous
from molflt.errors import InputError, InputWarning
from molflt.prediction.predictor import conformers_of

MOST_CONFORMERS = 6
_TRIED = 30
"""Conformers that are made; many relax into the same one."""
_MOST_ATOMS = 100
"""With hydrogens; more do not fit between two slabs, and would take long to embed."""


def molecule(smiles: str, seed: int = 0) -> list[Atoms]:
    """Conformers of a molecule, the same for every way to write it.

    Args:
        smiles: of one molecule without charge and unpaired electrons, or ``molecule:NAME`` of ASE's g2 set.
        seed: of the conformers.

    Raises:
        InputError: not a SMILES, or one that reads as the formula of another molecule; several molecules, an ion, a
            radical, too large, or no conformer found.
    """
    options = ReadOptions(conformers=_TRIED, may_allow=False)
    mol = check_text(smiles)
    if mol is None:
        return [to_atoms(from_text(smiles, options))]
    refuse_ambiguous(smiles, mol)
    for atom in mol.GetAtoms():
        atom.SetAtomMapNum(0)
    n_atoms = Chem.AddHs(mol).GetNumAtoms()
    if n_atoms > _MOST_ATOMS:
        raise InputError(f"{smiles:.200}: {n_atoms} atoms do not fit into the cell; at most {_MOST_ATOMS} are tried")
    if len(Chem.GetMolFrags(mol)) > 1:
        raise InputError(f"{smiles}: is several molecules; adsorb places one")
    # Where a guess is put depends on the order of the atoms.
    made = from_smiles(Chem.MolToSmiles(mol), smiles, seed, options)
    if "remark" in made:
        warnings.warn(f"{smiles}: {made.remark}", InputWarning, stacklevel=3)
    return [to_atoms(data) for data in conformers_of(made)[:MOST_CONFORMERS]]
