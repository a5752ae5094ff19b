"""Crystals and macromolecules from CIF and PDB files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

import ase.io
from ase import Atoms
from rdkit import Chem

from molflt.data.notes import Notes
from molflt.errors import InputError

_CELL = re.compile(r"^CRYST1((?:\s+[\d.]+){3})", re.MULTILINE)
_NO_CELL = 1.0
"""Å: where there is no crystal, PDB asks for a cell of this length."""
_FEW = 6
"""Atoms other than hydrogen; smaller molecules without any are common: CO2, COCl2."""


def cif_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Every crystal of a CIF file."""
    yield from ase.io.iread(stream, index=":", format="cif", do_not_split_by_at_sign=True)


def pdb_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Every model of a PDB file, as molecules where it has no cell.

    Raises:
        InputError: it cannot be read, or it lacks its hydrogens.
    """
    if not has_crystal(text := stream.read()):
        yield from pdb_molecules(text, where)
        return
    stream.seek(0)
    yield from ase.io.iread(stream, index=":", format="proteindatabank", do_not_split_by_at_sign=True)


def has_crystal(text: str) -> bool:
    """Whether a PDB file has a cell that is more than a placeholder."""
    found = _CELL.search(text)
    return found is not None and any(float(length) > _NO_CELL for length in found[1].split())


def pdb_molecules(text: str, where: str) -> Iterator[Atoms]:
    """Every model of a PDB file, without a cell; charges written with its atoms are in ``info``.

    Raises:
        InputError: it cannot be read, or it lacks its hydrogens, as most do that come from diffraction.
    """
    mol = Chem.MolFromPDBBlock(text, sanitize=False, removeHs=False, proximityBonding=False)
    if mol is None or mol.GetNumAtoms() == 0:
        raise InputError(f"{where}: holds no atoms that can be read as PDB")
    numbers = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    if 1 not in numbers and len(numbers) >= _FEW and 6 in numbers and {7, 8, 15, 16} & set(numbers):
        raise InputError(
            f"{where}: {len(numbers)} atoms and not one hydrogen; add the hydrogens (in most viewers, or with "
            "Open Babel: obabel -h), or give the molecule's SMILES"
        )
    charge = sum(atom.GetFormalCharge() for atom in mol.GetAtoms())
    for conformer in mol.GetConformers():
        atoms = Atoms(numbers=numbers, positions=conformer.GetPositions())
        if charge:
            atoms.info["charge"] = charge
        yield atoms
