"""Changes of a structure that mean nothing: the same atoms, written down differently."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

Transformation = Callable[[Data, np.random.Generator], Data]

PER_ATOM = ("atomic_numbers", "positions", "tags", "fixed")
"""Fields of a structure that a prediction looks at and that have a row for each atom."""


def is_periodic(data: Data) -> bool:
    """Whether the structure repeats along any axis."""
    return bool(data.pbc.any())


def rotation(data: Data, random: np.random.Generator) -> Data:
    """A random rotation about the origin, of positions and cell."""
    return _turned(data, _orthogonal(random, determinant=1))


def reflection(data: Data, random: np.random.Generator) -> Data:
    """A random rotation with a reflection."""
    return _turned(data, _orthogonal(random, determinant=-1))


def translation(data: Data, random: np.random.Generator) -> Data:
    """A shift of all atoms by up to 50 Å along each axis."""
    return _changed(data, positions=data.positions + torch.from_numpy(random.uniform(-50, 50, size=3)))


def permutation(data: Data, random: np.random.Generator) -> Data:
    """The atoms in another order."""
    order = torch.from_numpy(random.permutation(len(data.atomic_numbers)))
    return _changed(data, **{name: data[name][order] for name in PER_ATOM})


def wrapping(data: Data, random: np.random.Generator) -> Data:
    """Every atom of a periodic structure moved by a random lattice vector of its own."""
    n = random.integers(-2, 3, size=(len(data.atomic_numbers), 3)) * data.pbc[0].numpy()
    return _changed(data, positions=data.positions + torch.from_numpy(n.astype(np.float64)) @ data.cell[0])


def cell_change(data: Data, random: np.random.Generator) -> Data:
    """Another basis of the same lattice: a random integer matrix of determinant ±1 on the periodic vectors."""
    axes = np.flatnonzero(data.pbc[0].numpy())
    matrix = np.eye(3)
    for _ in range(3 if len(axes) > 1 else 0):
        to, of = random.choice(axes, size=2, replace=False)
        step = np.eye(3)
        step[to, of] = random.choice((-1, 1))
        matrix = step @ matrix
    matrix[axes[0]] *= -1
    return _changed(data, cell=(torch.from_numpy(matrix) @ data.cell[0])[None])


def doubled(data: Data, random: np.random.Generator) -> Data:
    """The same crystal with twice as many atoms in its cell, along a random periodic axis."""
    axis = int(random.choice(np.flatnonzero(data.pbc[0].numpy())))
    cell = data.cell.clone()
    cell[0, axis] *= 2
    fields = {name: torch.cat([data[name], data[name]]) for name in PER_ATOM}
    fields["positions"] = torch.cat([data.positions, data.positions + data.cell[0, axis]])
    out = _changed(data, cell=cell, **fields)
    out.num_nodes = 2 * len(data.atomic_numbers)
    return out


def _changed(data: Data, **fields: Tensor) -> Data:
    out = copy.copy(data)
    for name, value in fields.items():
        out[name] = value
    return out


def _turned(data: Data, matrix: np.ndarray) -> Data:
    q = torch.from_numpy(matrix)
    return _changed(data, positions=data.positions @ q, cell=data.cell @ q)


def _orthogonal(random: np.random.Generator, determinant: int) -> np.ndarray:
    q, _ = np.linalg.qr(random.normal(size=(3, 3)))
    # An odd dimension: the sign of the matrix is the sign of the determinant.
    return q * np.sign(np.linalg.det(q)) * determinant
