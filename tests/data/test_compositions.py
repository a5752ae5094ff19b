"""Compositions: what is inside a member stays, what is between members is as asked, and energies add up."""

import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.lj import LennardJones
from ase.geometry import get_distances

from molflt.data.ase import from_atoms, to_atoms
from molflt.data.images import in_cell, separate_fragments


def labelled(name, cutoff=2.5):
    """With energy and forces of a potential that ends before another molecule begins."""
    atoms = molecule(name)
    atoms.calc = LennardJones(sigma=1.0, epsilon=0.1, rc=cutoff)
    data = from_atoms(atoms, name)
    data.energy = torch.tensor([atoms.get_potential_energy()], dtype=torch.float64)
    data.forces = torch.from_numpy(atoms.get_forces())
    return data


def energy_and_forces(data):
    atoms = to_atoms(data)
    atoms.calc = LennardJones(sigma=1.0, epsilon=0.1, rc=2.5)
    return atoms.get_potential_energy(), atoms.get_forces()


@pytest.mark.parametrize("kind", ["two", "three", "cell"])
def test_labels_are_those_of_a_short_ranged_potential(kind):
    """Oracle: the potential itself, evaluated on the composition; and distances, by brute force over images."""
    random, gaps = np.random.default_rng(1), np.array([3.6, 4.0, 5.0])
    ethanol, water, benzene = map(labelled, ("CH3CH2OH", "H2O", "C6H6"))
    members = {"two": [ethanol, benzene], "three": [ethanol, benzene, water]}.get(kind, [ethanol])
    if kind in ("two", "three"):
        data = separate_fragments(members, gaps[1 : len(members)].tolist(), random)
    else:
        data = in_cell(ethanol, gaps, random)
    energy, forces = energy_and_forces(data)
    assert float(data.energy) == pytest.approx(energy, abs=1e-12)
    np.testing.assert_allclose(data.forces, forces, atol=1e-12)
    assert torch.equal(data.atomic_numbers, torch.cat([member.atomic_numbers for member in members]))

    owner = np.repeat(np.arange(len(members)), [len(member.positions) for member in members])
    distances = get_distances(data.positions.numpy())[1]
    for k, member in enumerate(members):
        within = distances[np.ix_(owner == k, owner == k)]
        np.testing.assert_allclose(within, get_distances(member.positions.numpy())[1], atol=1e-9)
    if kind == "cell":
        assert bool(data.pbc.all())
        np.testing.assert_allclose(np.diag(data.cell[0]) - np.ptp(data.positions.numpy(), axis=0), gaps)
    elif kind == "two":
        assert distances[owner[:, None] != owner].min() == pytest.approx(4.0)
    else:
        assert distances[owner[:, None] != owner].min() > 3.6 - 1e-9
