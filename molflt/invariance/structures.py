"""Structures to try a model on when its user gives none."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.data import chemical_symbols
from torch_geometric.data import Data

from molflt.data.ase_io import from_atoms

MOLECULES = ("CO2", "NH3", "CH4", "CH3OH", "CH3CH2OH", "C6H6", "C60")
"""Linear, planar, tetrahedral, icosahedral, and without symmetry."""
METALS = ("Cu", "Pt", "Ni", "Ag", "Au", "Pd")
N_METALS = 2


def builtin_structures(elements: Collection[int]) -> tuple[list[Data], bool]:
    """Molecules, slabs with one, and crystals, made of the elements a model knows.

    Args:
        elements: atomic numbers.

    Returns:
        The structures, and whether all their elements are known; where too few are, unknown ones serve.
    """
    known = {chemical_symbols[z] for z in elements}
    metals = ([metal for metal in METALS if metal in known] or list(METALS))[:N_METALS]
    made = _molecules() + _slabs(metals) + _crystals(metals)
    fitting = {name: atoms for name, atoms in made if set(atoms.get_chemical_symbols()) <= known}
    chosen = fitting if len(fitting) >= 4 else dict(made)
    return [from_atoms(atoms, name, tags="oc20") for name, atoms in chosen.items()], chosen is fitting


def _molecules() -> list[tuple[str, Atoms]]:
    found: list[tuple[str, Atoms]] = []
    for name in MOLECULES:
        atoms = molecule(name)
        atoms.set_tags([2] * len(atoms))
        found.append((name, atoms))
    return found


def _slabs(metals: Sequence[str]) -> list[tuple[str, Atoms]]:
    """One periodic along three directions, as in OC20, and one open along its normal, for each metal."""
    found: list[tuple[str, Atoms]] = []
    for metal in metals:
        for pbc in (True, (True, True, False)):
            slab = fcc111(metal, (2, 2, 3), vacuum=6.0)
            slab.set_tags([1 if tag == 1 else 0 for tag in slab.get_tags()])
            adsorbate = molecule("CO")
            adsorbate.set_tags([2, 2])
            add_adsorbate(slab, adsorbate, 1.9, "fcc", mol_index=1)
            slab.pbc = pbc
            slab.rattle(0.05, seed=len(found))
            slab.info.clear()
            found.append((f"CO on {metal}(111), {'three' if pbc is True else 'two'} periodic axes", slab))
    return found


def _crystals(metals: Sequence[str]) -> list[tuple[str, Atoms]]:
    return [(f"{metal} crystal", bulk(metal)) for metal in metals]
