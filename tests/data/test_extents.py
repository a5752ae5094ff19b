"""Structures that cannot be: too far spread, too dense, or of atoms too close; refused before memory is taken."""

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import covalent_radii
from ase.io import write
from rdkit import Chem

from molflt.data import neighbours
from molflt.data.ase import from_atoms
from molflt.data.neighbours import attach_neighbours, check_contacts, neighbour_list
from molflt.data.open import open_dataset, structures_of
from molflt.data.rdkit import from_mol
from molflt.data.record import to_data
from molflt.errors import InputError

CHILD = """
import json, os, resource, sys, numpy
from molflt.data.neighbours import neighbour_list
from molflt.errors import InputError
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for positions, cell, pbc, cutoff, _ in json.load(sys.stdin):
    if child := os.fork():
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        message = f"{neighbour_list(numpy.array(positions), numpy.array(cell), pbc, cutoff)[0].shape[1]} neighbours"
    except InputError as error:
        message = str(error)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(grown, message, end=";", flush=True)
    os._exit(0)
"""
OPEN, NONE = [False] * 3, np.zeros((3, 3)).tolist()
CASES = {
    "two atoms in the wrong unit": ([[0, 0, 0], [1e6, 0, 0]], NONE, OPEN, 6.0, "atom 1 lies 1e+06 Å from the origin"),
    "on either side": ([[-8e4, 0, 0], [8e4, 9e4, 0]], NONE, OPEN, 6.0, "1.6e+05 Å long along x"),
    "the largest plane": ([[0, 0, 0], [1e5, 1e5, 0]], NONE, OPEN, 6.0, "0 neighbours"),
    "the largest body": ([[0, 0, 0], [1e5, 1e5, 1e5]], NONE, OPEN, 1.0, "0 neighbours"),
    "wire": ([[0, 0, 0], [1e5, 1e5, 1]], np.diag([1, 1, 3]).tolist(), [False, False, True], 6.0, "8 neighbours"),
    "wire, many thin cells": ([[0, 0, 0], [2945, 1, 1261]], np.diag([1, 1.45, 1]).tolist(), [False, True, False], 6.0,
                              "16 neighbours"),
    "slab": ([[0, 0, 0], [0, 0, 9e6]], np.diag([20, 20, 1]).tolist(), [True, True, False], 6.0, "atom 1 lies 9e+06"),
    "large cell": ([[0, 0, 0]], np.diag([1e5, 1e5, 3]).tolist(), [True] * 3, 6.0, "4 neighbours"),
    "too large a cell": ([[0, 0, 0]], np.diag([1e8, 3, 3]).tolist(), [True] * 3, 6.0, "vector is 1e+08 Å long"),
    "tiny cell": ([[0, 0, 0]], np.diag([0.01] * 3).tolist(), [True] * 3, 6.0, "0.01 Å apart"),
    "dense cell": ([[0, 0, 0]], np.diag([0.2] * 3).tolist(), [True] * 3, 60.0, "densely as 125 per Å³"),
    "far reach": ([[0, 0, 0]], np.diag([0.5] * 3).tolist(), [True] * 3, 200.0, "2.7e+08 neighbours are expected"),
}  # fmt: skip


