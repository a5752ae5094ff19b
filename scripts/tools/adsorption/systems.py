"""One random adsorption system: slab, adsorbate, relaxation with EMT, and the checks it has to pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import fcc100, fcc110, fcc111, fcc211, molecule
from ase.constraints import FixAtoms
from ase.data import covalent_radii
from ase.neighborlist import neighbor_list
from ase.optimize import BFGS, FIRE
from scipy.spatial.transform import Rotation

from scripts.tools.adsorption.emt import VectorisedEMT

SPLITS = ("train", "val", "test", "val_ood_metal", "val_ood_adsorbate")

LATTICE_CONSTANTS = {"Cu": 3.5898, "Ag": 4.0636, "Au": 4.0562, "Ni": 3.4871, "Pd": 3.8787, "Pt": 3.9218}
"""EMT's equilibrium lattice constants, Å; alloys interpolate linearly (Vegard's law)."""
METALS = tuple(LATTICE_CONSTANTS)
HELD_OUT_PAIR = frozenset({"Cu", "Pd"})
PURE_SHARE = 0.1
"""Pure metals have few distinct sites, so most slabs are alloys."""

ADSORBATES = ("H", "O", "CO", "NO", "N2", "OH", "NH", "CH", "CH2", "CH3", "H2O", "CO2")
HELD_OUT_ADSORBATE = "NH2"

FACETS: dict[str, Callable[..., Atoms]] = {"111": fcc111, "100": fcc100, "110": fcc110, "211": fcc211}
SIZES = {
    "111": ((2, 2), (2, 3), (3, 3), (3, 4), (4, 4)),
    "100": ((2, 2), (2, 3), (3, 3), (3, 4), (4, 4)),
    "110": ((2, 2), (2, 3), (3, 3), (3, 4)),
    "211": ((3, 2), (3, 3), (3, 4), (6, 2)),
}
LAYERS = {"111": (3, 4, 5), "100": (3, 4, 5), "110": (4, 5), "211": (3, 4)}
"""A layer of (211) is a terrace of three atomic planes; three layers of (110) would be too thin."""
SLAB_ATOMS = (15, 66)

VACUUM = 15.0
"""Å between the ideal slab and its image; more than 11 remain above the adsorbate, EMT reaches 6."""
FORCE_LIMIT = 0.05
"""eV/Å, when a relaxation counts as converged."""
MAX_STEPS = 400
MAX_STEP = 0.1
"""Å; short steps follow the valley in which a relaxation starts, so that its end depends on the start smoothly."""
MAX_TILT = 30.0
HEIGHT_SCALE = (1.0, 1.25)
"""The lowest approach of adsorbate and metal, relative to the sum of covalent radii."""

DESORBED = 3.0
"""Å between the adsorbate and the nearest metal atom."""
BOND_RANGE = (0.7, 1.75)
"""Bond lengths inside the adsorbate relative to the gas phase. EMT stretches all bonds of what is adsorbed."""
RECONSTRUCTED = 1.5
"""Å by which the adsorbate may displace a metal atom."""
INITIAL_ENERGY = 8.0
FINAL_ENERGY = (-8.0, 1.0)
"""eV; beyond them the adsorbate started on top of an atom, or fell into a spurious minimum."""

DESCRIPTION: dict[str, Any] = {"version": 1, "force_limit": FORCE_LIMIT, "bond_range": list(BOND_RANGE)}
"""Goes into the header of a partial file, so that results of different recipes are not mixed."""


@cache
def gas(adsorbate: str) -> tuple[Atoms, float]:
    """The adsorbate relaxed on its own, and its energy in eV."""
    if adsorbate == "CH2":
        atoms = molecule("CH2_s1A1d")
    elif len(adsorbate) == 1:
        atoms = Atoms(adsorbate)
    else:
        atoms = molecule(adsorbate)
    atoms.calc = VectorisedEMT()
    if len(atoms) > 1:
        BFGS(atoms, logfile=None).run(1e-3, 500)
    return atoms, energy(atoms)


def energy(atoms: Atoms) -> float:
    """The EMT energy of a structure, eV."""
    single = Atoms(atoms.symbols, atoms.positions, cell=atoms.cell, pbc=atoms.pbc, calculator=VectorisedEMT())
    return float(single.get_potential_energy())


def rounded(values: np.ndarray) -> np.ndarray:
    """Values as the data file stores them: every energy is that of the stored structure."""
    return values.astype(np.float32).astype(np.float64)


def choose_metals(rng: np.random.Generator, split: str) -> tuple[str, str]:
    """Two metals, or one twice; the held-out pair occurs in its own split and nowhere else."""
    if split == "val_ood_metal":
        first, second = sorted(HELD_OUT_PAIR)
        return (first, second) if rng.random() < 0.5 else (second, first)
    if rng.random() < PURE_SHARE:
        metal = str(rng.choice(METALS))
        return metal, metal
    while True:
        first, second = (str(metal) for metal in rng.choice(METALS, 2, replace=False))
        if {first, second} != HELD_OUT_PAIR:
            return first, second


def build_slab(rng: np.random.Generator, split: str) -> tuple[Atoms, str]:
    """A random ideal slab with tags and its constraint, and a label such as Cu9Pt18(111)3x3x3."""
    facet = str(rng.choice(list(FACETS)))
    options = [
        (*size, layers)
        for size in SIZES[facet]
        for layers in LAYERS[facet]
        if SLAB_ATOMS[0] <= size[0] * size[1] * layers <= SLAB_ATOMS[1]
    ]
    size = options[rng.integers(len(options))]
    n, layers = int(np.prod(size)), size[2]
    first, second = choose_metals(rng, split)
    n_second = 0 if first == second else int(np.clip(round(rng.uniform(0.1, 0.9) * n), 1, n - 1))
    constant = (LATTICE_CONSTANTS[first] * (n - n_second) + LATTICE_CONSTANTS[second] * n_second) / n
    slab = FACETS[facet](first, size, a=constant, vacuum=VACUUM / 2)
    slab = slab[np.argsort(slab.positions[:, 2].round(3), kind="stable")]
    symbols = np.array([first] * n, dtype=object)
    symbols[rng.permutation(n)[:n_second]] = second
    slab.symbols = list(symbols)
    slab.pbc = True
    slab.cell = rounded(slab.cell.array)
    layer = np.arange(n) * layers // n
    coordination = np.bincount(neighbor_list("i", slab, 0.85 * constant), minlength=n)
    # As in OC20, surface atoms are the under-coordinated ones of the upper half: also the second row of (110).
    slab.set_tags(((coordination < 12) & (layer >= layers / 2)).astype(int))
    slab.set_constraint(FixAtoms(np.flatnonzero(layer < (layers + 1) // 2)))
    return slab, f"{slab.symbols.formula:metal}({facet}){size[0]}x{size[1]}x{layers}"


def place(slab: Atoms, adsorbate: str, rng: np.random.Generator) -> Atoms:
    """The adsorbate over a random point of the slab, first atom down, turned and tilted at random."""
    atoms = gas(adsorbate)[0].copy()
    atoms.calc = None
    atoms.positions -= atoms.positions[0]
    if len(atoms) > 1:
        axis = atoms.positions.mean(axis=0)
        if np.linalg.norm(axis) < 0.05:
            # Around a central atom nothing points up: the thinnest direction does, so that CO2 and CH3 lie flat.
            axis = np.linalg.svd(atoms.positions)[2][-1]
        upright = Rotation.align_vectors([[0.0, 0.0, 1.0]], [axis])[0]
        turn = Rotation.from_euler("z", rng.uniform(0.0, 2.0 * np.pi))
        tilt, towards = np.radians(rng.uniform(0.0, MAX_TILT)), rng.uniform(0.0, 2.0 * np.pi)
        lean = Rotation.from_rotvec(tilt * np.array([np.cos(towards), np.sin(towards), 0.0]))
        atoms.positions = (lean * turn * upright).apply(atoms.positions)
    atoms.positions += rng.random(2) @ slab.cell.array[:2]
    atoms.positions[:, 2] += _contact_height(slab, atoms, rng.uniform(*HEIGHT_SCALE))
    atoms.set_tags(2)
    return atoms


def _contact_height(slab: Atoms, atoms: Atoms, scale: float) -> float:
    """How far to raise ``atoms`` so that they touch the slab: spheres of ``scale`` times the covalent radii."""
    images = slab.repeat((5, 5, 1))
    images.positions -= 2 * (slab.cell[0] + slab.cell[1])
    height = -np.inf
    for number, position in zip(atoms.numbers, atoms.positions, strict=True):
        reach = scale * (covalent_radii[number] + covalent_radii[images.numbers])
        beside = ((images.positions[:, :2] - position[:2]) ** 2).sum(axis=1)
        near = beside < reach**2
        tops = images.positions[near, 2] + np.sqrt(reach[near] ** 2 - beside[near]) - position[2]
        height = max(height, float(tops.max(initial=-np.inf)))
    return height


@cache
def bonds(adsorbate: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and second atom of every bond of the free adsorbate, and its length, Å."""
    atoms = gas(adsorbate)[0]
    lengths, radii = atoms.get_all_distances(), covalent_radii[atoms.numbers]
    first, second = np.nonzero(np.triu(lengths < 1.25 * (radii[:, None] + radii[None, :]), k=1))
    return first, second, lengths[first, second]


