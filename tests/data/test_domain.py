"""What a training set looks like, and what is unlike it."""

import copy
import itertools
import re

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule

from molflt.data.ase import from_atoms
from molflt.data.quality.domain import Domain, DomainFit

NAMES = ("CH4", "C2H6", "CH3OH", "H2O", "C2H4", "CH3CH2OH")


def _fit(structures, forces=False):
    fit = DomainFit(len(structures), forces)
    for index, structure in enumerate(structures):
        fit.add(fit.look(index, structure))
    return fit.domain()


def _molecules(n, seed):
    """Near their minima."""
    found = []
    for k in range(n):
        atoms = molecule(NAMES[k % len(NAMES)])
        atoms.rattle(0.01, seed=1000 * seed + k)
        found.append(from_atoms(atoms, str(k)))
    return found


def _slab(height, adsorbate=True, seed=0):
    atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    n = len(atoms)
    if adsorbate:
        add_adsorbate(atoms, Atoms("CO", [[0, 0, 0], [0, 0, 1.15]]), height)
    atoms.rattle(0.01, seed=seed)
    atoms.set_tags([1] * n + [2] * (len(atoms) - n))
    return from_atoms(atoms, "slab")


@pytest.fixture(scope="module")
def of_molecules():
    return _fit(_molecules(120, 1))


@pytest.fixture(scope="module")
def of_slabs():
    return _fit([_slab(1.9 + 0.001 * k, seed=k) for k in range(110)])


def _rules(domain, data):
    return {reason.rule for reason in domain.reasons(data)}


def test_what_is_like_the_training_set_is_inside(of_molecules, of_slabs):
    assert not any(of_molecules.reasons(data) for data in _molecules(60, 2))
    assert not of_slabs.reasons(_slab(1.95, seed=500))


def test_what_is_not_is_outside_for_its_own_reason(of_molecules, of_slabs):
    ethanol = _molecules(6, 3)[5]
    assert "kind" in _rules(of_molecules, _slab(1.9))
    assert "kind" in _rules(of_slabs, ethanol)
    # Copper alone: 12 of its atoms have never come without a CO.
    assert _rules(of_slabs, _slab(1.9, adsorbate=False)) == {"kind", "composition"}
    assert "gap" in _rules(of_slabs, _slab(5.5))
    assert _rules(of_molecules, from_atoms(molecule("C3H8"), "propane")) == {"size"}
    stretched = copy.copy(ethanol)
    stretched.positions = ethanol.positions * 1.2
    assert "distance" in _rules(of_molecules, stretched)
    # No larger than an ethanol, and each as usual: what they lack is each other.
    apart = molecule("H2O") + Atoms("OH2", molecule("H2O").positions + np.array([0.0, 0.0, 3.5]))
    assert _rules(of_molecules, from_atoms(apart, "two waters")) == {"gap"}
    # A sixth hydrogen bound to carbon, on either side of a flat group of four.
    six = molecule("CH4") + Atoms("H2", [[0.0, 0.0, 1.09], [0.0, 0.0, -1.09]])
    assert "neighbours" in _rules(of_molecules, from_atoms(six, "CH6"))


def test_a_structure_that_is_turned_shifted_and_reordered_is_judged_alike(of_slabs):
    data = _slab(2.9)
    order = torch.from_numpy(np.random.default_rng(0).permutation(int(data.num_nodes)))
    other = copy.copy(data)
    other.positions = (data.positions + torch.tensor([1.3, 0.7, 0.0]) + data.cell[0][0])[order]
    other.atomic_numbers, other.tags = data.atomic_numbers[order], data.tags[order]
    assert of_slabs.reasons(data)
    assert [r.rule for r in of_slabs.reasons(data)] == [r.rule for r in of_slabs.reasons(other)]


def test_geometries_of_one_molecule_are_counted():
    assert _fit(_molecules(120, 4)).geometries == 20
    isomers = ("CH3CH2OH", "CH3OCH3", "trans-butane", "isobutane", "C3H6_D3h", "C3H6_Cs", "CH3COCH3", "CH3CHO")
    assert _fit([from_atoms(molecule(name), name) for name in isomers]).geometries == 1
    assert not _fit(_molecules(6, 5)).knows_displaced
    assert _fit(_molecules(6, 5), forces=True).knows_displaced


def test_of_few_structures_the_geometry_is_not_judged():
    domain = _fit(_molecules(50, 6))
    assert domain.held_out is None
    stretched = molecule("CH3CH2OH")
    stretched.positions *= 1.5
    assert not domain.reasons(from_atoms(stretched, "ethanol"))
    assert _rules(domain, from_atoms(molecule("C3H8"), "propane")) == {"size"}
    assert "kind" in _rules(domain, _slab(1.9))


def test_a_distance_is_compared_with_the_nearest_in_training(of_molecules):
    """The elements are known; each is named with its distance and with the smallest in training, measured here."""
    nearest = min(
        atoms.get_distance(i, j)
        for atoms in map(molecule, NAMES)
        for i, j in itertools.combinations(np.flatnonzero(atoms.numbers == 1), 2)
    )
    (text,) = (r.text for r in of_molecules.reasons(from_atoms(molecule("H2"), "H2")) if r.rule == "distance")
    found = re.fullmatch(r"H and H 0\.74 Å apart, and (\d\.\d\d) Å or more in training", text)
    assert found
    # Atoms are moved by some hundredths.
    assert float(found[1]) == pytest.approx(nearest, abs=0.1)


def test_a_domain_written_before_it_knew_more_than_geometry(of_molecules):
    new = ("occurrence", "nearest", "fewest_atoms", "fewest_adsorbate_atoms")
    old = Domain.model_validate_json(of_molecules.model_dump_json(exclude=set(new)))
    assert _rules(old, from_atoms(molecule("C3H8"), "propane")) == {"size"}
    assert {r.text for r in old.reasons(from_atoms(molecule("H2"), "H2"))} == {
        "H and H 0.74 Å apart, and never so near in training"
    }
    assert Domain.model_validate_json(of_molecules.model_dump_json()) == of_molecules