def test_nothing_ends_the_process_or_takes_its_memory():
    given = json.dumps(list(CASES.values()))
    done = subprocess.run([sys.executable, "-c", CHILD], input=given, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    for (name, (*_, expected)), line in zip(CASES.items(), done.stdout.splitlines(), strict=True):
        outcome, _, status = line.rpartition(";")
        assert int(status) == 0, (name, line)
        grown, message = outcome.split(" ", 1)
        assert expected in message, (name, message)
        assert int(grown) < 100, (name, grown)


def test_crowds_are_refused():
    """Isolated: a hundred thousand atoms in a nut, one clump among many atoms, and all pairs of too many."""
    random = np.random.default_rng(0)
    nut = random.uniform(0, 5, size=(100_000, 3))
    clump = np.concatenate([random.uniform(0, 200, size=(3000, 3)), random.uniform(50, 51, size=(1000, 3))])
    for positions in (nut, clump):
        with pytest.raises(InputError, match=r"densely as .* per Å³"):
            neighbour_list(positions, np.zeros((3, 3)), OPEN, 6.0)


def test_structures_that_exist_are_not_refused():
    """Dense and light crystals in every description, one large body, short bonds, metals at half their volume."""
    for atoms in (bulk("C"), bulk("Os"), bulk("Fe", cubic=True) * (3, 3, 3), bulk("Cs"), bulk("Cu") * (1, 1, 9)):
        for skew in (0, 3):
            cell = np.array(atoms.cell)
            cell[0] += skew * cell[1]
            for cutoff in (0.5, 6.0, 20.0):
                edges, _ = neighbour_list(atoms.positions, cell, atoms.pbc, cutoff)
                assert (edges.shape[1] > 0) == (cutoff > 1)
    assert neighbour_list(np.random.default_rng(0).uniform(0, 90, size=(70_000, 3)), np.zeros((3, 3)), OPEN, 1.0)
    for atoms in (molecule("H2"), molecule("HF"), molecule("N2"), bulk("C"), bulk("Cs", a=4.0), bulk("Pt", a=3.1)):
        structures_of(atoms, "x")


def _fields(atoms):
    return {
        "pos": atoms.positions, "cell": np.array(atoms.cell), "pbc": atoms.pbc, "atomic_numbers": atoms.numbers,
    }  # fmt: skip


def _mol(atoms):
    mol = Chem.AddHs(Chem.MolFromSmiles("O"))
    conformer = Chem.Conformer(3)
    conformer.Set3D(True)
    conformer.SetPositions(atoms.positions)
    mol.AddConformer(conformer)
    return mol


def _data(atoms):
    """As a user may hand it over."""
    data = from_atoms(molecule("H2O"), "x")
    data.positions, data.cell = torch.from_numpy(atoms.positions), torch.from_numpy(np.array(atoms.cell))[None]
    data.pbc = torch.from_numpy(atoms.pbc)[None]
    return data


WAYS = {
    "record": lambda atoms: to_data(_fields(atoms), "x"),
    "relaxed": lambda atoms: to_data({**_fields(atoms), "pos_relaxed": atoms.positions + 2}, "x"),
    "relaxed there": lambda atoms: to_data({**_fields(molecule("H2O")), "pos_relaxed": atoms.positions}, "x"),
    "ASE": lambda atoms: from_atoms(atoms, "x"),
    "RDKit": lambda atoms: from_mol(_mol(atoms), "x"),
    "Python": lambda atoms: structures_of(_data(atoms), "x"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in(way):
    far, near, tiny = molecule("H2O"), molecule("H2O"), molecule("H2O", cell=[0.01] * 3, pbc=True)
    far.positions[1, 2] = 1e6
    near.positions[2] = near.positions[1] + [0, 0, 0.2]
    faults = [(far, r"x: atom 1 lies 1e\+06 Å from the origin along z; .* check the unit")]
    if not way.startswith("relaxed"):
        faults.append((near, r"x: atom 1 \(H\) and atom 2 \(H\) are 0\.2 Å apart, and less than 0\.31 Å"))
    if way not in ("RDKit", "relaxed there"):
        faults.append((tiny, r"x: the planes of the lattice are 0.01 Å apart"))
    for atoms, message in faults:
        with pytest.raises(InputError, match=message):
            WAYS[way](atoms)


@pytest.mark.parametrize("name", ["a.extxyz", "a.xyz", "a.traj", "a.json", "a.db", "a.pdb", "a.gen"])
def test_every_format(name, tmp_path):
    for length, error in ((0.74, nullcontext()), (0.3, pytest.raises(InputError, match=rf"{name}#0: .*apart"))):
        (tmp_path / name).unlink(missing_ok=True)
        write(tmp_path / name, Atoms("H2", [[0, 0, 0], [0, 0, length]]))
        with error:
            assert len(open_dataset(tmp_path / name)) == 1


def test_all_pairs_of_too_many_atoms(make_structure):
    data = make_structure()
    side = torch.arange(21.0, dtype=torch.float64) * 3
    data.positions = torch.cartesian_prod(side, side, side)
    data.pbc[:] = False
    with pytest.raises(InputError, match=r"structure 0 .*8.6e\+07 neighbours are expected as all atoms are"):
        attach_neighbours(data, 6.0, all_pairs_if_isolated=True)
    assert attach_neighbours(data, 6.0).edge_index.shape[1] > 0


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
    monkeypatch.setattr(neighbours, "_FEW", few)
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


def test_an_image_and_the_remedy_are_named():
    with pytest.raises(InputError, match=r"^x: atom 0 \(Cu\) and its own image are 1\.2 Å.*1\.32 Å.*; remove"):
        structures_of(Atoms("Cu", cell=np.diag([5, 5, 1.2]), pbc=True), "x")
