"""Vectors and tensors that atoms carry: against the update written out with matrices, and what only they can see."""

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.neighborlist import neighbor_list

from molflt.attention.mechanism import COMPONENTS
from molflt.attention.moments import typical_neighbours
from molflt.attention.smooth import envelope
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from tests.attention.layers import CUTOFF, DIM, HEADS, Layer, check_ways_agree, near_and_far
from tests.attention.structures import STRUCTURES, batch_of, rotated

CHANNELS = 6
PLACES = torch.tensor([[0, 4, 3], [4, 1, 5], [3, 5, 2]])
"""Of the entries of a symmetric matrix among six components; those off the diagonal are √2 times the entry."""


def matrices(squares):
    """(n, 6, c) → (n, c, 3, 3)."""
    scale = torch.full((3, 3), 1 / math.sqrt(2), dtype=squares.dtype).fill_diagonal_(1.0)
    return squares[:, PLACES].permute(0, 3, 1, 2) * scale


def components(vectors, tensors):
    """(n, c, 3), (n, c, 3, 3) → (n, 9, c)."""
    off = [math.sqrt(2) * tensors[..., i, i - 1] for i in range(3)]
    six = torch.stack([*(tensors[..., i, i] for i in range(3)), *off], dim=1)
    return torch.cat([vectors.transpose(1, 2), six], dim=1)


def traceless(tensors):
    return tensors - torch.eye(3) * tensors.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]


def normed(vectors, tensors):
    of_vectors = 1 + vectors.square().sum(dim=(1, 2)) / vectors.shape[1]
    of_tensors = 1 + tensors.square().sum(dim=(1, 2, 3)) / tensors.shape[1]
    return vectors / of_vectors.sqrt()[:, None, None], tensors / of_tensors.sqrt()[:, None, None, None]


def mixed(per_order, vectors, tensors):
    return (
        torch.einsum("oc,ncx->nox", per_order.first.weight, vectors),
        torch.einsum("oc,ncxy->noxy", per_order.second.weight, tensors),
    )


def moments_by_pairs(atoms, layer, radial, x):
    """First and second moments of the neighbours, (n, c, 3) and (n, c, 3, 3), the latter without trace."""
    receivers, senders, vectors = neighbor_list("ijD", atoms, CUTOFF)
    z, values = torch.as_tensor(atoms.numbers), layer.moments.value(x)
    first = torch.zeros(len(atoms), values.shape[1], 3, dtype=torch.float64)
    second = torch.zeros(len(atoms), values.shape[1], 3, 3, dtype=torch.float64)
    for i, j, vector in zip(receivers, senders, vectors, strict=True):
        delta = -torch.as_tensor(vector)
        distance = delta.norm()[None]
        phi = radial(distance, z[i][None], z[j][None])
        weight = (layer.moments.filters(phi) * envelope(distance, CUTOFF)[:, None])[0] * values[j]
        weight = weight / typical_neighbours(CUTOFF) ** 0.5
        unit = delta / (1 + distance**2).sqrt()
        first[i] += weight[:, None] * unit
        second[i] += weight[:, None, None] * traceless(torch.outer(unit, unit))
    return first, second


