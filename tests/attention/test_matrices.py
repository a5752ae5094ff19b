"""Matrices that atoms carry: against the layer written out with 3×3 matrices, atom by atom."""

import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list

from molflt.attention.matrices import bounded
from molflt.attention.moments import typical_neighbours
from molflt.attention.smooth import envelope
from tests.attention.layers import (
    CUTOFF,
    DIM,
    HEADS,
    Layer,
    check_ways_agree,
    images,
)
from tests.attention.structures import STRUCTURES, rotated
from tests.model.models import check_forces, energies, make_model

CHANNELS = 6
KEYS = {"mechanism": "matrices", "channels": CHANNELS}
EYE = torch.eye(3, dtype=torch.float64)


def basis():
    """Orthonormal: the identity, the antisymmetric ones, and five traceless symmetric ones."""
    found = [EYE / 3**0.5, *(cross(EYE[i]) for i in range(3))]
    for i in range(3):
        found.append((torch.outer(EYE[i], EYE[i - 1]) + torch.outer(EYE[i - 1], EYE[i])) / 2**0.5)
    diagonals = torch.tensor([[1.0, -1, 0], [1, 1, -2]], dtype=torch.float64)
    return torch.stack([*found, *(torch.diag(d / d.norm()) for d in diagonals)])


def parts(matrix):
    """Trace, antisymmetric and traceless symmetric part of (..., 3, 3)."""
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * EYE / 3
    symmetric = (matrix + matrix.transpose(-1, -2)) / 2
    return trace, matrix - symmetric, symmetric - trace


def mixed(per_part, matrix):
    """Mix the channels of (n, c, 3, 3)."""
    pairs = zip((per_part.trace, per_part.vector, per_part.tensor), parts(matrix), strict=True)
    return sum(torch.einsum("co,ncxy->noxy", weight, part) for weight, part in pairs)


def assembled(components):
    """(n, 9, c) → (n, c, 3, 3)."""
    return torch.einsum("nkc,kxy->ncxy", components, BASIS)


def over(matrix):
    return matrix / (1 + matrix.square().sum((-1, -2), keepdim=True))


def cross(vector):
    """The antisymmetric matrix whose component is the vector, of the same length."""
    x, y, z = vector / 2**0.5
    return torch.stack([torch.stack(row) for row in ((0 * x, -z, y), (z, 0 * x, -x), (-y, x, 0 * x))])


BASIS = basis()


@pytest.mark.parametrize("name", ["linear", "wire", "tiny_cell"])
def test_the_layer_is_its_formula(name):
    made, atoms = Layer(**KEYS, frequencies="exact"), STRUCTURES[name]()
    layer, n, z = made.layer, len(atoms), torch.as_tensor(atoms.numbers)
    geometry = made.geometry([atoms])
    state = torch.randn(n, DIM + 9 * CHANNELS, dtype=torch.float64)
    found = made.apply(state, geometry)

    x = state[:, :DIM]
    given = assembled(state[:, DIM:].view(n, 9, CHANNELS))
    source = torch.zeros_like(given)
    near = torch.zeros(n, n, HEADS, dtype=torch.float64)
    for i, j, vector in zip(*neighbor_list("ijD", atoms, CUTOFF), strict=True):
        delta = -torch.as_tensor(vector)
        distance = delta.norm()[None]
        phi = made.radial(distance, z[i][None], z[j][None])
        weight = (envelope(distance, CUTOFF) / typical_neighbours(CUTOFF) ** 0.5)[0]
        unit = delta / (1 + distance**2).sqrt()
        directed = EYE / 3**0.5, cross(unit), parts(torch.outer(unit, unit))[2]
        filtered = layer.source_filters(phi)[0] * weight * layer.source_value(x)[j]
        source[i] += filtered[:, None, None] * sum(directed)
        hidden = layer.radial(phi) + layer.receiver(z[i]) + layer.sender(z[j])
        near[i, j] += layer.near(torch.nn.functional.silu(hidden))[0] * weight
    matrices = given + mixed(layer.source, source)
    values = mixed(layer.value, over(matrices))
    messages = mixed(layer.gathered, torch.einsum("ijh,jcxy->ihcxy", near, values).flatten(1, 2))
    shifts, positions = torch.from_numpy(np.array(images(atoms, 20.0))), torch.as_tensor(atoms.positions)
    for i in range(n):
        for j in range(n):
            squared = (positions[i] - positions[j] + shifts).square().sum(-1)
            far = made.shared.rpe().on_pairs(squared).sum(1) @ layer.rpe_weights
            # Of two channels of a head the far field carries the first.
            carried = (torch.arange(CHANNELS) % 2 == 0) * far.repeat_interleave(2)
            messages[i] += carried[:, None, None] * values[j]
    change = mixed(layer.product, over(messages @ values + values @ messages))
    matrices = matrices + change + change @ change
    turned = assembled(found[:, DIM:].view(n, 9, CHANNELS))
    torch.testing.assert_close(turned, matrices - given, rtol=1e-9, atol=1e-10)
    squares = [part.square().sum((-1, -2)) for part in parts(matrices)]
    traces = [matrix.diagonal(dim1=-2, dim2=-1).sum(-1) / 3**0.5 for matrix in (messages, matrices)]
    expected = layer.output(torch.cat([*squares, *traces], dim=1))
    torch.testing.assert_close(found[:, :DIM], expected, rtol=1e-9, atol=1e-10)


def test_ways_agree():
    check_ways_agree(["slab", "triclinic", "molecule", "atom"], ("pairs", "waves"), **KEYS)


def test_matrices_are_bounded():
    x = torch.randn(9, 4, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(bounded(x), x / (1 + (x * x).sum(0)))
    assert torch.autograd.gradcheck(bounded, x)
    assert torch.autograd.gradgradcheck(bounded, x)
    assert bounded(1e3 * x).square().sum(0).max() < 1


@pytest.mark.parametrize("name", ["molecule", "triclinic"])
def test_forces_are_derivatives_and_turn_with_the_structure(name):
    model = make_model({"mechanism": "matrices", "channels": 8, "frequencies": "exact"})
    atoms = STRUCTURES[name]()
    check_forces(model, atoms)
    turned = rotated(atoms, 1)
    torch.testing.assert_close(energies(model, [turned]), energies(model, [atoms]), rtol=0, atol=1e-11)
    mirrored = atoms.copy()
    mirrored.set_cell(-np.asarray(atoms.cell))
    mirrored.positions = -atoms.positions
    torch.testing.assert_close(energies(model, [mirrored]), energies(model, [atoms]), rtol=0, atol=1e-11)
