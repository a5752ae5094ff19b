"""What never occurs in a training set, whatever the geometry: compositions, tags, axes, charges, electrons, sizes."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from pydantic import ValidationError

from molflt.data.ase import from_atoms
from molflt.data.quality.domain import Domain, DomainFit, outside
from molflt.data.quality.occurrence import Occurrence, Span
from molflt.data.reading import ReadOptions
from molflt.vocabulary import MAX_ATOMIC_NUMBER


def _domain(structures, by_element=True):
    fit = DomainFit(len(structures), forces=False, by_element=by_element)
    for index, structure in enumerate(structures):
        fit.add(fit.look(index, structure))
    return fit.domain()


def _rules(domain, data):
    return {reason.rule for reason in domain.reasons(data)}


def _of(formula, **given):
    """Atoms in a row."""
    atoms = Atoms(formula)
    atoms.positions[:, 0] = 1.2 * np.arange(len(atoms))
    atoms.info |= given
    return from_atoms(atoms, formula, options=ReadOptions(allow_charged=True, charges="charge" in given))


def _slab(tags, adsorbate="CO", n=2, pbc=True):
    """Copper with tags from below to above, and an adsorbate with its own."""
    atoms = fcc111("Cu", (n, n, 2), vacuum=6.0)
    numbers = list(np.repeat(tags["Cu"], n * n))
    add_adsorbate(atoms, Atoms(adsorbate, 1.2 * np.arange(len(Atoms(adsorbate)))[:, None] * [0, 0, 1]), 2.0)
    atoms.set_tags(numbers + tags["C"] * (len(atoms) - len(numbers)))
    atoms.pbc = pbc
    return from_atoms(atoms, "slab", ReadOptions(tags="oc20"))


def test_compositions_that_combine_by_exact_arithmetic():
    """Whether a random composition raises the rank, by sympy's; of one that does not, the same with one atom more."""
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
    domain = _domain([_of(formula) for formula in training])
    assert domain.occurrence is not None
    for formula in inside:
        assert "composition" not in _rules(domain, _of(formula)), formula
    for formula in out:
        (reason,) = [r for r in domain.reasons(_of(formula)) if r.rule == "composition"]
        assert f"composition is {Atoms(formula).get_chemical_formula()}," in reason.text
    assert domain.occurrence.span.open_elements() == open_elements
    # What makes no difference to the rule makes none here: the order of a set, and what is stored of it.
    other = Domain.model_validate_json(_domain([_of(formula) for formula in training[::-1]]).model_dump_json())
    for formula in (*inside, *out):
        assert _rules(other, _of(formula)) == _rules(domain, _of(formula))


def test_adsorption_energies_know_the_adsorbate_from_any_slab():
    """What is below it, three times as much for instance, is no part of the label; in a total it is."""
    tags = {"Cu": [0, 1], "C": [2]}
    training = [_slab(tags, "CO"), _slab(tags, "CH4")]
    larger, other = _slab(tags, "CO", n=3), _slab(tags, "C2")
    assert _rules(_domain(training, by_element=False), larger) == set()
    assert _rules(_domain(training, by_element=False), other) == {"composition"}
    assert _rules(_domain(training), larger) == {"composition"}


def test_tags_that_never_occur():
    tagged, untagged, wrong = {"Cu": [0, 1], "C": [2]}, {"Cu": [0, 0], "C": [0]}, {"Cu": [2, 1], "C": [0]}
    slabs = _domain([_slab(tagged), _slab(tagged, "CH4")], by_element=False)
    assert not slabs.reasons(_slab(tagged))
    assert _rules(slabs, _slab(untagged)) == {"kind"}
    # As a file with layers read by tags="oc20", which the message about such tags offers: the kind is a known one.
    reasons = dict(slabs.reasons(_slab(wrong)))
    assert reasons["tags"] == "C with tag 0, and 2 in training"
    assert "kind" not in reasons
    bare = _domain([_slab({"Cu": [0, 1], "C": [1]})])
    assert _rules(bare, _slab(untagged)) == {"tags"}
    assert _rules(_domain([_slab(untagged)]), _slab({"Cu": [0, 1], "C": [1]})) == {"tags"}
    # Each is known of each element, and they never come together.
    both = _domain([_slab({"Cu": [0, 0], "C": [1]}), _slab({"Cu": [1, 1], "C": [1]})])
    assert _rules(both, _slab({"Cu": [0, 1], "C": [1]})) == set()
    assert _rules(_domain([from_atoms(molecule("H2O"), "w")]), from_atoms(_tagged("H2O", 2), "w")) == {"tags"}


