"""Density of liquid water at 300 K and 1 bar by a calculator's forces.

    python -m scripts.benchmarks.density pretrained:organic --out runs/density

100 molecules in a cube, Langevin dynamics of positions and volume (Quigley and Probert, J. Chem. Phys. 2004, 120,
11432). Masses have no influence on a density, so hydrogen weighs 4 u and a step of 1.5 fs will do. Writes
OUT/density.csv, a row for every 20 steps, and OUT/state.extxyz, every 200; started again, it goes on from there.
Prints the mean of the last quarter, its standard error by five blocks, and the means of all four: do they settle?
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.io import read, write
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import FIRE

from molflt.errors import InputError
from molflt.files import atomic_file
from molflt.simulate.benchmark import named_calculator
from scripts import results
from scripts.tools.organic.score import water

TIMESTEP, ROW, STATE = 1.5, 20, 200
"""fs; steps between two rows of the CSV, and between two states."""


def density(atoms: Atoms) -> float:
    """Density of molecules of water in a cell, g/cm³."""
    return float(18.015 * len(atoms) / 3 / units.mol / (atoms.get_volume() * 1e-24))


def start(n_molecules: int, calculator: Calculator, steps: int, rng: np.random.Generator) -> Atoms:
    """Return a box that has been relaxed a little, heated, and moved at constant volume."""
    box = water(n_molecules)
    box.set_masses(np.where(box.numbers == 1, 4.0, 16.0))
    box.calc = calculator
    FIRE(box, logfile=None).run(fmax=1.0, steps=60)
    thermalize_momenta(box, temperature_K=300, rng=rng)
    LangevinBAOAB(box, TIMESTEP * units.fs, temperature_K=300, T_tau=50 * units.fs, rng=rng).run(steps)
    return box


def run(calculator: Calculator, folder: Path, steps: int, n_molecules: int = 100, first: int = 1000) -> np.ndarray:
    """Sample densities, from where a run before came to.

    Args:
        calculator: of ASE, with stress.
        folder: of density.csv and state.extxyz.
        steps: to come to.
        n_molecules: of water.
        first: steps at constant volume, which are not counted.

    Returns:
        (steps / ROW + 1,) g/cm³.
    """
    state, table, done = folder / "state.extxyz", folder / "density.csv", 0
    rows: list[dict[str, object]] = []
    if state.exists():
        box = read(state)
        box.calc, done = calculator, int(box.info["steps"])
        rows += (row for row in results.read(table) if int(row["step"]) < done)
    rng = np.random.default_rng(done)
    if not done:
        box = start(n_molecules, calculator, first, rng)
    dynamics = LangevinBAOAB(
        box,
        TIMESTEP * units.fs,
        temperature_K=300,
        externalstress=-1e5 * units.Pascal,
        hydrostatic=True,
        T_tau=100 * units.fs,
        P_tau=1000 * units.fs,
        rng=rng,
    )

    def keep() -> None:
        step = done + dynamics.nsteps
        rows.append({"step": step, "density": density(box), "temperature_K": box.get_temperature()})
        if step % STATE == 0:
            results.write(table, rows, digits=6)
            kept = Atoms(box.numbers, box.positions, cell=box.cell, pbc=True, masses=box.get_masses())
            kept.set_momenta(box.get_momenta())
            kept.info["steps"] = step
            with atomic_file(state) as unfinished:
                write(unfinished, kept, format="extxyz", columns=["symbols", "positions", "momenta", "masses"])
            print(f"{step} steps: {density(box):.3f} g/cm³, {box.get_temperature():.0f} K", flush=True)

    dynamics.attach(keep, interval=ROW)
    dynamics.run(max(0, steps - done))
    return np.array([float(str(row["density"])) for row in rows])


def mean_and_error(values: np.ndarray, n_blocks: int = 5) -> tuple[float, float]:
    """Mean of a correlated series, and its standard error by blocks."""
    means = [block.mean() for block in np.array_split(values, n_blocks)]
    return float(values.mean()), float(np.std(means, ddof=1) / np.sqrt(n_blocks))


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "density.csv and state.extxyz")
    parser.add_argument("calculator", help="as of `molflt benchmark`: a model, gfn2, or package.module:name")
    parser.add_argument("--ps", type=float, default=20.0, help="to come to (default 20)")
    options = parser.parse_args()
    with results.input_errors(parser):
        calculator = named_calculator(options.calculator)
        if "stress" not in calculator.implemented_properties:
            raise InputError(f"{options.calculator}: it has no stress, so no pressure; give one that has")
        steps = 200 if options.quick else round(options.ps * 1000 / TIMESTEP)
        values = run(calculator, options.out, steps, *((8, 20) if options.quick else ()))
    quarters = np.array_split(values, 4)
    mean, error = mean_and_error(quarters[-1])
    print(f"{mean:.3f} ± {error:.3f} g/cm³ in the last quarter of {steps * TIMESTEP / 1000:g} ps; in each:")
    print(*(f"{quarter.mean():.3f}" for quarter in quarters))


if __name__ == "__main__":
    main()
