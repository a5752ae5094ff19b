"""Test structures, transformations that must not change the energy, and their energies.

A far field that is zero proves nothing about its properties, so there is a way to scale it up.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.data import chemical_symbols
from torch import Tensor
from torch_geometric.data import Data

from molflt.data.ase import from_atoms
from molflt.data.batch import StructureCollater
from molflt.data.images import separate_fragments
from molflt.data.reading import ReadOptions
from molflt.model.energy import EnergyModel
from molflt.vocabulary import TAG_ADSORBATE

MOLECULES = ("CO2", "NH3", "CH4", "CH3OH", "CH3CH2OH", "C6H6", "C60")
"""Linear, planar, tetrahedral, icosahedral, and without symmetry."""
METALS = ("Cu", "Pt", "Ni", "Ag", "Au", "Pd")
N_METALS = 2
PER_ATOM = ("atomic_numbers", "positions", "tags", "fixed")
"""Fields used in a prediction that have a row for each atom."""
SHARE = 0.3
"""Mean change on removing the far field, relative to the spread of the energies."""
FRAGMENTS_APART = 8.0
"""Å, between the nearest atoms of two fragments whose energies should add up."""
ADDITIVE = 0.02
"""eV."""

Transformation = Callable[[Data, np.random.Generator], Data]
"""Random change to the description of the same atoms."""


def builtin_structures(elements: Collection[int]) -> tuple[list[Data], bool]:
    """Build molecules, slabs and crystals from the elements that a model knows.

    Args:
        elements: atomic numbers.

    Returns:
        The structures, and whether the model knows all their elements; if it knows too few, others are used.
    """
    known = {chemical_symbols[z] for z in elements}
    metals = ([metal for metal in METALS if metal in known] or list(METALS))[:N_METALS]
    made = list(_made(metals))
    fitting = {name: atoms for name, atoms in made if set(atoms.get_chemical_symbols()) <= known}
    chosen = fitting if len(fitting) >= 4 else dict(made)
    return [from_atoms(atoms, name, ReadOptions(tags="oc20")) for name, atoms in chosen.items()], chosen is fitting


def _made(metals: Sequence[str]) -> Iterator[tuple[str, Atoms]]:
    """Yield molecules, crystals, and slabs, of each metal one as in OC20 and one open along z."""
    for name in MOLECULES:
        atoms = molecule(name)
        atoms.set_tags([TAG_ADSORBATE] * len(atoms))
        yield name, atoms
    for k, (metal, pbc) in enumerate(product(metals, (True, (True, True, False)))):
        slab = fcc111(metal, (2, 2, 3), vacuum=6.0)
        slab.set_tags([1 if tag == 1 else 0 for tag in slab.get_tags()])
        adsorbate = molecule("CO")
        adsorbate.set_tags([TAG_ADSORBATE] * 2)
        add_adsorbate(slab, adsorbate, 1.9, "fcc", mol_index=1)
        slab.pbc = pbc
        slab.rattle(0.05, seed=k)
        slab.info.clear()
        yield f"CO on {metal}(111), {'three' if pbc is True else 'two'} periodic axes", slab
    for metal in metals:
        yield f"{metal} crystal", bulk(metal)


def is_periodic(data: Data) -> bool:
    """True if the structure repeats along any axis."""
    return bool(data.pbc.any())


def rotation(data: Data, random: np.random.Generator) -> Data:
    """Rotate positions and cell at random about the origin."""
    return _turned(data, _orthogonal(random, determinant=1))


def reflection(data: Data, random: np.random.Generator) -> Data:
    """Rotate at random and reflect."""
    return _turned(data, _orthogonal(random, determinant=-1))


def translation(data: Data, random: np.random.Generator) -> Data:
    """Shift all atoms by up to 50 Å along each axis."""
    return _changed(data, positions=data.positions + torch.from_numpy(random.uniform(-50, 50, size=3)))


def permutation(data: Data, random: np.random.Generator) -> Data:
    """Reorder the atoms at random."""
    order = torch.from_numpy(random.permutation(len(data.atomic_numbers)))
    return _changed(data, **{name: data[name][order] for name in PER_ATOM})


def wrapping(data: Data, random: np.random.Generator) -> Data:
    """Move every atom of a periodic structure by its own random lattice vector."""
    n = random.integers(-2, 3, size=(len(data.atomic_numbers), 3)) * data.pbc[0].numpy()
    return _changed(data, positions=data.positions + torch.from_numpy(n.astype(np.float64)) @ data.cell[0])


def cell_change(data: Data, random: np.random.Generator) -> Data:
    """Change the basis of the lattice by a random integer matrix of determinant ±1."""
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
    """Double the cell along a random periodic axis."""
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
    # In an odd dimension, the sign of the matrix is the sign of the determinant.
    return q * np.sign(np.linalg.det(q)) * determinant


class Energies(NamedTuple):
    """Energies of a list of structures, in one batch.

    Attributes:
        energy: (n_structures,) eV, float64.
        magnitude: (n_structures,) eV: Σ_i |e_i| over the atoms, the scale of rounding errors.
        contractions: as in :class:`~molflt.model.energy.ModelOutput`.
    """

    energy: np.ndarray
    magnitude: np.ndarray
    contractions: list[str]


def energies(model: EnergyModel, structures: Sequence[Data], padding: int = 0) -> Energies:
    """Evaluate structures in one batch, with ``padding`` empty places beyond the largest."""
    collate = StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
    batch = collate(list(structures)).to(model.device)
    n_max = max(len(data.atomic_numbers) for data in structures) + padding
    with torch.no_grad():
        output = model(batch, n_max)
        sums = torch.zeros_like(output.energy).index_add(0, batch.batch, output.atomic_energies.abs())
    return Energies(output.energy.cpu().numpy(), sums.cpu().numpy(), output.contractions)


def far_share(model: EnergyModel, structures: Sequence[Data]) -> float:
    """Mean energy change on removing the far field, relative to the energies' deviation.

    The denominator is the mean absolute deviation of the learnt energies, without reference energies. A single
    structure has no deviation; its learnt energy itself is used instead.
    """
    whole = energies(model, structures).energy
    statistics = model.standardiser
    references = torch.stack([statistics.references.cpu()[data.atomic_numbers].sum() for data in structures])
    learnt = whole - references.numpy() - float(statistics.mean)
    spread = np.abs(learnt - learnt.mean()).mean() if len(learnt) > 1 else np.abs(learnt).mean()
    without = energies(with_far_weights_times(model, 0.0), structures).energy
    return float(np.abs(without - whole).mean() / max(float(spread), 1e-300))


def scaled_until_it_matters(model: EnergyModel, structures: Sequence[Data]) -> EnergyModel | None:
    """Multiply the far weights by the least power of two that reaches :data:`SHARE`, in a copy.

    None if no factor up to 2^16 is enough: without a far field, or if structures differ so much in composition that
    it cannot compete.
    """
    for power in range(17):
        scaled = with_far_weights_times(model, 2.0**power)
        if far_share(scaled, structures) >= SHARE:
            return scaled
    return None


def has_far_field(model: EnergyModel) -> bool:
    """True if any layer has weights of the RPE function."""
    return any(name.endswith("rpe_weights") and p.numel() for name, p in model.named_parameters())


def with_far_weights_times(model: EnergyModel, factor: float) -> EnergyModel:
    """Copy a model with the weights of the RPE function multiplied, in every layer."""
    out = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in out.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(factor)
    return out


def additivity(model: EnergyModel, structures: Sequence[Data]) -> np.ndarray:
    """Deviation E(AB) − E(A) − E(B) of the energy of two structures with 8 Å between them.

    Args:
        model: in evaluation mode.
        structures: isolated ones are paired, each with the next.

    Returns:
        (n_isolated,) eV. The scale_shift mean, which belongs to no atom, is counted for each structure.
    """
    isolated = [data for data in structures if not bool(data.pbc.any())]
    if not isolated:
        return np.zeros(0)
    random = np.random.default_rng(0)
    following = [*isolated[1:], isolated[0]]
    pairs = [separate_fragments(pair, [FRAGMENTS_APART], random) for pair in zip(isolated, following, strict=True)]
    mean = float(model.standardiser.mean)
    single = energies(model, isolated).energy - mean
    return energies(model, pairs).energy - mean - single - np.roll(single, -1)
