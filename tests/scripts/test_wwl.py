"""Starts for ``pretrained:wwl``, which its training set does not have."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, fcc111
from ase.geometry import get_distances

from scripts.tools.wwl import group, held_out, starts


@pytest.fixture
def bound():
    """CO on Pt(111), in a cell whose third vector is not along z."""
    atoms = fcc111("Pt", (3, 3, 3), vacuum=8.0)
    add_adsorbate(atoms, Atoms("CO", [[0, 0, 0], [0, 0, 1.15]]), 1.4, "fcc")
    atoms.set_tags([0] * 18 + [1] * 9 + [2] * 2)
    atoms.info = {"name": "CO_Pt_111_fcc", "molecule": "CO", "metal": "Pt", "facet": 111, "y_relaxed": 1.1}
    atoms.rotate(70.0, (1.0, 2.0, 3.0), rotate_cell=True)
    return atoms


def test_an_adsorbate_is_put_back_over_its_site(bound):
    """The relaxed structure stays what it is; starts are above the place, and differ."""
    made = starts(bound, 3, np.random.default_rng(0))
    assert [float(data.y_relaxed) for data in made] == [1.1] * 3
    distances = bound.get_all_distances(mic=True)
    for data in made:
        relaxed, start, cell = data.positions_relaxed.numpy(), data.positions.numpy(), data.cell[0].numpy()
        _, found = get_distances(relaxed, relaxed, cell=cell, pbc=(True, True, False))
        np.testing.assert_allclose(found, distances, atol=1e-9)
        np.testing.assert_allclose(start[:27], relaxed[:27])
        assert data.tags.tolist() == bound.get_tags().tolist()
        # An atom of it, or its middle, is over the place.
        aside = [np.linalg.norm((point - relaxed[27])[:2]) for point in (*start[27:], start[27:].mean(axis=0))]
        assert min(aside) < 0.6
        assert start[27:, 2].min() > relaxed[:27, 2].max()
    assert not np.allclose(made[0].positions[27:], made[1].positions[27:])


def test_all_sites_of_a_group_are_held_out_together(bound):
    structures = []
    for k in range(30):
        for site in ("fcc", "top"):
            structures.append(bound.copy())
            structures[-1].info |= {"metal": f"M{k}", "site": site}
    aside = held_out(structures, np.random.default_rng(0))
    assert len(aside) == 5
    assert sum(group(atoms) in aside for atoms in structures) == 10
