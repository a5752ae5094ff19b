"""Structures unlike a training set: by their geometry, and by what never occurs in it, whatever the geometry."""

import copy
import itertools
import re

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from pydantic import ValidationError
from rdkit import Chem

from molflt.data.ase import from_atoms
from molflt.data.quality.contacts import Contacts, described, filled
from molflt.data.quality.domain import Domain, DomainFit, outside
from molflt.data.quality.occurrence import Occurrence, Sight, Span
from molflt.data.rdkit import from_smiles
from molflt.data.reading import ReadOptions
from molflt.vocabulary import MAX_ATOMIC_NUMBER

NAMES = ("CH4", "C2H6", "CH3OH", "H2O", "C2H4", "CH3CH2OH")


def _fit(structures, forces=False, by_element=True):
    fit = DomainFit(len(structures), forces=forces, by_element=by_element)
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


def test_structures_like_the_training_set_are_inside(of_molecules, of_slabs):
    assert not any(of_molecules.reasons(data) for data in _molecules(60, 2))
    assert not of_slabs.reasons(_slab(1.95, seed=500))


def test_others_are_outside_for_their_own_reason(of_molecules, of_slabs):
    ethanol = _molecules(6, 3)[5]
    assert "kind" in _rules(of_molecules, _slab(1.9))
    assert "kind" in _rules(of_slabs, ethanol)
    # Copper alone: 12 of its atoms have never come without a CO.
    assert _rules(of_slabs, _slab(1.9, adsorbate=False)) == {"kind", "composition"}
    assert "gap" in _rules(of_slabs, _slab(5.5))
    # Its middle carbon has two carbons and two hydrogens.
    assert _rules(of_molecules, from_atoms(molecule("C3H8"), "propane")) == {"size", "environment"}
    stretched = copy.copy(ethanol)
    stretched.positions = ethanol.positions * 1.2
    assert "distance" in _rules(of_molecules, stretched)
    # Every distance is within its margin of one that occurs.
    stretched.positions = ethanol.positions * 1.03
    assert _rules(of_molecules, stretched) == {"strain"}
    # No larger than an ethanol, and each as usual: what they lack is each other.
    apart = molecule("H2O") + Atoms("OH2", molecule("H2O").positions + np.array([0.0, 0.0, 3.5]))
    assert _rules(of_molecules, from_atoms(apart, "two waters")) == {"gap"}
    apart.positions[3:] += [0.0, 0.0, 6.0]
    far, others = from_atoms(apart, "two waters, far"), _molecules(120, 1)
    assert "gap" not in _rules(_fit([*others, far]), far), "it was seen in training"
    # Each half of an ethane has an odd number of electrons, as no part of two waters has.
    broken = molecule("C2H6")
    broken.positions[broken.positions[:, 2] > 0] += [0.0, 0.0, 1.5]
    halves = from_atoms(broken, "two methyls")
    assert _rules(_fit([*others, far]), halves) == {"bond", "environment"}
    assert not _rules(_fit([*others, far, halves]), halves)