@pytest.mark.parametrize("keys", [{"frequencies": "exact"}, {"mechanism": "local"}], ids=str)
@pytest.mark.parametrize("name", ["linear", "wire", "tiny_cell"])
def test_the_layer_is_its_formula(name, keys):
    made = Layer(**keys, vector_channels=CHANNELS)
    layer, stream, atoms = made.layer, made.layer.stream, STRUCTURES[name]()
    geometry, n = made.geometry([atoms]), len(atoms)
    state = torch.randn(n, DIM + COMPONENTS * CHANNELS, dtype=torch.float64)
    found = made.apply(state, geometry)

    x, given = state[:, :DIM], state[:, DIM:].view(n, COMPONENTS, CHANNELS)
    vectors, tensors = given[:, :3].transpose(1, 2), matrices(given[:, 3:])
    first, second = moments_by_pairs(atoms, layer, made.radial, x)
    a, b = mixed(stream.source, first, second)
    vectors, tensors = vectors + a, tensors + b
    gates = (1 + stream.sender_gate(x)).split(CHANNELS, dim=1)
    a, b = normed(vectors, tensors)
    a, b = mixed(stream.value, gates[0][..., None] * a, gates[1][..., None, None] * b)
    near, far = near_and_far(atoms, layer, made.shared, made.radial, *layer.query_key(x))
    near, far = (sums / near.sum(dim=1, keepdim=True) for sums in (near, far))
    # The far field carries one vector and tensor of every head, the other is of neighbours only.
    weights = torch.stack([near + far, near], dim=3).flatten(2)
    a, b = torch.einsum("ijc,jcx->icx", weights, a), torch.einsum("ijc,jcxy->icxy", weights, b)
    a, b = mixed(stream.gathered, a, b)
    vectors, tensors = vectors + a, tensors + b
    a, b = normed(vectors, tensors)
    a2, b2 = mixed(stream.mix, a, b)
    turned = torch.einsum("ncxy,ncy->ncx", b, a2)
    scalars = torch.cat([(a * a2).sum(-1), (b * b2).sum((-1, -2)), (a * turned).sum(-1)], dim=1)
    gates = (1 + stream.gate(x)).split([3 * CHANNELS, CHANNELS, CHANNELS], dim=1)
    product = torch.einsum("ncx,ncy->ncxy", a, a2)
    product = traceless((product + product.transpose(-1, -2)) / 2)
    of_scalars = stream.output(gates[0] * scalars)
    a, b = mixed(stream.product, gates[1][..., None] * turned, gates[2][..., None, None] * product)
    expected = components(vectors + a, tensors + b) - given
    torch.testing.assert_close(found[:, DIM:].view_as(expected), expected, rtol=1e-9, atol=1e-10)

    values = layer.value(x).view(n, HEADS, -1)
    carried = values * (torch.arange(values.shape[2]) < math.ceil(values.shape[2] / 4))
    attended = torch.einsum("ijh,jhc->ihc", near, values) + torch.einsum("ijh,jhc->ihc", far, carried)
    of_moments = layer.moments(x, made.context(geometry).moments)
    expected = layer.output(attended.flatten(1)) + of_moments + of_scalars
    torch.testing.assert_close(found[:, :DIM], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({}, ["slab", "triclinic", "molecule", "atom"]),
        ({"far_rank": 1}, ["triclinic"]),
        ({"far_rank": "m"}, ["wire"]),
    ],
    ids=str,
)
def test_ways_agree(keys, names):
    check_ways_agree(names, ("pairs", "waves"), vector_channels=HEADS, **keys)


def two_ends(angle, seed):
    """Two =CH₂ groups 12 Å apart on one axis, one turned about it; shaken a little, and all turned at random."""
    end = np.array([[0, 0, 0], [-1.33, 0, 0], [-1.9, 0.93, 0], [-1.9, -0.93, 0]])
    c, s = np.cos(angle), np.sin(angle)
    other = -end @ np.array([[1, 0, 0], [0, c, s], [0, -s, c]]) + (12.0, 0, 0)
    positions = np.vstack([end, other])
    positions += np.random.default_rng(seed).normal(0, 0.02, positions.shape)
    return rotated(Atoms("CCH2CCH2", positions), seed=2 * seed)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [8, 0])
def test_the_angle_between_distant_groups_is_learnt_and_only_with_vectors(channels):
    """cos 2θ of two groups 12 Å apart and nothing else, in structures that vibrate and lie in any direction."""
    random = np.random.default_rng(0)
    angles = random.uniform(0, np.pi, 256)
    structures = [two_ends(angle, seed) for seed, angle in enumerate(angles)]
    targets = torch.from_numpy(np.cos(2 * angles))
    torch.manual_seed(0)
    attention = {"vector_channels": channels, "n_basis": 8, "isolated_atoms": 8}
    sizes = {"dim": 32, "n_heads": 4, "n_layers": 2, "ffn_dim": 32, "n_rbf": 12, "cutoff": 4.0}
    model = EnergyModel(ModelConfig(**sizes, auxiliary_head=False, attention=attention))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = 200
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    batches = [batch_of(structures[a : a + 32], 4.0) for a in range(0, 192, 32)]
    for step in range(steps):
        few = step % len(batches)
        loss = (model(batches[few]).energy - targets[32 * few : 32 * few + 32]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        error = model(batch_of(structures[192:], 4.0)).energy - targets[192:]
    share = float(error.abs().mean()) / 2.0
    assert share < 0.05 if channels else share > 0.25
