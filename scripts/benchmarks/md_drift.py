"""Energy drift of constant-energy dynamics with a model's forces.

Velocity Verlet from a Maxwell-Boltzmann distribution. Prints the drift of the total energy (slope of a straight line
through it) in meV per atom and ps, how far it strays from that line, the temperature, and the speed. Noise in the
forces, and forces that belong to no energy, make it drift. Forces of another energy, or a time step that is too long,
make it stray; with right forces, half the time step brings that to a quarter. With --out writes FOLDER/drift.csv, of
every tenth step, and FOLDER/drift.png. With --reference, bond lengths are set beside those of a file of the same
molecule. With --draws the runs thermalise first.

    python -m scripts.benchmarks.md_drift runs/first water.xyz --steps 2000 --timestep 0.5 --out runs/first/drift
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.io import read as read_frames
from ase.md.velocitydistribution import Stationary
from ase.neighborlist import natural_cutoffs, neighbor_list
from matplotlib.figure import Figure

from molflt.data.ase import from_atoms, to_atoms
from molflt.data.formats import read_ase
from molflt.data.progress import track
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.prediction.model import load
from molflt.prediction.predict import why_no_forces
from molflt.simulate.ase import MovingBatch, values_of
from scripts import results

Forces = Callable[[Sequence[Atoms]], tuple[np.ndarray, np.ndarray]]
"""Copies of a structure → energies (n_copies,) eV and forces (n_copies, n_atoms, 3) eV/Å."""
BETWEEN_DRAWS = 200.0
"""fs between two draws of velocities."""


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


def by_calculator(copies: Sequence[Atoms]) -> tuple[np.ndarray, np.ndarray]:
    """Energies and forces of the atoms' own calculators."""
    forces = np.array([atoms.get_forces() for atoms in copies])
    return np.array([atoms.get_potential_energy() for atoms in copies]), forces


def batched(path: str) -> Forces:
    """Energies and forces of a model, or the mean of several, for all copies at once.

    Raises:
        InputError: there is no such model, or it has no forces.
    """
    model = load(path)
    if reason := why_no_forces(model.target):
        raise InputError(f"{path}: no forces: this model {reason}")
    moving, networks = MovingBatch(model), [member.model for member in model.members]

    def forces(copies: Sequence[Atoms]) -> tuple[np.ndarray, np.ndarray]:
        options = ReadOptions(tags="oc20")
        batch = moving(
            (len(copies), copies[0].numbers.tobytes()),
            np.array([atoms.cell.array for atoms in copies]),
            np.concatenate([atoms.positions for atoms in copies]),
            lambda: [from_atoms(atoms, f"copy {k}", options) for k, atoms in enumerate(copies)],
        )
        found = {name: each.mean(0).numpy() for name, each in values_of(networks, batch, True, False).items()}
        return found["energy"], found["forces"].reshape(len(copies), -1, 3)

    return forces


def heat(atoms: Atoms, temperature: float, rng: np.random.Generator) -> None:
    """Draw velocities of a temperature (K)."""
    spread = np.sqrt(units.kB * temperature * atoms.get_masses())[:, None]
    atoms.set_momenta(spread * rng.standard_normal((len(atoms), 3)))
    if not atoms.constraints:
        Stationary(atoms)


def run_dynamics(
    copies: Sequence[Atoms], steps: int, timestep: float, forces: Forces = by_calculator
) -> list[Dynamics]:
    """Constant-energy dynamics of copies of a structure, side by side; they are moved.

    Args:
        copies: with velocities; atoms that are fixed stay.
        steps: of velocity Verlet, at least two.
        timestep: fs.
        forces: on all copies.
    """
    time_unit, mass = timestep * units.fs, copies[0].get_masses()[:, None]
    rows, positions = [], [[atoms.get_positions() for atoms in copies]]

    def observe(energies: np.ndarray) -> None:
        moving = [(atoms.get_kinetic_energy(), atoms.get_temperature()) for atoms in copies]
        rows.append([(energy + kinetic, kelvin) for energy, (kinetic, kelvin) in zip(energies, moving, strict=True)])

    energies, found = forces(copies)
    observe(energies)
    start = time.perf_counter()
    for step in track(range(1, steps + 1), "dynamics", total=steps):
        for atoms, force in zip(copies, found, strict=True):
            atoms.set_momenta(atoms.get_momenta() + 0.5 * time_unit * force)
            atoms.set_positions(atoms.positions + time_unit * atoms.get_momenta() / mass)
        energies, found = forces(copies)
        for atoms, force in zip(copies, found, strict=True):
            atoms.set_momenta(atoms.get_momenta() + 0.5 * time_unit * force)
        observe(energies)
        if step % 10 == 0:
            positions.append([atoms.get_positions() for atoms in copies])
    speed = steps / (time.perf_counter() - start)
    times, known, where = np.arange(steps + 1) * timestep / 1e3, np.array(rows), np.array(positions)
    return [
        Dynamics(times, known[:, k, 0], known[:, k, 1], len(atoms), speed, where[:, k])
        for k, atoms in enumerate(copies)
    ]


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


