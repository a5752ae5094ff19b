"""Energies between molecules that do not touch, where the truth is next to nothing.

    python -m scripts.benchmarks.additivity pretrained:qm7-small runs/other/best.safetensors

prints, for each model and molecule, by how much an energy per molecule differs from that of the molecule alone.
"""

from __future__ import annotations

import warnings

import numpy as np
from ase import Atoms
from ase.build import molecule

import molflt
from molflt.data.images import at_distance
from molflt.prediction.model import Model
from scripts import results

MOLECULES = ("CH3CH2OH", "H2O", "C6H6", "CH3CONH2")
GAPS, CELLS = (6.0, 8.0, 12.0, 20.0), (12.0, 15.0, 20.0)
"""Å: between the nearest atoms of two, and edges of a cubic cell with one in it."""
SPACING = 8.0
"""Å, of a lattice of 64 in open space."""
_DIRECTION = np.array([0.97, 0.22, 0.1])


def excess(model: Model, name: str) -> dict[str, float]:
    """Energy of each arrangement less that of its molecules alone, eV; of many, for each."""
    one = molecule(name)
    one.positions -= one.positions.mean(axis=0)
    other = one.copy()
    other.rotate(50, (1, 2, 3))
    direction = _DIRECTION / np.linalg.norm(_DIRECTION)
    arrangements = {"alone": one}
    for gap in GAPS:
        arrangements[f"two, {gap:g} Å"] = one + Atoms(
            other.numbers, at_distance(one.positions, other.positions, direction, gap)
        )
    for shift in (SPACING, 1.5 * SPACING):
        arrangements[f"two, shifted by {shift:g} Å"] = one + Atoms(
            one.numbers, one.positions + np.array([shift, 0, 0])
        )
    many = Atoms(one.numbers, one.positions, cell=[SPACING] * 3).repeat(4)
    arrangements[f"64, {SPACING:g} Å"] = Atoms(many.numbers, many.positions)
    for edge in CELLS:
        arrangements[f"cell, {edge:g} Å"] = Atoms(one.numbers, one.positions, cell=[edge] * 3, pbc=True)
    with warnings.catch_warnings():
        # Most of this is outside the domain, and says so.
        warnings.simplefilter("ignore")
        energies = dict(zip(arrangements, np.ravel(model.predict(list(arrangements.values()))), strict=True))
    alone = energies.pop("alone")
    n = {key: len(arrangements[key]) // len(one) for key in energies}
    return {key: float(energy - n[key] * alone) / (n[key] if n[key] > 2 else 1) for key, energy in energies.items()}


def main() -> None:
    """Print a table for each model."""
    parser = results.parser(__doc__)
    parser.add_argument("models", nargs="+", help="model file, run directory or pretrained:NAME")
    options = parser.parse_args()
    for name in options.models:
        model = molflt.load(name)
        found = {formula: excess(model, formula) for formula in MOLECULES[: 1 if options.quick else None]}
        print(f"{name}, eV\n| | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}")
        for key in found[MOLECULES[0]]:
            print(f"| {key} | {' | '.join(f'{values[key]:.4f}' for values in found.values())} |")


if __name__ == "__main__":
    main()
