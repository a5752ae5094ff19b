"""Recycles: what depends on positions alone is made once, and checkpoints change no number."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from molflt.attention import layer, near
from molflt.attention.far import mesh
from molflt.attention.layer import FourierAttention
from molflt.attention.near import GaussianDistanceBasis
from molflt.attention.smooth import NOTHING, shortened
from molflt.data.ase import from_atoms
from molflt.data.batch import StructureCollater
from molflt.model.config import ModelConfig
from molflt.model.encoder import normalised
from molflt.model.energy import EnergyModel
from tests.attention.structures import STRUCTURES

SIZES = {"dim": 16, "n_heads": 2, "n_layers": 2, "ffn_dim": 16, "n_rbf": 4, "cutoff": 4.0}


def model(n_recycles, **attention):
    torch.manual_seed(0)
    return EnergyModel(ModelConfig(**SIZES, n_recycles=n_recycles, attention={"n_basis": 4, **attention})).double()


def batch():
    return StructureCollater(4.0)([from_atoms(STRUCTURES[name](), name) for name in ("slab", "molecule", "atom")])


@pytest.mark.parametrize("frequencies", ["auto", "mesh"])
def test_positions_are_prepared_once_however_many_recycles(monkeypatch, frequencies):
    """Radial basis, what a layer makes of it and the mesh are counted; applications of the layers are not fewer."""
    calls = {}

    def counted(owner, name):
        original = getattr(owner, name)

        def call(*arguments, **options):
            calls[name] = calls.get(name, 0) + 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counted(GaussianDistanceBasis, "forward")
    counted(FourierAttention, "prepare")
    counted(FourierAttention, "_attended")
    counted(mesh, "on_mesh")
    found = []
    for n_recycles in (1, 4):
        calls.clear()
        model(n_recycles, frequencies=frequencies)(batch())
        found.append((calls.pop("_attended"), dict(calls)))
    (once, prepared), (often, again) = found
    assert again == prepared
    assert often == 4 * once


def test_checkpointed_recycles_give_the_same_gradients_and_keep_less():
    found, kept = [], []
    for checkpointed in (False, True):
        one = model(3)
        one.encoder.checkpoint_recycles = checkpointed
        total = 0

        def count(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            energy = one(batch()).energy.sum()
        kept.append(total)
        energy.backward()
        found.append([p.grad for p in one.parameters() if p.grad is not None])
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-10, atol=1e-12)
    assert kept[1] < 0.7 * kept[0]


def test_a_neighbourhood_in_parts_is_the_whole(monkeypatch):
    """Small limits on what is held at once: the same energies and gradients, and nothing of size edges × radial."""
    expected, structures = model(2, frequencies="mesh"), batch()
    structures.positions.requires_grad_()
    energy = expected(structures).energy
    energy.sum().backward()
    monkeypatch.setattr(near, "_VALUES_AT_ONCE", 64)
    with torch.no_grad():
        kept = model(2, frequencies="mesh")(batch()).energy
        torch.testing.assert_close(kept, energy.detach(), rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(near, "_VALUES_KEPT", 64)
    monkeypatch.setattr(near, "_VALUES_KEPT_FOR_GRADIENT", 64)
    monkeypatch.setattr(layer, "_ENTRY_FACTORS_KEPT", 32)
    parts = model(2, frequencies="mesh")
    again = batch()
    again.positions.requires_grad_()
    found = parts(again).energy
    found.sum().backward()
    torch.testing.assert_close(again.positions.grad, structures.positions.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found, energy, rtol=1e-12, atol=1e-12)
    for one, other in zip(parts.parameters(), expected.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(parts(batch()).energy, energy.detach(), rtol=1e-12, atol=1e-12)


def test_edges_in_any_order_give_the_same():
    one, structures = model(1, frequencies="mesh"), batch()
    expected = one(structures).energy
    order = torch.randperm(structures.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    structures.edge_index = structures.edge_index[:, order]
    structures.cell_offsets = structures.cell_offsets[order]
    torch.testing.assert_close(one(structures).energy, expected, rtol=1e-12, atol=1e-12)


def test_normalisation_and_shortened_vectors_have_their_derivatives_of_two_orders():
    norm = nn.LayerNorm(5).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(normalised(norm, x[0]), norm(x[0]))
    torch.testing.assert_close(shortened(x, NOTHING), nn.functional.normalize(x, dim=-1))
    assert not shortened(torch.zeros(2, 3), NOTHING).any()
    groups = torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 1, 1]]).double()

    def function(weight, x):
        # Parameters have a first derivative only.
        return normalised(SimpleNamespace(weight=weight, bias=norm.bias.detach(), eps=norm.eps), x)

    flat = x[0].detach().requires_grad_()
    assert torch.autograd.gradcheck(function, (norm.weight, flat))
    torch.testing.assert_close(*(by_norm(one, norm, flat) for one in (normalised, lambda norm, x: norm(x))))
    for of in (lambda x: shortened(x, NOTHING), lambda x: shortened(x, 2.0, groups)):
        assert torch.autograd.gradcheck(of, (x,))
        assert torch.autograd.gradgradcheck(of, (x,))


def by_norm(function, norm, x):
    """Of a loss on the derivative by x, the derivatives by x, gradient and weight."""
    gradient = torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape).requires_grad_()
    (slope,) = torch.autograd.grad(function(norm, x), x, gradient, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), (x, gradient, norm.weight))
