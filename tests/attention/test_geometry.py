import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.attention.layout import Plan, entries_of
from tests.attention.structures import STRUCTURES, geometry_of


def test_pack_undoes_pad_for_a_wider_layout():
    geometry = geometry_of([make() for make in STRUCTURES.values()], n_max=20)
    x = torch.randn(geometry.n_atoms, 3, 2, dtype=torch.float64)
    padded = geometry.pad(x)
    assert padded.shape[:2] == (len(STRUCTURES), 20)
    assert torch.equal(geometry.pack(padded), x)
    assert float(padded[~geometry.atom_mask].abs().sum()) == 0.0


def test_too_narrow_a_layout_is_refused():
    with pytest.raises(ValueError, match="cannot hold"):
        geometry_of([STRUCTURES["slab"]()], n_max=5)


@pytest.mark.parametrize("name", list(STRUCTURES))
def test_the_reverse_of_an_entry_has_its_displacement_with_the_other_sign(name):
    geometry = geometry_of([STRUCTURES[name](), STRUCTURES["tiny_cell"]()])
    near, delta = geometry.layout.near, geometry.near_displacements
    assert torch.equal(near.receiver[near.reverse], near.sender)
    assert torch.equal(near.reverse[near.reverse], torch.arange(len(delta)))
    torch.testing.assert_close(delta[near.reverse], -delta)
    places = near.slot.view(-1)
    assert torch.equal(near.sender_of_slot[places], near.sender)
    assert torch.equal(near.reverse_of_slot[places], places[near.reverse])
    assert int(near.others.sum()) == len(delta) - geometry.n_atoms


def test_an_edge_in_one_direction_is_refused():
    edges, offsets = np.array([[0, 1, 1], [1, 0, 0]]), np.array([[0, 0, 0], [0, 0, 0], [0, 0, 1]])
    assert len(entries_of(edges[:, :2], offsets[:2], 2).receiver) == 4
    with pytest.raises(ValueError, match="both directions"):
        entries_of(edges, offsets, 2)


def test_only_neighbours_within_the_cutoff_are_kept_unless_more_are_asked_for():
    atoms = [STRUCTURES["slab"](), Atoms("He2", [[0, 0, 0], [0, 0, 5.0]])]
    narrow, wide = (geometry_of(atoms, plan=Plan(3.0, wide=wide)) for wide in (False, True))
    assert float(narrow.near_displacements.norm(dim=1).max()) < 3.0
    assert narrow.layout.wide is None
    assert torch.equal(wide.layout.near.receiver, narrow.layout.near.receiver)
    assert float(wide.displacements(wide.layout.wide).norm(dim=1).max()) > 5.0