@pytest.mark.parametrize(
    ("known", "asked", "text"),
    [
        (["CC=N", "CCN", "CC(=O)N", "CC(=O)OC"], "CC(=N)N", "C bonded to C, N, N, and no such atom in training"),
        (["CC=N", "CCN", "CC(=O)N", "CC(=O)OC"], "CON", "N bonded to H, H, O, and no such atom in training"),
        (["CS", "CSC", "CO", "CC=O"], "CS(=O)C", "O bonded to S, and no such atom in training"),
        (["CC(=O)N", "CCO", "CC"], "NC(=O)C", ""),
    ],
)
def test_a_functional_group_that_does_not_occur(known, asked, text):
    """An amidine has the bonds of an imine and of an amine, so that no distance tells."""
    domain = _fit(120 // len(known) * [from_smiles(smiles) for smiles in known])
    found = [reason.text for reason in domain.reasons(from_smiles(asked)) if reason.rule == "environment"]
    assert found == [text] * bool(text)


def test_environments_are_those_of_rdkits_bonds():
    for smiles in ("CC(=N)NO", "c1ccc2[nH]ccc2c1", "CS(=O)(=O)NC(F)(F)Cl", "OP(=O)(O)OCBr", "C#CC#N", "NC(=O)N"):
        bonds = Chem.AddHs(Chem.MolFromSmiles(smiles))
        around = [(atom, sorted(atom.GetNeighbors(), key=Chem.Atom.GetAtomicNum)) for atom in bonds.GetAtoms()]
        expected = {
            f"{atom.GetSymbol()} bonded to {', '.join(near.GetSymbol() for near in others)}"
            for atom, others in around
        }
        data = from_smiles(smiles)
        codes = Contacts.of(data).environments(data.atomic_numbers.numpy())
        assert set(map(described, codes.tolist())) == expected


def test_an_adsorbate_that_touches_the_metal_or_does_not(of_slabs):
    """In training carbon is on copper; 0.9 Å higher it is bonded to oxygen alone."""
    found = [reason.text for reason in of_slabs.reasons(_slab(2.8)) if reason.rule == "environment"]
    assert found == ["C bonded to O, and no such atom in training"]
    assert "C bonded to O, a metal" in of_slabs.environments


def test_a_surface_of_a_metal_that_was_trained_in_bulk():
    """All numbers of neighbours between the fewest and the most are known, others are not."""

    def copper(remove):
        atoms = bulk("Cu", cubic=True).repeat(2)
        del atoms[:remove]
        return from_atoms(atoms, "copper")

    slab = fcc111("Cu", (2, 2, 4), vacuum=8.0)
    slab.pbc = True
    slab.set_tags(0)
    domain = _fit(110 * [copper(0)])
    (text,) = (r.text for r in domain.reasons(from_atoms(slab, "slab")) if r.rule == "environment")
    assert text == "Cu with 9 neighbours, and no such atom in training"
    assert "environment" in _rules(domain, copper(1))
    assert filled(np.array([29_008, 29_011, 30_002])).tolist() == [29_008, 29_009, 29_010, 29_011, 30_002]


def test_an_adsorbate_that_is_not_one_of_a_few():
    """With seventy structures for each of C, O and CO; as a composition, C2O is their sum."""

    def slab(formula, k):
        atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
        tags = [1] * len(atoms) + [2] * len(formula)
        add_adsorbate(atoms, Atoms(formula, [[0, 0, 1.2 * i] for i in range(len(formula))]), 1.9)
        atoms.rattle(0.01, seed=k)
        atoms.set_tags(tags)
        return from_atoms(atoms, formula)

    def known(*formulas, n):
        return [slab(formula, k) for formula in formulas for k in range(n)]

    few = _fit(known("C", "O", "CO", n=70), by_element=False)
    assert not few.reasons(slab("CO", 100))
    (reason,) = few.occurrence.reasons(few_sight := Sight.of(slab("CCO", 0)), True)
    assert (reason.rule, reason.text) == ("adsorbate", "the adsorbate C2O, and only C, CO, O in training")
    # Fifteen structures of each say too little about what else there may be.
    assert not list(_fit(known("C", "O", "CO", n=15), by_element=False).occurrence.reasons(few_sight, True))


def test_a_structure_that_is_turned_shifted_and_reordered_is_judged_alike(of_slabs):
    of_layers = _fit([_layers({"Cu": [0, 1], "C": [2]})])
    for domain, data in (
        (of_slabs, _slab(2.9)),
        (of_layers, _layers({"Cu": [2, 1], "C": [0]}, "CH4", pbc=[1, 1, 0])),
    ):
        order = torch.from_numpy(np.random.default_rng(0).permutation(int(data.num_nodes)))
        other = data.clone()
        other.positions = (data.positions + torch.tensor([1.3, 0.7, 0.0]) + data.cell[0][0])[order]
        other.atomic_numbers, other.tags = data.atomic_numbers[order], data.tags[order]
        assert domain.reasons(data)
        assert domain.reasons(other) == domain.reasons(data)


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
    new = {"occurrence", "nearest", "fewest_atoms", "fewest_adsorbate_atoms", "environments"}
    old = Domain.model_validate(of_molecules.model_dump(exclude=new) | {"neighbours": {"C": (4, 4)}})
    assert _rules(old, from_atoms(molecule("C3H8"), "propane")) == {"size"}
    assert {r.text for r in old.reasons(from_atoms(molecule("H2"), "H2"))} == {
        "H and H 0.74 Å apart, and never so near in training"
    }
    assert Domain.model_validate_json(of_molecules.model_dump_json()) == of_molecules


def _of(formula, **given):
    """Atoms in a row."""
    atoms = Atoms(formula)
    atoms.positions[:, 0] = 1.2 * np.arange(len(atoms))
    atoms.info |= given
    return from_atoms(atoms, formula, options=ReadOptions(allow_charged=True, charges="charge" in given))


def _layers(tags, adsorbate="CO", n=2, pbc=True):
    """Copper with tags from below to above, and an adsorbate with its own."""
    atoms = fcc111("Cu", (n, n, 2), vacuum=6.0)
    numbers = list(np.repeat(tags["Cu"], n * n))
    add_adsorbate(atoms, Atoms(adsorbate, 1.2 * np.arange(len(Atoms(adsorbate)))[:, None] * [0, 0, 1]), 2.0)
    atoms.set_tags(numbers + tags["C"] * (len(atoms) - len(numbers)))
    atoms.pbc = pbc
    return from_atoms(atoms, "slab", ReadOptions(tags="oc20"))


def test_compositions_that_combine_by_exact_arithmetic():
    """A random composition raises the rank or not, by sympy's; of one that does not, the same with one atom more."""
    sympy = pytest.importorskip("sympy")
    random = np.random.default_rng(0)
    outcomes = []
    for _ in range(40):
        elements = random.choice(np.arange(1, MAX_ATOMIC_NUMBER), size=5, replace=False)
        basis = random.integers(0, 60, size=(3, 5))
        rows = random.integers(0, 4, size=(6, 3)) @ basis
        asked = random.integers(0, 3, size=3) @ basis + random.integers(0, 2) * np.eye(5, dtype=int)[2]
        span, counts = Span(), np.zeros((7, MAX_ATOMIC_NUMBER + 1))
        counts[:, elements] = [*rows, asked]
        for row in counts[:-1]:
            span.add(row)
        rank = sympy.Matrix(rows).rank()
        assert len(span.members) == rank
        inside = sympy.Matrix([*rows.tolist(), asked.tolist()]).rank() == rank
        assert span.holds(counts[-1]) == inside
        # As written to a file and read again, with any number of copies.
        assert Span(span.members).holds(50 * counts[-1]) == inside
        outcomes.append(inside)
    assert 5 < sum(outcomes) < 35


@pytest.mark.parametrize(
    ("training", "inside", "out", "open_elements"),
    [
        (["H2O"], ["H4O2"], ["H2", "O2", "H2O2"], ["H", "O"]),
        (["H2O", "H2"], ["H2O2", "O2", "H2O"], [], []),
        (["C5H8O2"], ["C10H16O4"], ["C2H6O", "H2O", "CH4"], ["H", "C", "O"]),
        # Two H to every C; what an O has is known.
        (["C2H4", "C3H6", "O2"], ["C4H8", "C2H4O"], ["CH4", "H2O"], ["H", "C"]),
    ],
)
def test_reference_energies_cannot_tell_apart(training, inside, out, open_elements):
    domain = _fit([_of(formula) for formula in training])
    assert domain.occurrence is not None
    for formula in inside:
        assert "composition" not in _rules(domain, _of(formula)), formula
    for formula in out:
        (reason,) = [r for r in domain.reasons(_of(formula)) if r.rule == "composition"]
        assert f"composition is {Atoms(formula).get_chemical_formula()}," in reason.text
    assert domain.occurrence.span.open_elements() == open_elements
    # What makes no difference to the rule makes none here: the order of a set, and what is stored of it.
    other = Domain.model_validate_json(_fit([_of(formula) for formula in training[::-1]]).model_dump_json())
    for formula in (*inside, *out):
        assert _rules(other, _of(formula)) == _rules(domain, _of(formula))


def test_adsorption_energies_know_the_adsorbate_from_any_slab():
    """The slab below it, three times as large for instance, is no part of the label; in a total it is."""
    tags = {"Cu": [0, 1], "C": [2]}
    training = [_layers(tags, "CO"), _layers(tags, "CH4")]
    larger, other = _layers(tags, "CO", n=3), _layers(tags, "C2")
    assert _rules(_fit(training, by_element=False), larger) == set()
    assert _rules(_fit(training, by_element=False), other) == {"composition"}
    assert _rules(_fit(training), larger) == {"composition"}


def test_tags_that_never_occur():
    tagged, untagged, wrong = {"Cu": [0, 1], "C": [2]}, {"Cu": [0, 0], "C": [0]}, {"Cu": [2, 1], "C": [0]}
    slabs = _fit([_layers(tagged), _layers(tagged, "CH4")], by_element=False)
    assert not slabs.reasons(_layers(tagged))
    assert _rules(slabs, _layers(untagged)) == {"kind"}
    # As a file with layers read by tags="oc20", which the message about such tags offers: the kind is a known one.
    reasons = dict(slabs.reasons(_layers(wrong)))
    assert reasons["tags"] == "C with tag 0, and 2 in training"
    assert "kind" not in reasons
    bare = _fit([_layers({"Cu": [0, 1], "C": [1]})])
    assert _rules(bare, _layers(untagged)) == {"tags"}
    assert _rules(_fit([_layers(untagged)]), _layers({"Cu": [0, 1], "C": [1]})) == {"tags"}
    # Each is known of each element, and they never come together.
    both = _fit([_layers({"Cu": [0, 0], "C": [1]}), _layers({"Cu": [1, 1], "C": [1]})])
    assert _rules(both, _layers({"Cu": [0, 1], "C": [1]})) == set()
    water, tagged = from_atoms(molecule("H2O"), "w"), from_atoms(molecule("H2O"), "w")
    tagged.tags = tagged.tags + 2
    assert _rules(_fit([water]), tagged) == {"tags"}


def test_axes_along_which_nothing_repeats_in_training():
    tags = {"Cu": [0, 1], "C": [2]}
    slab = _layers(tags, pbc=[True, True, False])
    found = _fit([_layers(tags)]).reasons(slab)
    assert found == [("axes", "periodic along 2 of three axes, and along 3 in training")]
    # Turned, a slab is a slab.
    turned = _layers(tags, pbc=[True, False, True])
    assert _rules(_fit([slab]), turned) == set()
    assert _rules(_fit([from_atoms(bulk("Cu"), "Cu")]), from_atoms(Atoms("Cu"), "Cu")) == {"kind"}


def test_a_coverage_above_all_in_training():
    """Four copper atoms or more to an adsorbate; one is outside, whichever lattice vectors span the surface."""
    tags = {"Cu": [0, 1], "C": [2]}
    domain = _fit([_layers(tags, n=3), _layers(tags)])
    assert domain.least_area == pytest.approx(4 * 2.553**2 * np.sqrt(3) / 2, rel=0.01)
    assert _rules(domain, _layers(tags, n=4)) == set()
    unaware = Domain.model_validate(domain.model_dump(exclude={"least_area"}))
    for order in ([0, 1, 2], [2, 0, 1]):
        dense = _layers(tags, n=1)
        dense.cell = dense.cell[:, order]
        assert domain.reasons(dense) == [
            ("coverage", "an adsorbate to 6 Å² of surface, and at least 23 Å² in training")
        ]
        assert _rules(unaware, dense) == set()


def test_charges_and_electrons_that_never_occur():
    ions = _fit([_of("OH", charge=-1), _of("OH3", charge=1)])
    assert _rules(ions, _of("OH3", charge=1)) == set()
    assert {r.text for r in ions.reasons(_of("OH2", charge=0)) if r.rule == "charge"} == {
        "a charge of 0 e, and -1 or +1 in training"
    }
    # Taken as if they were neutral, with --allow-charged, ions and radicals have an odd number of electrons.
    closed = _fit([_of("OH2"), _of("CH4")])
    assert "electrons" in _rules(closed, _of("CH3"))
    assert "electrons" not in _rules(closed, _of("CH2"))
    # A free atom, of which some sets hold all, is no radical that tells of others.
    assert "electrons" in _rules(_fit([_of("OH2"), _of("H")]), _of("OH"))
    assert "electrons" not in _rules(_fit([_of("OH2"), _of("OH")]), _of("CH3"))


def test_sizes_at_either_end_and_unseen_elements_first():
    domain = _fit([_of("C2H4"), _of("C3H8")])
    assert [r.text for r in domain.reasons(_of("C2"))] == ["2 atoms, and at least 6 in training"]
    assert [r.text for r in domain.reasons(_of("C4H8"))] == ["12 atoms, and at most 11 in training"]
    assert outside(domain, [1, 6], _of("CF4")) == [("elements", "the model was not trained on F")]


@pytest.mark.parametrize("composition", [{"Xx": 1}, {"C": 0}, {"C": -1}, {"C": 2**40}, {"X": 1}])
def test_a_damaged_file_is_refused(composition):
    known = _fit([_of("C2H4")]).occurrence
    assert known is not None
    with pytest.raises(ValidationError):
        Occurrence.model_validate(known.model_dump() | {"compositions": [composition]})
