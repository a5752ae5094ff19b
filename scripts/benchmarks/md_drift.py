"""Energy drift of constant-energy dynamics with a model's forces.

Velocity Verlet from a Maxwell-Boltzmann distribution. Prints the drift of the total energy (slope of a straight line
through it) in meV per atom and ps, how far it strays from that line, the temperature, and the speed. Noise in the
forces, and forces that belong to no energy, make it drift. Forces of another energy, or a time step that is too long,
make it stray; with right forces, half the time step brings that to a quarter. With --out writes FOLDER/drift.csv and
FOLDER/drift.png. With --reference, bond lengths are set beside those of a file of the same molecule.

    python -m scripts.benchmarks.md_drift runs/first water.xyz --steps 2000 --timestep 0.5 --out runs/first/drift
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.io import read as read_frames
from ase.md.velocitydistribution import Stationary
from ase.md.verlet import VelocityVerlet
from ase.neighborlist import natural_cutoffs, neighbor_list
from matplotlib.figure import Figure

from molflt.data.ase import to_atoms
from molflt.data.formats import read_ase
from molflt.data.progress import track
from molflt.errors import InputError
from molflt.simulate.ase import MolFLTCalculator
from scripts import results


@dataclass
class Dynamics:
    """A run, one row per step, the start included.

    Attributes:
        time: ps.
        energy: eV, potential and kinetic.
        temperature: K.
        n_atoms: in the structure.
        steps_per_second: over the whole run.
        positions: (n, n_atoms, 3) Å, of every tenth step.
    """

    time: np.ndarray
    energy: np.ndarray
    temperature: np.ndarray
    n_atoms: int
    steps_per_second: float
    positions: np.ndarray

    @property
    def drift(self) -> float:
        """Slope of the line of least squares through the energy, meV per atom and ps."""
        return float(1e3 * np.polyfit(self.time, self.energy, 1)[0] / self.n_atoms)

    @property
    def fluctuation(self) -> float:
        """Root mean square deviation from that line, meV per atom."""
        line = np.polyval(np.polyfit(self.time, self.energy, 1), self.time)
        return float(1e3 * np.sqrt(np.mean((self.energy - line) ** 2)) / self.n_atoms)


def run_dynamics(atoms: Atoms, steps: int, timestep: float, temperature: float, seed: int = 0) -> Dynamics:
    """Constant-energy dynamics of atoms with a calculator; they are moved.

    Args:
        atoms: the structure.
        steps: of velocity Verlet, at least two.
        timestep: fs.
        temperature: K, of the velocities at the start. Half of it is soon potential energy in a relaxed structure.
        seed: of the velocities.
    """
    spread = np.sqrt(units.kB * temperature * atoms.get_masses())[:, None]
    atoms.set_momenta(spread * np.random.default_rng(seed).standard_normal((len(atoms), 3)))
    if not atoms.constraints:
        Stationary(atoms)
    verlet = VelocityVerlet(atoms, timestep=timestep * units.fs)
    rows, positions = [(atoms.get_total_energy(), atoms.get_temperature())], [atoms.get_positions()]
    start = time.perf_counter()
    for step in track(range(1, steps + 1), "dynamics", total=steps):
        verlet.run(1)
        rows.append((atoms.get_total_energy(), atoms.get_temperature()))
        if step % 10 == 0:
            positions.append(atoms.get_positions())
    speed = steps / (time.perf_counter() - start)
    energy, kelvin = np.array(rows).T
    return Dynamics(np.arange(steps + 1) * timestep / 1e3, energy, kelvin, len(atoms), speed, np.array(positions))


def bond_lengths(frames: Sequence[Atoms], positions: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Lengths in all frames of the bonds of the first, Å, by elements, as C-H.

    Args:
        frames: of one isolated molecule.
        positions: (n, n_atoms, 3) Å, of which lengths are taken; None: of the frames.
    """
    first = frames[0]
    positions = np.array([frame.positions for frame in frames]) if positions is None else positions
    found: dict[str, list[np.ndarray]] = {}
    for i, j in zip(*neighbor_list("ij", first, natural_cutoffs(first, mult=1.15)), strict=True):
        if i < j:
            name = "-".join(sorted((first.symbols[i], first.symbols[j])))
            found.setdefault(name, []).append(np.linalg.norm(positions[:, i] - positions[:, j], axis=1))
    return {name: np.concatenate(lengths) for name, lengths in sorted(found.items())}


