"""Structures that two sets share: turned, wrapped, reordered and shaken copies are found, and no others."""

import numpy as np
import pytest
from ase.build import add_adsorbate, fcc111, molecule

from molflt.data.ase import from_atoms
from molflt.data.dataset import ListDataset
from molflt.data.quality.facts import FactRows
from molflt.data.quality.leaks import TOLERANCE, Sketches, alike, sketch


def sketches(structures: ListDataset) -> Sketches:
    rows = FactRows(compared=True)
    for k, data in enumerate(structures):
        rows.add(data, k)
    return rows.facts().sketches(np.arange(len(structures)))


def found(known, asked):
    first, second = (ListDataset([from_atoms(atoms, "x") for atoms in some]) for some in (known, asked))
    return alike(sketches(first), sketches(second), first, second)


def _structures(n):
    found = []
    for k in range(n):
        if k % 2:
            atoms = molecule(("CH3CH2OH", "CH3OCH3", "C6H6", "C3H7Cl")[k // 2 % 4])
            atoms.rattle(0.05, seed=k)
        else:
            atoms = fcc111("Pt", (2, 2, 3), vacuum=6.0)
            add_adsorbate(atoms, "OCH"[k // 2 % 3], 1.1 + 0.04 * k, ("ontop", "fcc", "hcp")[k // 6 % 3])
            atoms.set_tags(0)
        found.append(atoms)
    return found


def _copy(atoms, random, shake):
    """Turned, moved, wrapped and reordered, by any of an infinite number of ways."""
    turned = atoms[random.permutation(len(atoms))]
    turned.positions += random.normal(size=(len(atoms), 3)) * shake / np.sqrt(3)
    turned.rotate(random.uniform(0, 360), random.normal(size=3), rotate_cell=True)
    turned.translate(random.normal(size=3) * 10)
    if turned.pbc.any():
        shifts = random.integers(-2, 3, size=(len(atoms), 3)) * turned.pbc
        turned.positions += shifts @ np.asarray(turned.cell)
    return turned


@pytest.mark.parametrize("shake", [0.0, 0.005])
def test_copies_are_found_and_nothing_else(shake):
    random = np.random.default_rng(0)
    structures = _structures(48)
    assert found(structures[:24], structures[24:]) == []
    asked = [_copy(structures[k], random, shake) for k in (3, 40, 7, 12)]
    assert found(structures, asked) == [(0, 3), (1, 40), (2, 7), (3, 12)]
    # Two tenths of an ångström by one atom make another structure.
    moved = [atoms.copy() for atoms in structures[:8]]
    for atoms in moved:
        atoms.positions[-1] += 0.2 / np.sqrt(3)
    assert found(structures, moved) == []


def test_other_sites_other_cells_and_other_elements_are_others():
    sites = [fcc111("Pt", (2, 2, 4), a=3.98, vacuum=6.0) for _ in range(2)]
    for atoms, site in zip(sites, ("fcc", "hcp"), strict=True):
        add_adsorbate(atoms, "Br", 2.4, site)
        atoms.set_tags(0)
    # Their sketches are so near that the structures are compared.
    near = [sketch(from_atoms(atoms, "x")) for atoms in sites]
    assert np.linalg.norm(near[0] - near[1]) < TOLERANCE
    assert found(sites[:1], sites[1:]) == []
    cell = fcc111("Pt", (1, 1, 3), vacuum=6.0)
    cell.set_tags(0)
    gold = cell.copy()
    gold.symbols[:] = "Au"
    assert found([cell], [cell * (2, 1, 1), gold]) == []
    assert found([], [cell]) == []


def test_a_crystal_in_another_basis():
    """The same lattice by other vectors, along which many atoms lie at half a vector exactly."""
    slab = fcc111("Pt", (2, 2, 3), vacuum=6.0)
    slab.set_tags(0)
    other = slab.copy()
    other.set_cell(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]]) @ np.asarray(slab.cell))
    assert found([slab], [other]) == [(0, 0)]
