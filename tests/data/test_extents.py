"""Structures that are too far spread or too dense to be any: refused on every way in, before memory is taken."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from rdkit import Chem
from torch_geometric.data import Data

from molflt.data.ase import from_atoms
from molflt.data.neighbours import neighbour_list
from molflt.data.open import structures_of
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


def test_what_exists_is_not_refused():
    """Dense and light crystals in every description, and one large body."""
    for atoms in (bulk("C"), bulk("Os"), bulk("Fe", cubic=True) * (3, 3, 3), bulk("Cs"), bulk("Cu") * (1, 1, 9)):
        for skew in (0, 3):
            cell = np.array(atoms.cell)
            cell[0] += skew * cell[1]
            for cutoff in (0.5, 6.0, 20.0):
                edges, _ = neighbour_list(atoms.positions, cell, atoms.pbc, cutoff)
                assert (edges.shape[1] > 0) == (cutoff > 1)
    assert neighbour_list(np.random.default_rng(0).uniform(0, 90, size=(70_000, 3)), np.zeros((3, 3)), OPEN, 1.0)


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
    n = len(atoms)
    return Data(
        positions=torch.from_numpy(atoms.positions),
        atomic_numbers=torch.from_numpy(atoms.numbers).long(),
        cell=torch.from_numpy(np.array(atoms.cell))[None],
        pbc=torch.from_numpy(atoms.pbc)[None],
        tags=torch.zeros(n, dtype=torch.long),
        fixed=torch.zeros(n, dtype=torch.bool),
    )


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
    far = molecule("H2O")
    far.positions[1, 2] = 1e6
    with pytest.raises(InputError, match=r"x: atom 1 lies 1e\+06 Å from the origin along z; .* check the unit"):
        WAYS[way](far)
    if way not in ("RDKit", "relaxed there"):
        tiny = molecule("H2O", cell=[0.01] * 3, pbc=True)
        with pytest.raises(InputError, match=r"x: the planes of the lattice are 0.01 Å apart"):
            WAYS[way](tiny)


def test_all_pairs_of_too_many_atoms(make_structure):
    from molflt.data.neighbours import attach_neighbours

    data = make_structure()
    side = torch.arange(21.0, dtype=torch.float64) * 3
    data.positions = torch.cartesian_prod(side, side, side)
    data.pbc[:] = False
    with pytest.raises(InputError, match=r"structure 0 .*8.6e\+07 neighbours are expected as all atoms are"):
        attach_neighbours(data, 6.0, all_pairs_if_isolated=True)
    assert attach_neighbours(data, 6.0).edge_index.shape[1] > 0
