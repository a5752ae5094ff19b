"""Compositions: what is inside a member stays, what is between members is as asked, and energies add up."""

import numpy as np
import pytest
import torch
from ase.build import fcc111, fcc211, molecule
from ase.calculators.lj import LennardJones
from ase.geometry import get_distances

from molflt.data.ase import from_atoms, to_atoms
from molflt.data.images import BESIDE, OneSlab, in_cell, separate_fragments, translations
from molflt.data.reading import ReadOptions
from molflt.vocabulary import TAG_ADSORBATE


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


def slab(symbol="Pt", size=(3, 4, 2)):
    found = fcc111(symbol, size, vacuum=6.0, periodic=True)
    # As in OC20: 0 below, 1 the surface.
    found.set_tags((found.get_tags() == 1).astype(int))
    return found


def adsorbed(name, where, surface):
    """A molecule on a slab, with its adsorption energy by a potential that ends before the next adsorbate begins."""
    guest = molecule(name)
    guest.positions += (
        surface.positions[where] + [0, 0, 2.0 - guest.positions[:, 2].min()] - guest.positions[0] * [1, 1, 0]
    )
    guest.set_tags([TAG_ADSORBATE] * len(guest))
    atoms = surface + guest
    atoms.info["y_relaxed"] = potential(atoms) - potential(surface) - potential(guest)
    return from_atoms(atoms, name, ReadOptions(tags="oc20"))


def potential(atoms):
    atoms = atoms.copy()
    atoms.calc = LennardJones(sigma=1.0, epsilon=1.0, rc=3.1)
    return atoms.get_potential_energy()


@pytest.mark.parametrize("doubled", [False, True])
def test_adsorption_energies_on_one_slab_are_those_of_a_short_ranged_potential(doubled):
    """Oracle: the potential itself, evaluated on slab, molecules and both together; and images by ASE."""
    clean = slab()
    first, second = adsorbed("H2O", -1, clean), adsorbed("CH3OH", -6, clean)
    first.positions_relaxed, second.positions_relaxed = first.positions + 0.1, second.positions - 0.2
    both = OneSlab(first, second, translations(first), doubled)
    assert both.fits
    seen = set()
    for seed in range(8):
        data = both.filled(np.random.default_rng(seed))
        atoms = to_atoms(data)
        adsorbates = data.tags.numpy() == TAG_ADSORBATE
        assert len(atoms) == both.n_atoms == data.num_nodes == len(clean) * (1 + doubled) + 3 + 6
        alone, fragments = atoms[~adsorbates], [atoms[adsorbates][:3], atoms[adsorbates][3:]]
        expected = potential(atoms) - potential(alone) - sum(potential(molecule(each)) for each in ("H2O", "CH3OH"))
        assert float(data.y_relaxed) == pytest.approx(expected, abs=1e-6)
        assert float(data.y_relaxed) < 1.2 * min(float(first.y_relaxed), float(second.y_relaxed))
        between = get_distances(*(each.positions for each in fragments), cell=atoms.cell, pbc=atoms.pbc)[1].min()
        assert BESIDE[0] <= between <= BESIDE[1]
        repeated = clean.repeat((2, 1, 1)) if doubled else clean
        np.testing.assert_allclose(atoms.cell, repeated.cell)
        offsets = get_distances(alone.positions, repeated.positions, cell=atoms.cell, pbc=atoms.pbc)[1].min(axis=1)
        assert offsets.max() < 1e-5
        moved = data.positions_relaxed - data.positions
        assert torch.allclose(moved[-6:], torch.tensor(-0.2).double(), atol=1e-6)
        assert torch.allclose(moved[:-6], torch.tensor(0.1).double(), atol=1e-6)
        seen.add(tuple(data.positions[-1].numpy().round(2).tolist()))
    assert len(seen) > 1 + 2 * doubled
    # Power: a place that no lattice translation leads to has another energy.
    wrong = OneSlab(first, second, np.array([[0.7, 0.3, 0.0]]), True)
    atoms = to_atoms(wrong.filled(np.random.default_rng(0)))
    adsorbates = atoms.get_tags() == TAG_ADSORBATE
    energy = (
        potential(atoms) - potential(atoms[~adsorbates]) - sum(potential(molecule(each)) for each in ("H2O", "CH3OH"))
    )
    assert abs(energy - float(first.y_relaxed + second.y_relaxed)) > 0.01


def test_lattice_translations_of_a_slab():
    """As many as a layer has atoms of one kind in one place; on steps only along them; of no other element."""

    def number(atoms):
        return len(translations(from_atoms(atoms, "slab", ReadOptions(tags="oc20"))))

    assert number(slab()) == 12
    steps = fcc211("Pt", (3, 3, 3), vacuum=6.0)
    steps.pbc = True
    steps.set_tags(0)
    assert number(steps) == 3
    alloy = slab()
    alloy.symbols[[0, -1]] = "Cu"
    assert number(alloy) == 1
    shifted = slab()
    shifted.positions[3] += [0, 0, 0.3]
    assert number(shifted) == 1


def test_without_a_place_beside_the_other_is_far_away():
    """Two molecules that are too large for one cell: they are put as far apart as they go."""
    clean = slab(size=(2, 2, 2))
    first, second = (adsorbed(name, -1, clean) for name in ("H2O", "CH3OH"))
    both = OneSlab(first, second, translations(first), False)
    assert not both.fits
    _, gaps = both.places
    data = both.filled(np.random.default_rng(0))
    atoms = to_atoms(data)
    fragments = atoms[len(clean) : len(clean) + 3], atoms[len(clean) + 3 :]
    between = get_distances(*(each.positions for each in fragments), cell=atoms.cell, pbc=atoms.pbc)[1].min()
    assert between == pytest.approx(gaps.max())