def dissociated(adsorbate: str, positions: np.ndarray) -> bool:
    """Whether a bond is far from its length in the gas phase."""
    first, second, lengths = bonds(adsorbate)
    ratios = np.linalg.norm(positions[first] - positions[second], axis=1) / lengths
    return bool(((ratios < BOND_RANGE[0]) | (ratios > BOND_RANGE[1])).any())


def relax(atoms: Atoms, adsorbate: str | None = None) -> str | None:
    """Relax in place and round to the stored precision. Returns the reason for a failure, if any.

    With the name of an adsorbate (the last atoms), a relaxation ends when a bond of it breaks.
    """
    atoms.calc = VectorisedEMT()
    n = len(gas(adsorbate)[0]) if adsorbate else 0
    # FIRE: with BFGS and LBFGS up to a quarter of the systems left their valley or did not converge.
    optimiser = FIRE(atoms, logfile=None, maxstep=MAX_STEP)
    converged = False
    for state in optimiser.irun(FORCE_LIMIT, MAX_STEPS):
        converged = bool(state)
        if adsorbate and dissociated(adsorbate, atoms.positions[-n:]):
            return "dissociated"
    atoms.positions = rounded(atoms.positions)
    return None if converged else "not converged"


def fault(slab: Atoms, final: Atoms) -> str | None:
    """What is wrong with a relaxed structure whose adsorbate is whole, if anything."""
    n = len(slab)
    if final.get_all_distances(mic=True)[n:, :n].min() > DESORBED:
        return "desorbed"
    if np.linalg.norm(final.positions[:n] - slab.positions, axis=1).max() > RECONSTRUCTED:
        return "reconstructed"
    return None


