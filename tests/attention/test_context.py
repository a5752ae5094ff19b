"""Batches split into groups of structures: nothing lost, little padding, the same result as alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from molflt.attention import context as context_module
from molflt.attention.context import GROUP_COST, similar_sizes, split
from molflt.attention.near import GaussianDistanceBasis, local_neighbourhood
from tests.attention.layers import CUTOFF, DIM, Layer
from tests.attention.structures import STRUCTURES, geometry_of

NAMES = ("molecule", "atom", "tiny_cell", "molecule", "wire", "linear")


def neighbourhood(geometry):
    return local_neighbourhood(geometry, GaussianDistanceBasis(6, CUTOFF).double(), CUTOFF)


@given(st.lists(st.integers(1, 300), max_size=60))
def test_every_structure_is_in_one_group_and_padding_is_bounded(sizes):
    groups = similar_sizes(sizes)
    assert sorted(b for group in groups for b in group) == list(range(len(sizes)))
    for group in groups:
        widths = [sizes[b] for b in group]
        assert sum(max(widths) ** 2 - n**2 for n in widths) <= GROUP_COST


def test_structures_of_one_size_stay_together():
    assert similar_sizes([7] * 50) == [list(range(50))]


@pytest.mark.parametrize("groups", [[[1, 2], [5, 0], [4, 3]], [[3], [0, 1, 2, 4, 5]]])
def test_a_group_is_what_its_structures_are_as_a_batch(groups):
    """Positions, types, edges with their displacements and radial features, against a batch made of them alone."""
    atoms = [STRUCTURES[name]() for name in NAMES]
    geometry = geometry_of(atoms, CUTOFF)
    parts, order = split(geometry, neighbourhood(geometry), groups)
    assert sorted(order.tolist()) == list(range(geometry.n_atoms))
    torch.testing.assert_close(
        torch.cat([part.positions for part, _ in parts]), geometry.positions[order], rtol=0, atol=0
    )
    for (part, around), group in zip(parts, groups, strict=True):
        alone = geometry_of([atoms[b] for b in group], CUTOFF)
        expected = neighbourhood(alone)
        assert part.sizes == alone.sizes
        assert part.pbc == alone.pbc
        torch.testing.assert_close(part.cell, alone.cell)
        torch.testing.assert_close(part.structure, alone.structure)
        torch.testing.assert_close(part.edge_index, alone.edge_index[:, expected.edges])
        torch.testing.assert_close(part.edge_displacements, alone.edge_displacements[expected.edges])
        torch.testing.assert_close(around.basis, expected.basis)
        torch.testing.assert_close(around.envelope, expected.envelope)
        torch.testing.assert_close(around.self_basis, expected.self_basis)
        torch.testing.assert_close(around.pattern.columns, expected.pattern.columns)
        torch.testing.assert_close(around.pattern.row_starts, expected.pattern.row_starts)


@pytest.mark.parametrize("keys", [{}, {"far_rank": "m"}])
def test_groups_change_neither_outputs_nor_gradients(keys, monkeypatch):
    """All structures padded to the largest, against each size in a group of its own."""
    layer, atoms = Layer(**keys), [STRUCTURES[name]() for name in NAMES]

    def run(cost):
        monkeypatch.setattr(context_module, "GROUP_COST", cost)
        geometry = layer.geometry(atoms)
        geometry.positions = geometry.positions.detach().requires_grad_()
        context = layer.context(geometry)
        x = torch.randn(geometry.n_atoms, DIM, generator=torch.Generator().manual_seed(1)).double()
        out = layer.layer(x, geometry, layer.layer.prepare(geometry, context))
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        asked = [geometry.positions, *layer.layer.parameters()]
        return len(context.parts), [out, *torch.autograd.grad((out * weights).sum(), asked)]

    n_together, together = run(10**9)
    n_apart, apart = run(0)
    assert (n_together, n_apart) == (1, len({len(a) for a in atoms}))
    torch.testing.assert_close(apart, together, rtol=1e-10, atol=1e-12)
