"""Atoms that are too close: the verdict of a sum over images, on every way in."""

import re
from itertools import product

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import covalent_radii
from ase.io import write
from torch_geometric.data import Data

from molflt.data import neighbours as overlaps
from molflt.data.neighbours import check_contacts
from molflt.data.open import open_dataset, structures_of
from molflt.data.record import to_data
from molflt.errors import InputError

IMAGES = np.array(list(product(range(-4, 5), repeat=3)))


def worst(atoms):
    """The smallest distance over the mean of the two radii, by looking at all images."""
    images = IMAGES[~IMAGES[:, ~atoms.pbc].any(axis=1)]
    found = np.inf
    for i, j in product(range(len(atoms)), repeat=2):
        vectors = atoms.positions[j] - atoms.positions[i] + images @ atoms.cell[:]
        distances = np.linalg.norm(vectors, axis=1)[(i != j) | images.any(axis=1)]
        least = covalent_radii[atoms.numbers[[i, j]]].mean()
        found = min(found, distances.min(initial=np.inf) / least)
    return found


@pytest.mark.parametrize("few", [0, 256])
def test_the_verdict_of_all_images(few, monkeypatch):
    """Skewed cells, tiny ones, any boundaries, atoms in any image; by all pairs and by a neighbour search."""
    monkeypatch.setattr(overlaps, "_FEW", few)
    random, refused = np.random.default_rng(0), 0
    for trial in range(120):
        size = random.choice([2.5, 5.0, 9.0])
        cell = size * np.eye(3) + random.normal(scale=size / 5, size=(3, 3))
        if abs(np.linalg.det(cell)) < 0.5 * size**3:
            continue
        numbers = random.choice([1, 6, 8, 29, 55], size=random.integers(1, 4 if size < 6 else 9))
        pbc = random.integers(0, 2, size=3).astype(bool)
        atoms = Atoms(numbers, scaled_positions=random.uniform(size=(len(numbers), 3)), cell=cell, pbc=pbc)
        atoms.positions += random.integers(-2, 3, size=(len(atoms), 3)) * pbc @ cell
        if len(atoms) > 1 and trial % 2:
            # just too close, or just not
            direction, length = random.normal(size=3), covalent_radii[numbers[:2]].mean()
            length *= 0.99 if trial % 4 == 1 else 1.01
            atoms.positions[0] = atoms.positions[1] + direction / np.linalg.norm(direction) * length
        expected = worst(atoms)
        given = (atoms.positions, atoms.cell[:], atoms.pbc)
        try:
            check_contacts(*given, atoms.numbers)
            assert expected >= 1
        except InputError as error:
            stated = re.search(r"are ([\d.e-]+) Å apart, and less than ([\d.]+) Å", str(error))
            assert stated
            assert float(stated[1]) / float(stated[2]) == pytest.approx(expected, rel=0.02, abs=0.01)
            refused += 1
    assert 30 < refused < 100


def test_two_atoms_are_named_with_image_and_remedy():
    with pytest.raises(InputError, match=r"^x: atom 0 \(Cu\) and its own image are 1\.2 Å.*1\.32 Å.*; remove"):
        structures_of(Atoms("Cu", cell=np.diag([5, 5, 1.2]), pbc=True), "x")
    water = molecule("H2O")
    water.positions[2] = water.positions[1] + [0, 0, 0.2]
    with pytest.raises(InputError, match=r"atom 1 \(H\) and atom 2 \(H\) are 0\.2 Å apart, and less than 0\.31 Å"):
        structures_of(water, "x")


def test_every_way_in(tmp_path):
    good, bad = molecule("H2"), molecule("H2")
    bad.positions[1] = bad.positions[0] + [0, 0, 0.3]
    fields = {
        "atomic_numbers": torch.tensor([1, 1]),
        "positions": torch.from_numpy(bad.positions),
        "cell": torch.zeros(1, 3, 3, dtype=torch.float64),
        "pbc": torch.zeros(1, 3, dtype=torch.bool),
        "tags": torch.zeros(2, dtype=torch.int64),
        "fixed": torch.zeros(2, dtype=torch.bool),
    }
    for name in ("a.extxyz", "a.xyz", "a.traj", "a.json", "a.db", "a.pdb", "a.gen"):
        write(tmp_path / name, good)
        assert len(open_dataset(tmp_path / name)) == 1
        (tmp_path / name).unlink()
        write(tmp_path / name, bad)
        with pytest.raises(InputError, match=rf"{name}#0: .*apart"):
            open_dataset(tmp_path / name)
    with pytest.raises(InputError, match="apart"):
        structures_of(Data(**fields), "x")
    with pytest.raises(InputError, match="apart"):
        to_data({"pos": bad.positions, "atomic_numbers": bad.numbers}, "x")


def test_what_there_is_passes():
    """The shortest bonds: H2, HF, N2, diamond, and metals under a pressure that halves their volume."""
    for atoms in (molecule("H2"), molecule("HF"), molecule("N2"), bulk("C"), bulk("Cs", a=4.0), bulk("Pt", a=3.1)):
        structures_of(atoms, "x")