def plot(runs: Sequence[Dynamics], path: Path) -> None:
    """Energy and temperature against time."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for run in runs:
        above.plot(run.time, 1e3 * (run.energy - run.energy[0]) / run.n_atoms, linewidth=0.5)
        below.plot(run.time, run.temperature, linewidth=0.5)
    above.set_ylabel("total energy − start\n(meV/atom)")
    drifts = ", ".join(f"{run.drift:.2g}" for run in runs)
    above.set_title(f"drift {drifts} meV/atom/ps, {runs[0].n_atoms} atoms")
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
    parser.add_argument(
        "--draws", type=int, default=0, help="times, 200 fs apart, that velocities are drawn anew before"
    )
    parser.add_argument("--copies", type=int, default=1, help="runs side by side, with seeds 0, 1, ... (default 1)")
    parser.add_argument("--reference", type=Path, help="geometries of the same molecule, its atoms in the same order")
    options = parser.parse_args()
    steps = 5 if options.quick else options.steps
    with results.input_errors(parser):
        atoms = to_atoms(read_ase(options.structure)[0])
        forces = batched(options.model)
        frames = [] if options.reference is None else read_frames(options.reference, index=":")
        if any(frame.numbers.tolist() != atoms.numbers.tolist() for frame in frames):
            raise InputError(f"{options.reference}: not the atoms of {options.structure} in their order")
        copies = [atoms.copy() for _ in range(options.copies)]
        generators = [np.random.default_rng(seed) for seed in range(options.copies)]
        for draw in range(options.draws + 1):
            for each, rng in zip(copies, generators, strict=True):
                heat(each, options.temperature, rng)
            n = steps if draw == options.draws else max(2, round(BETWEEN_DRAWS / options.timestep))
            runs = run_dynamics(copies, n, options.timestep, forces)
    print(f"{len(atoms)} atoms, {steps} steps of {options.timestep:g} fs from {options.temperature:g} K")
    print(f"speed          {runs[0].steps_per_second:.3g} steps/s of {len(runs)} copies")
    known = bond_lengths(frames) if frames else {}
    for run in runs:
        print(f"energy drift   {run.drift:+.3g} meV/atom/ps")
        print(f"fluctuation    {run.fluctuation:.3g} meV/atom")
        print(f"temperature    {run.temperature[len(run.temperature) // 2 :].mean():.0f} K, mean of the second half")
        # What comes first is how the structure leaves where it began.
        moved = bond_lengths(frames, run.positions[len(run.positions) // 10 :]) if frames else {}
        for name, lengths in moved.items():
            print(
                f"{name:<15}{lengths.mean():.4f} ± {lengths.std():.4f} Å, longest {lengths.max():.3f}; in the "
                f"reference {known[name].mean():.4f} ± {known[name].std():.4f}, longest {known[name].max():.3f}"
            )
    if options.out is not None:
        conditions = {name: getattr(options, name) for name in ("model", "structure", "timestep", "temperature")}
        rows = [
            {"copy": k, "time_ps": t, "energy_eV": e, "temperature_K": kelvin}
            for k, run in enumerate(runs)
            for t, e, kelvin in zip(run.time[::10], run.energy[::10], run.temperature[::10], strict=True)
        ]
        results.record(options.out / "drift.csv", rows, conditions, digits=12)
        plot(runs, options.out / "drift.png")


if __name__ == "__main__":
    main()