def compute(seed: int, split: str, index: int) -> dict[str, Any]:
    """System ``index`` of a split: JSON-ready fields, or ``{"rejected": reason}``.

    Energies in eV, lengths in Å. All energies are those of the rounded structures.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    slab, label = build_slab(rng, split)
    adsorbate = HELD_OUT_ADSORBATE if split == "val_ood_adsorbate" else str(rng.choice(ADSORBATES))
    if reason := relax(slab):
        return {"rejected": f"slab {reason}", "adsorbate": adsorbate}
    initial = slab + place(slab, adsorbate, rng)
    initial.positions = rounded(initial.positions)
    final = initial.copy()
    reference = energy(slab) + gas(adsorbate)[1]
    y_init = energy(initial) - reference
    if y_init > INITIAL_ENERGY:
        return {"rejected": "initial energy", "adsorbate": adsorbate}
    if reason := relax(final, adsorbate) or fault(slab, final):
        return {"rejected": reason, "adsorbate": adsorbate}
    y_relaxed = energy(final) - reference
    if not FINAL_ENERGY[0] < y_relaxed < FINAL_ENERGY[1]:
        return {"rejected": "final energy", "adsorbate": adsorbate}
    fixed = np.zeros(len(initial), dtype=int)
    fixed[slab.constraints[0].index] = 1
    return {
        "name": f"{adsorbate} on {label}",
        "adsorbate": adsorbate,
        "metals": "-".join(sorted(set(slab.get_chemical_symbols()))),
        "facet": label.split("(")[1].split(")")[0],
        "atomic_numbers": initial.numbers.tolist(),
        "tags": initial.get_tags().tolist(),
        "fixed": fixed.tolist(),
        "cell": initial.cell.array.tolist(),
        "pos": initial.positions.tolist(),
        "pos_relaxed": final.positions.tolist(),
        "y_init": y_init,
        "y_relaxed": y_relaxed,
    }
