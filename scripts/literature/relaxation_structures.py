"""What the learned relaxation is trained and tested on: Lennard-Jones and EMT clusters and slabs, in torch, batched.

The EMT is that of ASE (Jacobsen, Stoltze and Nørskov, Surf. Sci. 366, 394, 1996) to rounding, but for many
structures at once and differentiable as often as needed. The minimum of Lennard-Jones is where atoms are
``contact`` times the sum of their covalent radii apart, and ``depth`` eV deep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, fcc100, fcc110, fcc111
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT, beta, parameters
from ase.constraints import FixAtoms
from ase.data import covalent_radii
from torch import Tensor

from molflt.data.neighbours import neighbour_list
from molflt.simulate.pair_lbfgs import REACH, Structures, batch

METALS = ("Al", "Cu", "Ag", "Au", "Ni", "Pd", "Pt")

Energy = Callable[[Structures, Tensor], Tensor]
"""Structures and positions → (n_structures,) eV."""


def per_structure(structures: Structures, i: Tensor, values: Tensor) -> Tensor:
    """Values of atoms ``i``, summed over each structure."""
    n_structures, n_max = structures.numbers.shape
    return values.new_zeros(n_structures).index_add(0, i // n_max, values)


def lennard_jones(depth: Tensor, contact: Tensor) -> Energy:
    """Wells of ``depth`` eV where atoms are ``contact`` times the sum of their radii apart, (n_structures,) each."""

    def energy(structures: Structures, positions: Tensor) -> Tensor:
        _, r = structures.displacements(positions)
        radii = torch.from_numpy(covalent_radii)[structures.numbers.flatten()]
        which = structures.i // structures.numbers.shape[1]
        well = contact[which] * (radii[structures.i] + radii[structures.j])
        # Closer than this nothing relaxes from, and the twelfth power would overflow a training.
        sixth = (well / r.clamp(min=1e-3)) ** 6
        taper = (1 - (r / REACH) ** 2).clamp(min=0) ** 3 * (1 + 3 * (well / REACH) ** 2)
        return per_structure(structures, structures.i, 0.5 * depth[which] * (sixth**2 - 2 * sixth) * taper)

    return energy


@cache
def _emt_constants() -> tuple[EMT, dict[str, Tensor]]:
    """ASE's, and by atomic number; the cutoff is that of its whole table and the same for every structure."""
    found = EMT()
    found.initialize(Atoms(list(METALS), positions=5 * np.arange(21).reshape(7, 3)))
    table = {key: torch.ones(120, dtype=torch.float64) for key in found.par}
    for key, values in found.par.items():
        table[key][found.par["Z"].astype(int)] = torch.from_numpy(values.copy())
    return found, table


def emt(structures: Structures, positions: Tensor) -> Tensor:
    """ASE's EMT: embedding in the density of the neighbours, and pairs."""
    of_all, table = _emt_constants()
    numbers = structures.numbers.flatten()
    _, distances = structures.displacements(positions)
    near = distances < float(of_all.rc_list)
    i, j, r = structures.i[near], structures.j[near], distances[near]
    p = {key: values[numbers] for key, values in table.items()}
    weight = torch.sigmoid(-float(of_all.acut) * (r - float(of_all.rc))) * p["n0"][j] / p["n0"][i]
    sigma = torch.zeros_like(p["s0"]).index_add(0, i, weight * torch.exp(-p["eta2"][j] * (r - beta * p["s0"][j])))
    alone = sigma == 0
    ds = -torch.log(torch.where(alone, 1.0, sigma * p["inv12gamma1"])) / (beta * p["eta2"])
    reduced = p["lambda"] * ds
    embedding = p["E0"] * ((1 + reduced) * torch.exp(-reduced) - 1) + 6 * p["V0"] * torch.exp(-p["kappa"] * ds)
    embedding = torch.where(alone, -p["E0"], embedding)
    pairs = p["neghalfv0overgamma2"][i] * weight * torch.exp(-p["kappa"][j] * (r / beta - p["s0"][j]))
    atoms = torch.arange(len(numbers))[numbers > 0]
    return per_structure(structures, atoms, embedding[atoms]) + per_structure(structures, i, pairs)


def evaluate(
    energy: Energy, structures: Structures, positions: Tensor, differentiable: bool = False
) -> tuple[Tensor, Tensor]:
    """Energies (n_structures,) eV and forces (n_structures, n_atoms, 3) eV/Å, zero on what is not free."""
    with torch.enable_grad():
        x = positions if positions.requires_grad else positions.detach().requires_grad_()
        e = energy(structures, x)
        (gradient,) = torch.autograd.grad(e.sum(), x, create_graph=differentiable)
    return (e if differentiable else e.detach()), -gradient * structures.free[..., None]


