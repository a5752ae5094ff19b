"""Structures from and to ASE's Atoms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from molflt import vocabulary
from molflt.data.ase_io import from_atoms, refuse_charges, to_atoms
from molflt.data.reading import KNOWN_VALUES
from molflt.errors import InputError


def slab() -> Atoms:
    """Copper with oxygen on it, tagged as OC20 does."""
    atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(atoms, "O", 1.2, "fcc")
    # how the slab was built, which no file format can hold
    atoms.info.clear()
    atoms.set_tags([2 if tag == 0 else 1 if tag == 1 else 0 for tag in atoms.get_tags()])
    return atoms


def test_a_slab_under_the_vocabulary() -> None:
    atoms = slab()
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == 0))
    atoms.calc = SinglePointCalculator(atoms, energy=-3.5)
    atoms.info.update(y_relaxed=-0.25, sid=7, adsorbate="O")
    data = from_atoms(atoms, "slab")
    np.testing.assert_array_equal(data.positions.numpy(), atoms.positions)
    assert data.pbc.tolist() == [[True, True, False]]
    assert data.tags.tolist() == atoms.get_tags().tolist()
    assert data.fixed.tolist() == [True] * 8 + [False] * 5
    assert (float(data.energy), float(data.y_relaxed), int(data.sid)) == (-3.5, -0.25, 7)
    assert (data.name, data.adsorbate, data.num_nodes) == ("slab", "O", 13)


def test_round_trip() -> None:
    atoms = slab()
    atoms.set_constraint(FixAtoms([0, 3]))
    atoms.set_array("positions_relaxed", atoms.positions + 0.1)
    atoms.info.update(energy=-1.5, y_init=0.5, sid=3)
    data = from_atoms(atoms, "slab")
    back = from_atoms(to_atoms(data), "slab")
    assert set(back.keys()) == set(data.keys())
    for field in vocabulary.FIELDS:
        if field in data:
            torch.testing.assert_close(back[field], data[field], rtol=0, atol=1e-12)


def test_nothing_is_computed() -> None:
    atoms = bulk("Cu")
    atoms.calc = EMT()
    assert "energy" not in from_atoms(atoms, "x")
    energy = atoms.get_potential_energy()
    assert float(from_atoms(atoms, "x").energy) == energy
    # an energy of other positions is not this structure's
    atoms.positions += [[0.1, 0, 0]]
    atoms.set_cell(atoms.cell * 1.1)
    assert "energy" not in from_atoms(atoms, "x")


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("with_adsorbate", [True, False])
def test_layer_numbers_are_not_taken_for_oc20_tags(layers: int, with_adsorbate: bool) -> None:
    atoms = fcc111("Cu", (2, 2, layers), vacuum=8.0)
    if with_adsorbate:
        add_adsorbate(atoms, "O", 1.2, "fcc")
    if len(set(atoms.get_tags())) > 1:
        with pytest.raises(InputError, match="tags='layers'"):
            from_atoms(atoms, "slab")
    data = from_atoms(atoms, "slab", tags="layers")
    assert data.tags.tolist() == [2 if t == 0 else 1 if t == 1 else 0 for t in atoms.get_tags()]


def test_oc20_tags_pass_and_can_be_forced() -> None:
    atoms = slab()
    assert from_atoms(atoms, "x").tags.tolist() == atoms.get_tags().tolist()
    upside_down = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    assert from_atoms(upside_down, "x", tags="oc20").tags.tolist() == upside_down.get_tags().tolist()
    # tags of a structure that is no slab say nothing about layers
    atoms = molecule("CO2")
    atoms.set_tags([0, 2, 1])
    assert from_atoms(atoms, "x").tags.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.set_tags([-1] + [0] * 12), "tags"),
        *(
            (lambda a, t=t: a.arrays.update(tags=np.array([t] * 13)), "whole numbers")
            for t in (0.5, np.nan, np.inf, "a")
        ),
        (lambda a: a.set_pbc(True) or a.set_cell([5, 5, 0]), "zero"),
        (lambda a: a.info.update(y_relaxed="low"), "'y_relaxed'"),
        (lambda a: a.info.update(sid=1.5), "'sid'"),
        (lambda a: a.info.update(energy=float("nan")), "'energy'"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 0.5, "Au": 0.5}}), "occupied"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 1.0}, "1": {"Cu": 1.0, "Au": 1.0}}), "shared by elements"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 0.9}}), "partly occupied"),
        (lambda a: a.numbers.__setitem__(0, 0), "atomic_numbers"),
        (lambda a: a.positions.__setitem__((0, 0), np.inf), "positions"),
    ],
)
def test_what_cannot_be_used_is_named(change: Any, message: str) -> None:
    atoms = slab()
    change(atoms)
    with pytest.raises(InputError, match=rf"^slab\.traj#4.*{message}"):
        from_atoms(atoms, "slab.traj#4")


NEUTRAL = {
    "charge": {0},
    "total_charge": {0},
    "net_charge": {0},
    "spin": {0, 1},
    "total_spin": {0},
    "multiplicity": {1},
    "spin_multiplicity": {1},
}


@pytest.mark.parametrize("key", [*NEUTRAL, "Charge", "MULTIPLICITY"])
def test_only_what_is_neutral_and_closed_shell(key: str) -> None:
    for value in (-2, -1, 0, 0.5, 1, 2, 3):
        atoms = molecule("H2O")
        atoms.info[key] = value
        if value in NEUTRAL[key.lower()]:
            from_atoms(atoms, "water")
        else:
            with pytest.raises(InputError, match=rf"water: atoms.info\['{key}'\] is {value}"):
                from_atoms(atoms, "water")


def test_no_other_name_is_a_charge() -> None:
    assert set(KNOWN_VALUES) == set(NEUTRAL)
    atoms = molecule("H2O")
    atoms.info.update({"charges": 3, 7: 3})
    refuse_charges(atoms, "water")
