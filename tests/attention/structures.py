"""Structures the attention tests share, and their geometry."""

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from torch_geometric.data import Data

from molflt.attention.geometry import geometry_of_batch
from molflt.attention.layout import Plan
from molflt.data.batch import StructureCollater


def slab():
    atoms = fcc111("Cu", (2, 2, 3), vacuum=5.0)
    add_adsorbate(atoms, "O", 1.3, "fcc")
    atoms.set_tags([1] * 12 + [2])
    atoms.pbc = True
    atoms.rattle(0.1, seed=1)
    return atoms


def slab_open():
    """Periodic along two axes only."""
    atoms = slab()
    atoms.pbc = (True, True, False)
    return atoms


def wire():
    """Periodic along one oblique axis only."""
    atoms = Atoms("HOC", [[0, 0, 0], [0.9, 0.4, 0.1], [1.2, -0.7, 1.0]], cell=[[2.5, 1.0, 0.7], [0, 9, 0], [0, 0, 9]])
    atoms.pbc = (True, False, False)
    return atoms


def triclinic():
    random = np.random.default_rng(3)
    cell = np.array([[3.1, 0.2, -0.4], [1.1, 4.0, 0.3], [-0.9, 1.3, 5.2]])
    atoms = Atoms("NiAlCO", scaled_positions=random.uniform(size=(4, 3)), cell=cell, pbc=True)
    return atoms


def tiny_cell():
    """One atom whose own images are its only neighbours."""
    return bulk("Pt")


STRUCTURES = {
    "molecule": lambda: molecule("CH3CH2OH"),
    "benzene": lambda: molecule("C6H6"),
    "linear": lambda: molecule("CO2"),
    "atom": lambda: Atoms("He", [[0.3, 0.1, 0.2]]),
    "slab": slab,
    "slab_open": slab_open,
    "wire": wire,
    "triclinic": triclinic,
    "tiny_cell": tiny_cell,
}


def points_of(atoms, name="points"):
    """Atoms as they are, also where points drawn at random lie closer than atoms do."""
    data = Data(
        atomic_numbers=torch.from_numpy(atoms.numbers.astype(np.int64)),
        positions=torch.from_numpy(atoms.positions.copy()),
        cell=torch.from_numpy(np.array(atoms.cell))[None],
        pbc=torch.from_numpy(np.array(atoms.pbc))[None],
        tags=torch.from_numpy(atoms.get_tags().astype(np.int64)),
        fixed=torch.zeros(len(atoms), dtype=torch.bool),
    )
    data.num_nodes, data.name = len(atoms), name
    return data


def batch_of(atoms, cutoff=6.0, all_pairs=False):
    return StructureCollater(cutoff, all_pairs)([points_of(a, f"structure {i}") for i, a in enumerate(atoms)])


def geometry_of(atoms, cutoff=6.0, dtype=torch.float64, all_pairs=False, n_max=None, plan=None):
    b = batch_of(atoms, cutoff, all_pairs)
    return geometry_of_batch(b, (Plan(cutoff) if plan is None else plan)(b, n_max), dtype)


def random_rotation(seed):
    """An orthogonal matrix: a rotation for even seeds, a rotation with a reflection for odd ones."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return q * np.linalg.det(q) * (-1) ** seed


def rotated(atoms, seed):
    q = random_rotation(seed)
    out = atoms.copy()
    out.set_cell(np.asarray(atoms.cell) @ q, scale_atoms=False)
    out.positions = atoms.positions @ q
    return out