def _tagged(name, tag):
    atoms = molecule(name)
    atoms.set_tags(tag)
    return atoms


def test_axes_along_which_nothing_repeats_in_training():
    tags = {"Cu": [0, 1], "C": [2]}
    slab = _slab(tags, pbc=[True, True, False])
    found = _domain([_slab(tags)]).reasons(slab)
    assert found == [("axes", "periodic along 2 of three axes, and along 3 in training")]
    # Turned, a slab is a slab.
    turned = _slab(tags, pbc=[True, False, True])
    assert _rules(_domain([slab]), turned) == set()
    assert _rules(_domain([from_atoms(bulk("Cu"), "Cu")]), from_atoms(Atoms("Cu"), "Cu")) == {"kind"}


def test_charges_and_electrons_that_never_occur():
    ions = _domain([_of("OH", charge=-1), _of("OH3", charge=1)])
    assert _rules(ions, _of("OH3", charge=1)) == set()
    assert {r.text for r in ions.reasons(_of("OH2", charge=0)) if r.rule == "charge"} == {
        "a charge of 0 e, and -1 or +1 in training"
    }
    # Taken as if they were neutral, with --allow-charged, ions and radicals have an odd number of electrons.
    closed = _domain([_of("OH2"), _of("CH4")])
    assert "electrons" in _rules(closed, _of("CH3"))
    assert "electrons" not in _rules(closed, _of("CH2"))
    # A free atom, of which some sets hold all, is no radical that tells of others.
    assert "electrons" in _rules(_domain([_of("OH2"), _of("H")]), _of("OH"))
    assert "electrons" not in _rules(_domain([_of("OH2"), _of("OH")]), _of("CH3"))


def test_sizes_at_either_end():
    domain = _domain([_of("C2H4"), _of("C3H8")])
    assert [r.text for r in domain.reasons(_of("C2"))] == ["2 atoms, and at least 6 in training"]
    assert [r.text for r in domain.reasons(_of("C4H8"))] == ["12 atoms, and at most 11 in training"]


def test_unseen_elements_come_first():
    (reason,) = outside(_domain([_of("C2H4")]), [1, 6], _of("CF4"))
    assert reason == ("elements", "the model was not trained on F")


def test_the_order_of_atoms_and_their_place_do_not_matter():
    domain, data = _domain([_slab({"Cu": [0, 1], "C": [2]})]), _slab({"Cu": [2, 1], "C": [0]}, "CH4", pbc=[1, 1, 0])
    order = torch.from_numpy(np.random.default_rng(0).permutation(int(data.num_nodes)))
    other = data.clone()
    other.positions, other.tags = data.positions[order] + 3.0, data.tags[order]
    other.atomic_numbers = data.atomic_numbers[order]
    assert len(domain.reasons(data)) > 2
    assert domain.reasons(other) == domain.reasons(data)


@pytest.mark.parametrize("composition", [{"Xx": 1}, {"C": 0}, {"C": -1}, {"C": 2**40}, {"X": 1}])
def test_a_damaged_file_is_refused(composition):
    known = _domain([_of("C2H4")]).occurrence
    assert known is not None
    with pytest.raises(ValidationError):
        Occurrence.model_validate(known.model_dump() | {"compositions": [composition]})
