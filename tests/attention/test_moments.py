"""Local moments against sums over triples of atoms, and what they can tell apart."""

import itertools

import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list

from molflt.attention.moments import LocalMoments, NeighbourMoments, typical_neighbours
from molflt.attention.near import GaussianDistanceBasis, local_neighbourhood
from molflt.attention.smooth import envelope
from tests.attention.structures import STRUCTURES, geometry_of

CUTOFF, DIM, RBF, CHANNELS = 4.0, 16, 6, 5
NAMES = ("molecule", "atom", "tiny_cell", "wire")


@pytest.fixture
def radial():
    torch.manual_seed(0)
    radial = GaussianDistanceBasis(RBF, CUTOFF, pair_types=True).double()
    with torch.no_grad():
        # An element's own affine: receiver and sender must not be exchanged.
        radial.gamma.add_(0.1 * torch.rand_like(radial.gamma))
    return radial


@pytest.fixture
def layer():
    torch.manual_seed(1)
    return LocalMoments(DIM, RBF, CHANNELS).double()


def states(n):
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(2)).double()


def moments_of(atoms, radial, shift=0.0):
    geometry = geometry_of(atoms, CUTOFF)
    geometry.near_displacements = geometry.near_displacements + shift
    return NeighbourMoments(local_neighbourhood(geometry, radial, CUTOFF))


def by_triples(atoms, layer, radial, x):
    """(n_atoms, 3 · channels) with ASE's neighbour list: Σ_j w, Σ_jk w_j (U w_k) (û_j·û_k)^l."""
    receivers, senders, vectors = neighbor_list("ijD", atoms, CUTOFF)
    numbers = torch.as_tensor(atoms.numbers)
    values = layer.value(x)
    found = torch.zeros(len(atoms), 3 * CHANNELS, dtype=torch.float64)
    for i in range(len(atoms)):
        mine = np.flatnonzero(receivers == i)
        if len(mine) == 0:
            continue
        # ASE's D points from the receiver; the sign counts for no product of two.
        vector = torch.as_tensor(vectors[mine])
        distance = vector.norm(dim=1)
        phi = radial(distance, numbers[receivers[mine]], numbers[senders[mine]])
        weight = layer.filters(phi) * envelope(distance, CUTOFF)[:, None] * values[senders[mine]]
        weight = weight / typical_neighbours(CUTOFF) ** 0.5
        unit = vector / (1 + distance**2).sqrt()[:, None]
        found[i, :CHANNELS] = weight.sum(dim=0)
        for j, k in itertools.product(range(len(mine)), repeat=2):
            cosine = unit[j] @ unit[k]
            found[i, CHANNELS : 2 * CHANNELS] += weight[j] * layer.mix_first(weight[k]) * cosine
            found[i, 2 * CHANNELS :] += weight[j] * layer.mix_second(weight[k]) * cosine**2
    return found


@pytest.mark.parametrize("name", NAMES)
def test_products_of_moments_are_sums_over_triples(name, layer, radial):
    atoms = STRUCTURES[name]()
    x = states(len(atoms))
    expected = layer.output(by_triples(atoms, layer, radial, x))
    torch.testing.assert_close(layer(x, moments_of([atoms], radial)), expected, rtol=1e-10, atol=1e-10)