class TorchCalculator(Calculator):  # type: ignore[misc]
    """One of these energies as an ASE calculator."""

    implemented_properties = ("energy", "forces")

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        self.energy = energy

    def calculate(self, atoms: Atoms = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        """See ASE."""
        super().calculate(atoms, properties, system_changes)
        structures = batch([atoms])
        structures.free[:] = True
        energy, forces = evaluate(self.energy, structures, structures.positions)
        self.results = {"energy": float(energy[0]), "forces": forces[0].numpy()}


def _cluster(random: np.random.Generator, n: int, symbols: list[str], spacing: float) -> Atoms:
    """A ball cut out of a crystal, or a random packing."""
    if random.random() < 0.5:
        crystal = bulk("Cu", "fcc", a=spacing * 2**0.5, cubic=True).repeat(9)
        around = crystal.cell.sum(axis=0) / 2 + spacing * random.random(3)
        nearest = np.argsort(np.linalg.norm(crystal.positions - around, axis=1))[:n]
        positions = crystal.positions[nearest]
    else:
        radius, found = spacing * (n / 0.74) ** (1 / 3) / 2, []
        while len(found) < n:
            radius *= 1.0005
            trial = random.normal(size=3)
            trial *= radius * random.random() ** (1 / 3) / np.linalg.norm(trial)
            if all(np.linalg.norm(trial - other) > 0.88 * spacing for other in found):
                found.append(trial)
        positions = np.array(found)
    return Atoms(random.choice(symbols, n), positions=positions - positions.mean(axis=0))


def _slab(random: np.random.Generator, n: int, symbols: list[str], spacing: float) -> Atoms:
    """Two to four layers of a face-centred crystal, with a vacancy or an adatom, often fixed below."""
    layers = int(random.integers(2, 5))
    side = max(2, int((n / layers) ** 0.5))
    across = max(2, n // (layers * side))
    make = [fcc111, fcc100, fcc110][random.integers(3)]
    atoms = make("Cu", (side, across, layers), a=spacing * 2**0.5, vacuum=8.0)
    atoms.pbc = (True, True, False)
    atoms.symbols = random.choice(symbols, len(atoms))
    top = np.flatnonzero(atoms.get_tags() == 1)
    moved = int(random.choice(top))
    if random.random() < 0.5:
        atoms.positions[moved, 2] += 0.9 * spacing
        atoms.positions[moved, :2] += 0.5 * spacing * random.random(2)
    else:
        del atoms[moved]
    if random.random() < 0.5:
        atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == layers))
    return atoms


def draw(random: np.random.Generator, kind: str, smallest: int, largest: int) -> tuple[Atoms, dict[str, float]]:
    """A disturbed structure without calculator, and the constants of its potential, ``lj`` or ``emt``.

    No atoms are so close that no calculation would start from them.
    """
    while True:
        atoms, constants, well = _draw(random, kind, smallest, largest)
        if len(neighbour_list(atoms.positions, atoms.cell.array, atoms.pbc, 0.8 * well)[1]) == 0:
            return atoms, constants


def _draw(
    random: np.random.Generator, kind: str, smallest: int, largest: int
) -> tuple[Atoms, dict[str, float], float]:
    """The same, whatever its distances, and the distance of neighbours in its crystal in Å."""
    n = int(random.integers(smallest, largest + 1))
    symbols = [str(s) for s in random.choice(METALS, int(random.integers(1, 3)), replace=False)]
    radius = float(np.mean([covalent_radii[Atoms(s).numbers[0]] for s in symbols]))
    constants = {}
    if kind == "lj":
        constants = {"depth": float(np.exp(random.uniform(np.log(0.1), 0.0))), "contact": random.uniform(0.9, 1.15)}
        spacing = 2 * radius * constants["contact"] * 0.98
    else:
        spacing = float(np.mean([beta * parameters[s][1] * 0.529177 for s in symbols]))
    make = _cluster if random.random() < 0.5 else _slab
    atoms = make(random, n, symbols, spacing * random.uniform(0.96, 1.04))
    free = np.ones(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        free[constraint.get_indices()] = False
    atoms.positions[free] += random.uniform(0.03, 0.15) * random.normal(size=(int(free.sum()), 3))
    return atoms, constants, spacing


def energy_of(kind: str, constants: list[dict[str, float]]) -> Energy:
    """The potential of structures of one kind."""
    if kind == "emt":
        return emt
    return lennard_jones(
        *(torch.tensor([c[key] for c in constants], dtype=torch.float64) for key in ("depth", "contact"))
    )
