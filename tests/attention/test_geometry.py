import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list

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
def test_edge_displacements_are_those_of_ase(name):
    atoms = STRUCTURES[name]()
    geometry = geometry_of([atoms])
    i, j, d, vector = neighbor_list("ijdD", atoms, 6.0)
    ours = np.column_stack([geometry.edge_index.T.numpy(), -geometry.edge_displacements.numpy()])
    theirs = np.column_stack([i, j, vector])
    assert ours.shape == theirs.shape
    order = lambda a: a[np.lexsort(np.round(a, 6).T)]  # noqa: E731
    np.testing.assert_allclose(order(ours), order(theirs), atol=1e-9)
    np.testing.assert_allclose(np.sort(geometry.edge_distances.numpy()), np.sort(d), atol=1e-9)


def test_sum_on_pairs_adds_images_of_a_pair():
    atoms = STRUCTURES["tiny_cell"]()
    geometry = geometry_of([atoms])
    ones = torch.ones(1, geometry.edge_index.shape[1], dtype=torch.float64)
    total = geometry.sum_on_pairs(geometry.pair_places(*geometry.edge_index), ones)
    assert total.shape == (1, 1, 1, 1)
    assert float(total) == len(neighbor_list("i", atoms, 6.0))


def test_float32_displacements_survive_a_large_offset():
    near, far = STRUCTURES["molecule"](), STRUCTURES["molecule"]()
    far.positions += 1e4
    a, b = geometry_of([near], dtype=torch.float32), geometry_of([far], dtype=torch.float32)
    torch.testing.assert_close(a.edge_displacements, b.edge_displacements, atol=1e-6, rtol=0)
    # the control: subtracting in float32 would lose three digits
    careless = torch.tensor(far.positions, dtype=torch.float32)
    i, j = a.edge_index
    assert float((careless[i] - careless[j] - a.edge_displacements).abs().max()) > 1e-4
