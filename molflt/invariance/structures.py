"""Structures to try a model on when its user gives none, and changes of a structure that mean nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.data import chemical_symbols
from torch import Tensor
from torch_geometric.data import Data

from molflt.data.ase import from_atoms
from molflt.data.reading import ReadOptions

MOLECULES = ("CO2", "NH3", "CH4", "CH3OH", "CH3CH2OH", "C6H6", "C60")
"""Linear, planar, tetrahedral, icosahedral, and without symmetry."""
METALS = ("Cu", "Pt", "Ni", "Ag", "Au", "Pd")
N_METALS = 2
PER_ATOM = ("atomic_numbers", "positions", "tags", "fixed")
"""Fields of a structure that a prediction looks at and that have a row for each atom."""

Transformation = Callable[[Data, np.random.Generator], Data]
"""The same atoms, written down differently."""


def builtin_structures(elements: Collection[int]) -> tuple[list[Data], bool]:
    """Molecules, slabs with one, and crystals, made of the elements a model knows.

    Args:
        elements: atomic numbers.

    Returns:
        The structures, and whether all their elements are known; where too few are, unknown ones serve.
    """
    known = {chemical_symbols[z] for z in elements}
    metals = ([metal for metal in METALS if metal in known] or list(METALS))[:N_METALS]
    made = _molecules() + _slabs(metals) + _crystals(metals)
    fitting = {name: atoms for name, atoms in made if set(atoms.get_chemical_symbols()) <= known}
    chosen = fitting if len(fitting) >= 4 else dict(made)
    return [from_atoms(atoms, name, ReadOptions(tags="oc20")) for name, atoms in chosen.items()], chosen is fitting


def _molecules() -> list[tuple[str, Atoms]]:
    found: list[tuple[str, Atoms]] = []
    for name in MOLECULES:
        atoms = molecule(name)
        atoms.set_tags([2] * len(atoms))
        found.append((name, atoms))
    return found


def _slabs(metals: Sequence[str]) -> list[tuple[str, Atoms]]:
    """One periodic along three directions, as in OC20, and one open along its normal, for each metal."""
    found: list[tuple[str, Atoms]] = []
    for metal in metals:
        for pbc in (True, (True, True, False)):
            slab = fcc111(metal, (2, 2, 3), vacuum=6.0)
            slab.set_tags([1 if tag == 1 else 0 for tag in slab.get_tags()])
            adsorbate = molecule("CO")
            adsorbate.set_tags([2, 2])
            add_adsorbate(slab, adsorbate, 1.9, "fcc", mol_index=1)
            slab.pbc = pbc
            slab.rattle(0.05, seed=len(found))
            slab.info.clear()
            found.append((f"CO on {metal}(111), {'three' if pbc is True else 'two'} periodic axes", slab))
    return found


def _crystals(metals: Sequence[str]) -> list[tuple[str, Atoms]]:
    return [(f"{metal} crystal", bulk(metal)) for metal in metals]


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
    if "charge" in data:
        fields["charge"] = 2 * data.charge
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