def plot(dynamics: Dynamics, path: Path) -> None:
    """Energy and temperature against time."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    change = 1e3 * (dynamics.energy - dynamics.energy[0]) / dynamics.n_atoms
    above.plot(dynamics.time, change)
    above.set_ylabel("total energy − start\n(meV/atom)")
    above.set_title(f"drift {dynamics.drift:.2g} meV/atom/ps, {dynamics.n_atoms} atoms")
    below.plot(dynamics.time, dynamics.temperature, color="tab:red")
    below.set_ylabel("temperature (K)")
    below.set_xlabel("time (ps)")
    results.save(figure, path)


def main() -> None:
    """Parse, run, print."""
    parser = results.parser(__doc__, "drift.csv and drift.png", required=False)
    parser.add_argument("model", help="a model file, a run directory or the directory of an ensemble")
    parser.add_argument("structure", type=Path, help="a file with a structure; of several the first")
    parser.add_argument("--steps", type=int, default=1000, help="of velocity Verlet (default 1000)")
    parser.add_argument("--timestep", type=float, default=1.0, help="fs (default 1; 0.5 with hydrogen)")
    parser.add_argument("--temperature", type=float, default=300.0, help="K, of the first velocities (default 300)")
    parser.add_argument("--reference", type=Path, help="geometries of the same molecule, its atoms in the same order")
    options = parser.parse_args()
    steps = 5 if options.quick else options.steps
    with results.input_errors(parser):
        atoms = to_atoms(read_ase(options.structure)[0])
        atoms.calc = MolFLTCalculator(options.model, tags="oc20")
        if "forces" not in atoms.calc.implemented_properties:
            raise InputError(f"{options.model}: was trained on {atoms.calc.model.target}, which has no forces")
        frames = [] if options.reference is None else read_frames(options.reference, index=":")
        if any(frame.numbers.tolist() != atoms.numbers.tolist() for frame in frames):
            raise InputError(f"{options.reference}: not the atoms of {options.structure} in their order")
        dynamics = run_dynamics(atoms, steps, options.timestep, options.temperature)
    kelvin = dynamics.temperature[len(dynamics.temperature) // 2 :].mean()
    print(f"{len(atoms)} atoms, {steps} steps of {options.timestep:g} fs from {options.temperature:g} K")
    print(f"energy drift   {dynamics.drift:+.3g} meV/atom/ps")
    print(f"fluctuation    {dynamics.fluctuation:.3g} meV/atom")
    print(f"temperature    {kelvin:.0f} K, mean of the second half")
    print(f"speed          {dynamics.steps_per_second:.3g} steps/s")
    # What comes first is how the structure leaves where it began.
    moved = bond_lengths(frames, dynamics.positions[len(dynamics.positions) // 10 :]) if frames else {}
    for name, lengths in moved.items():
        known = bond_lengths(frames)[name]
        print(
            f"{name:<15}{lengths.mean():.4f} ± {lengths.std():.4f} Å, longest {lengths.max():.3f}; "
            f"in the reference {known.mean():.4f} ± {known.std():.4f}, longest {known.max():.3f}"
        )
    if options.out is not None:
        conditions = {name: getattr(options, name) for name in ("model", "structure", "timestep", "temperature")}
        columns = zip(dynamics.time, dynamics.energy, dynamics.temperature, strict=True)
        rows = [{"time_ps": t, "energy_eV": e, "temperature_K": k} for t, e, k in columns]
        results.record(options.out / "drift.csv", rows, conditions, digits=12)
        plot(dynamics, options.out / "drift.png")


if __name__ == "__main__":
    main()
