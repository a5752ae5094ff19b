"""Structures to measure on: cubes and balls of the density of water, slabs as OC20's."""

from __future__ import annotations

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule
from torch_geometric.data import Batch, Data

from molflt.data.ase import from_atoms
from molflt.data.batch import StructureCollater, collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.reading import ReadOptions
from molflt.model.energy import EnergyModel
from scripts.benchmarks.measuring import ROOT

DENSITY = 0.1
"""Atoms/Å³: that of water (0.100) and, within a tenth or so, of organic crystals."""

KINDS = ("periodic", "isolated", "oc20")

_JITTER = 0.1
"""Of the lattice spacing, each way along every axis: no two distances alike, and no two atoms too close."""

_METALS = ("Cu", "Ag", "Au", "Ni", "Pd", "Pt", "Al", "Rh", "Ir")
_ADSORBATES = ("H", "O", "OH", "CO", "H2O", "NH3", "CH3", "CH3OH", "C2H4", "C2H6")


def _with_elements(positions: np.ndarray, rng: np.random.Generator, cell: float | None) -> Data:
    numbers = rng.choice([1, 6, 7, 8], size=len(positions), p=[0.5, 0.3, 0.05, 0.15])
    box = None if cell is None else [cell] * 3
    atoms = Atoms(numbers, positions, cell=box, pbc=cell is not None)
    return from_atoms(atoms, f"{len(positions)} atoms", ReadOptions(allow_charged=True, tags="oc20"))


def cube(n: int, seed: int = 0) -> Data:
    """``n`` atoms on jittered sites of a cubic lattice that fills a periodic cube."""
    rng = np.random.default_rng(seed)
    side = (n / DENSITY) ** (1 / 3)
    per_axis = int(np.ceil(round(n ** (1 / 3), 6)))
    spacing = side / per_axis
    sites = rng.permutation(per_axis**3)[:n]
    lattice = np.stack(np.unravel_index(np.sort(sites), (per_axis,) * 3), axis=1) * spacing
    return _with_elements(lattice + rng.uniform(-1, 1, lattice.shape) * _JITTER * spacing, rng, side)


def ball(n: int, seed: int = 0) -> Data:
    """The ``n`` sites of a jittered cubic lattice nearest to a point, without a cell."""
    rng = np.random.default_rng(seed)
    spacing = DENSITY ** (-1 / 3)
    reach = int(np.ceil((3 * n / (4 * np.pi)) ** (1 / 3))) + 2
    axis = np.arange(-reach, reach + 1)
    lattice = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    lattice = lattice + rng.uniform(-0.5, 0.5, 3)
    nearest = np.argsort((lattice**2).sum(axis=1), kind="stable")[:n]
    points = lattice[np.sort(nearest)] * spacing
    return _with_elements(points + rng.uniform(-1, 1, points.shape) * _JITTER * spacing, rng, None)


def slab(wanted: float, rng: np.random.Generator) -> Data:
    """An fcc(111) slab with an adsorbate, of about so many atoms.

    Every atom is moved by a tenth of an ångström or so. It is periodic in all directions with 20 Å of vacuum, as
    OC20's are.
    """
    shapes = [(x, y, layers) for x in range(2, 8) for y in range(2, 8) for layers in range(3, 7)]
    metal, guest = str(rng.choice(_METALS)), molecule(str(rng.choice(_ADSORBATES)))
    off = np.array([abs(x * y * layers + len(guest) - wanted) for x, y, layers in shapes])
    size = shapes[int(rng.choice(np.flatnonzero(off <= off.min() + 2)))]
    atoms = fcc111(metal, size, vacuum=10.0)
    layer_of = atoms.get_tags()
    # the lowest atom is 2 Å above the surface; heights are those of the first
    height = 2.0 + guest.positions[0, 2] - guest.positions[:, 2].min()
    add_adsorbate(atoms, guest, height=height, position="ontop")
    atoms.positions += rng.normal(0, 0.05, atoms.positions.shape)
    atoms.pbc = True
    tags = np.full(len(atoms), 2)
    tags[: len(layer_of)] = layer_of == 1
    atoms.set_tags(tags)
    return from_atoms(atoms, f"{atoms.symbols}", ReadOptions(allow_charged=True, tags="oc20"))


def large_slabs(n_structures: int) -> list[Data]:
    """Slabs with an adsorbate of 80 to 200 atoms: the larger ones of OC20."""
    rng = np.random.default_rng(0)
    return [slab(wanted, rng) for wanted in rng.uniform(80, 200, n_structures)]


def bundled(n_atoms: int) -> list[Data]:
    """The first training structures of data/fg, up to ``n_atoms`` in all."""
    found: list[Data] = []
    for data in LmdbDataset(ROOT / "data" / "fg" / "train.lmdb"):
        if found and sum(len(s.positions) for s in found) + len(data.positions) > n_atoms:
            break
        found.append(data)
    return found


def make(kind: str, size: int) -> list[Data]:
    """Structures without neighbour lists: one of so many atoms, or so many slabs."""
    return large_slabs(size) if kind == "oc20" else [{"periodic": cube, "isolated": ball}[kind](size)]


def batch_with_neighbours(structures: list[Data], cutoff: float, all_pairs_if_isolated: bool = False) -> Batch:
    """One batch; the structures get their neighbour lists."""
    return collate([attach_neighbours(data, cutoff, all_pairs_if_isolated) for data in structures])


def batch_for(model: EnergyModel, structures: list[Data]) -> Batch:
    """One batch with what a model asks for."""
    return StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated, model.plan())(
        structures
    )
