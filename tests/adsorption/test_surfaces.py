"""Surfaces against the FG set's own, and against what a close-packed surface is."""

import numpy as np
import pytest
from ase.geometry import get_distances

from molflt.adsorption.placing import METALS, surface
from molflt.data.ase import to_atoms
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.files import resolve_path


def around(one, place, layer):
    """Sorted distances along the surface from a place to the twelve atoms of a layer, 0 the top one."""
    atoms = one.atoms[np.argsort(one.atoms.positions[:, 2])[::-1][12 * layer : 12 * layer + 12]]
    flat = atoms.positions * [1, 1, 0]
    (distances,) = get_distances([[*place, 0.0]], flat, cell=atoms.cell, pbc=[True, True, False])[1]
    return np.sort(distances)


@pytest.mark.parametrize("metal", METALS)
def test_sites(metal):
    """What is where, by counting neighbours: the names are not taken from ASE on trust."""
    one = surface(metal)
    assert len(one.atoms) == 48
    assert np.array_equal(one.fixed, one.atoms.get_tags() == 0)
    assert (one.atoms.positions[one.fixed, 2].max() < one.atoms.positions[~one.fixed, 2]).all()
    top = around(one, one.sites["ontop"], 0)
    assert top[0] == pytest.approx(0, abs=1e-9)
    if metal == "Fe":
        a = top[5]
        assert top[1:7] == pytest.approx([a * 0.75**0.5] * 4 + [a] * 2)
        assert around(one, one.sites["shortbridge"], 0)[:2] == pytest.approx([a * 0.75**0.5 / 2] * 2)
        assert around(one, one.sites["longbridge"], 0)[:2] == pytest.approx([a / 2] * 2)
        return
    a = top[1]
    assert top[1:7] == pytest.approx([a] * 6)
    assert around(one, one.sites["bridge"], 0)[:2] == pytest.approx([a / 2] * 2)
    for name in ("fcc", "hcp"):
        assert around(one, one.sites[name], 0)[:3] == pytest.approx([a / 3**0.5] * 3)
    # Over an atom of the second layer, or over none.
    assert around(one, one.sites["hcp"], 1)[0] == pytest.approx(0, abs=1e-9)
    assert around(one, one.sites["fcc"], 1)[0] == pytest.approx(a / 3**0.5)
    assert (around(one, one.sites["fcc"], 2)[0] < 1e-9) == one.face.startswith("fcc")


def test_slabs_are_those_of_the_set():
    """All fourteen: cell, every atom's place, tags, fixed atoms. Translations along the surface do not count."""
    val = LmdbDataset(resolve_path("bundled:fg/val.lmdb"))
    structures = [val[i] for i in range(0, len(val), 20)]
    found = {data.metal: (to_atoms(data), data.fixed.numpy()) for data in structures}
    assert sorted(found) == list(METALS)
    for metal, (given, held) in found.items():
        clean = given.get_tags() < 2
        one, bare = surface(metal), given[clean]
        assert np.asarray(one.atoms.cell) == pytest.approx(np.asarray(given.cell), abs=1e-4)
        low = one.atoms.positions[np.argmin(one.atoms.positions[:, 2])]
        first = bare.positions[np.argmin(bare.positions[:, 2])]
        _, distances = get_distances(one.atoms.positions + first - low, bare.positions, cell=given.cell, pbc=True)
        pairs = distances.argmin(axis=1)
        assert sorted(pairs) == list(range(48))
        # In cobalt's the free layers are relaxed along the surface as well.
        assert distances.min(axis=1).max() < (2e-3 if metal == "Co" else 2e-5)
        assert np.array_equal(bare.get_tags()[pairs], one.atoms.get_tags())
        assert np.array_equal(held[clean][pairs], one.fixed)
