"""Guesses and surfaces, judged by ASE's neighbour lists and by the FG set."""

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.data import covalent_radii
from ase.geometry import get_distances
from ase.neighborlist import neighbor_list

from molflt.adsorption import molecule, placing
from molflt.adsorption.placing import (
    CONTACT,
    ELEVATION,
    IMAGES_APART,
    LEVELS,
    ROLL,
    UNDER,
    guesses,
)
from molflt.adsorption.surfaces import CELL_HEIGHT, METALS, Surface, surface
from molflt.data.ase import to_atoms
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.errors import InputError
from molflt.files import resolve_path

LONG = "OC[C@H](N)CC(=O)OC"
"""Two functional groups, chiral, many conformers."""


def contacts(atoms):
    """The closest contact with the metal in sums of covalent radii, and Å to the closest image of the adsorbate."""
    i, j, distance, shift = neighbor_list("ijdS", atoms, 4.0)
    tags = atoms.get_tags()
    to_metal = (tags[i] == 2) & (tags[j] < 2)
    sums = covalent_radii[atoms.numbers[i]] + covalent_radii[atoms.numbers[j]]
    to_image = (tags[i] == 2) & (tags[j] == 2) & shift.any(axis=1)
    return float((distance / sums)[to_metal].min()), float(distance[to_image].min(initial=4.0))


@pytest.mark.parametrize(
    ("smiles", "metals"), [(LONG, ("Co", "Fe", "Ni")), ("c1ccc2ccccc2c1", ("Ag", "Os")), ("[HH]", ("Cu",))]
)
def test_no_guess_clashes(smiles, metals):
    conformers = molecule(smiles)
    for metal in metals:
        one = surface(metal)
        found = guesses(one, conformers, 12, smiles)
        assert len(found) == 12
        assert {guess.site for guess in found} == set(one.sites)
        for guess in found:
            atoms = to_atoms(guess.structure)
            contact, image = contacts(atoms)
            assert CONTACT[0] - 1e-9 <= contact <= CONTACT[-1] + 1e-9
            assert image >= IMAGES_APART
            assert atoms.positions[:, 2].max() <= CELL_HEIGHT - UNDER
            assert atoms[:48].positions == pytest.approx(one.atoms.positions)


def test_no_guess_falls_through_a_surface():
    """A row of atoms in a wide cell: hydrogen comes to rest on them, and nowhere beside."""
    columns = Atoms("Cu6", [[x, 0, z] for x in (0, 6, 12) for z in (0, 2)], cell=[18, 18, 20], pbc=True)
    sites = {"ontop": np.zeros(2), "void": np.full(2, 9.0)}
    some = Surface("Cu", "(100)", columns, np.zeros(6, dtype=bool), sites, of_set=False)
    with pytest.raises(InputError, match="or falling through"):
        guesses(replace(some, sites={"void": sites["void"]}), molecule("[HH]"), 4, "H2")
    assert guesses(replace(some, sites={"ontop": sites["ontop"]}), molecule("[HH]"), 4, "H2")


def test_a_molecule_stays_what_it_is():
    """Guesses are rigid motions of conformers, never mirror images, with one of the lowest atoms on a site."""
    conformers = molecule(LONG)
    assert len(conformers) > 2
    one = surface("Pt")
    used = set()
    for guess in guesses(one, conformers, 40, LONG):
        used.add(guess.conformer)
        before, after = conformers[guess.conformer].positions, guess.structure.positions.numpy()[48:]
        assert np.linalg.det(_rotation(before, after)) == pytest.approx(1)
        heavy = guess.structure.atomic_numbers.numpy()[48:] > 1
        low = after[heavy & (after[:, 2] < after[heavy, 2].min() + 0.5)]
        candidates = np.concatenate([low, low.mean(axis=0, keepdims=True)]) * [1, 1, 0]
        site = [[*one.sites[guess.site], 0.0]]
        assert get_distances(site, candidates, cell=one.atoms.cell, pbc=[1, 1, 0])[1].min() < 1e-9
    assert len(used) == len(conformers)


def _rotation(before, after):
    """The linear map of one to the other, which is a rotation or a reflection if the motion is rigid."""
    x, y = before - before.mean(axis=0), after - after.mean(axis=0)
    matrix = np.linalg.lstsq(x, y, rcond=None)[0]
    assert x @ matrix == pytest.approx(y, abs=1e-9)
    assert matrix @ matrix.T == pytest.approx(np.eye(3), abs=1e-9)
    return matrix


def test_too_large():
    with pytest.raises(InputError, match="152 atoms do not fit into the cell; at most 100 are tried"):
        molecule("C" * 50)


@pytest.mark.slow
def test_quantiles_are_those_of_the_set():
    train = list(LmdbDataset(resolve_path("bundled:fg/train.lmdb")))
    slices = [[data for data in train if data.slice == number] for number in "234"]
    structures = [to_atoms(data) for part in slices for data in part[::4]]
    assert np.quantile([contacts(atoms)[0] for atoms in structures], LEVELS) == pytest.approx(CONTACT, abs=0.02)
    given = np.array([_angles(atoms.positions[atoms.get_tags() == 2]) for atoms in structures])
    random = np.random.default_rng(0)
    lying = placing.lying(molecule("CCCO")[0].positions)
    drawn = np.array([_angles(lying @ placing._orientation(random).as_matrix().T) for _ in range(1000)])
    for k, quantiles in enumerate((ELEVATION, ROLL)):
        assert np.quantile(given[:, k], LEVELS) == pytest.approx(quantiles, abs=4)
        # What is drawn has no tails, and is uniform between the quantiles.
        assert np.quantile(drawn[:, k], [0.25, 0.5, 0.75]) == pytest.approx(quantiles[1:4], abs=6)


def _angles(positions):
    """Elevation and roll in degrees, from the principal axes."""
    axes = np.linalg.svd(positions - positions.mean(axis=0))[2]
    elevation = np.arcsin(min(1.0, abs(axes[0, 2])))
    roll = np.arcsin(min(1.0, abs(axes[1, 2]) / max(np.cos(elevation), 1e-9)))
    return float(np.degrees(elevation)), float(np.degrees(roll))


def around(one, place, layer):
    """Sorted distances along the surface from a place to the twelve atoms of a layer, 0 the top one."""
    atoms = one.atoms[np.argsort(one.atoms.positions[:, 2])[::-1][12 * layer : 12 * layer + 12]]
    flat = atoms.positions * [1, 1, 0]
    (distances,) = get_distances([[*place, 0.0]], flat, cell=atoms.cell, pbc=[True, True, False])[1]
    return np.sort(distances)


@pytest.mark.parametrize("metal", METALS)
def test_sites(metal):
    """Sites are identified by counting neighbours: the names are not taken from ASE on trust."""
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
