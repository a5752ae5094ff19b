"""Force calls to relax structures: PairLBFGS against the optimisers of ASE.

Thirty structures of each set (``relaxation_sets.py``), to 0.05 eV/Å within 300 force calls and with at most 0.2 Å
for an atom in one step, for everyone. "Trust region alone" is PairLBFGS with a multiple of the identity for the pair
Hessian. LBFGS with α = 15 eV/Å² instead of 70, and PreconLBFGS with its Armijo line search and 0.2 Å, were the best
of a few on smaller structures of the kind of the first two sets. Finished relaxations are kept. ``xtb`` needs the
package tblite.

    python -m scripts.benchmarks.relaxation --out runs/relaxation
    python -m scripts.benchmarks.relaxation --out runs/relaxation --sets emt --structures 5
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.optimize import BFGS, FIRE, LBFGS
from ase.optimize.precon import PreconLBFGS
from matplotlib.figure import Figure

from molflt.simulate.pair_lbfgs import STIFFNESS, History, PairLBFGS, Structures, two_loops
from scripts import results
from scripts.benchmarks.relaxation_sets import tasks

CALLS, FMAX = 300, 0.05
KEPT = results.DOCS / "results" / "relaxation.csv"
SETS = {"lj": "Lennard-Jones", "emt": "EMT", "mmff": "peptides, MMFF94", "xtb": "molecules, GFN2-xTB"}


def plain(structures: Structures, history: History) -> torch.Tensor:
    """Step of L-BFGS from a scaled identity, (B, 3n) Å."""
    return two_loops(history, lambda q: q / STIFFNESS)


BASELINES: dict[str, Callable[[Atoms], Any]] = {
    "BFGS": functools.partial(BFGS, maxstep=0.2, logfile=None),
    "LBFGS": functools.partial(LBFGS, maxstep=0.2, logfile=None),
    "LBFGS, α = 15": functools.partial(LBFGS, alpha=15, maxstep=0.2, logfile=None),
    "FIRE": functools.partial(FIRE, maxstep=0.2, logfile=None),
    "PreconLBFGS": functools.partial(PreconLBFGS, maxstep=0.2, logfile=None),
}
OPTIMISERS = BASELINES | {
    "trust region alone": functools.partial(PairLBFGS, direction=plain, logfile=None),
    "pair Hessian": functools.partial(PairLBFGS, logfile=None),
}


class ExhaustedError(Exception):
    """All force calls are spent."""


class Counted(Calculator):  # type: ignore[misc]
    """Another calculator, which ends a relaxation after :data:`CALLS` calls."""

    implemented_properties = ("energy", "forces")

    def __init__(self, inner: Calculator) -> None:
        super().__init__()
        self.inner, self.count, self.energy = inner, 0, np.nan

    def calculate(self, atoms: Atoms = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        """See ASE."""
        if self.count == CALLS:
            raise ExhaustedError
        self.count += 1
        super().calculate(atoms, properties, system_changes)
        copy = self.atoms.copy()
        copy.calc = self.inner
        forces = copy.get_forces(apply_constraint=False)
        self.energy = copy.get_potential_energy()
        self.results = {"energy": self.energy, "forces": forces}


structures = functools.cache(lambda name, n: list(tasks(name, n)))
"""Of a set, made once."""


def relax(set: str, structure: int, optimiser: str, n: int) -> dict[str, Any]:
    """Count force calls to the end, or to :data:`CALLS`; "energy" is the last one in eV."""
    start = structures(set, n)[structure]
    atoms = start.copy()
    atoms.calc = Counted(start.calc)
    try:
        converged = bool(OPTIMISERS[optimiser](atoms).run(fmax=FMAX, steps=CALLS))
    except ExhaustedError:
        converged = False
    except Exception as error:  # An optimiser that gives up has not converged.
        print(f"{type(error).__name__}: {error}", flush=True)
        converged = False
    # As text, for a total energy has more digits than a table keeps.
    energy = f"{atoms.calc.energy:.6f}"
    calls = atoms.calc.count if converged else CALLS
    return {"atoms": len(atoms), "calls": calls, "converged": int(converged), "energy": energy}


def summary(rows: list[results.Row]) -> list[dict[str, Any]]:
    """Quartiles of calls, and of energies above the lowest that was found, meV/atom."""
    lowest: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["set"], row["structure"])
        lowest[key] = float(np.fmin(lowest.get(key, np.inf), float(row["energy"])))
    made = []
    pairs = dict.fromkeys((row["set"], row["optimiser"]) for row in rows)
    for name, optimiser in sorted(pairs, key=lambda pair: list(SETS).index(pair[0])):
        mine = [row for row in rows if (row["set"], row["optimiser"]) == (name, optimiser)]
        calls = [int(row["calls"]) for row in mine]
        ended = [row for row in mine if row["converged"] == "1"]
        above = [(float(row["energy"]) - lowest[name, row["structure"]]) / int(row["atoms"]) for row in ended]
        q1, median, q3 = np.quantile(calls, [0.25, 0.5, 0.75])
        row = {"set": SETS[name], "optimiser": optimiser, "structures": len(mine), "converged": len(ended)}
        row |= {"calls_q1": q1, "calls_median": median, "calls_q3": q3}
        # In meV; nan where nothing has converged.
        row |= {
            f"above_{q}": 1e3 * float(np.quantile(above or [np.nan], f)) for q, f in (("median", 0.5), ("q3", 0.75))
        }
        made.append(row | {results.EACH: calls})
    return made


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Share of structures that have converged against force calls."""
    shown = [name for name in SETS.values() if any(row["set"] == name for row in rows)]
    figure = Figure(figsize=(3.1 * len(shown), 3.4), layout="constrained")
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(shown), sharey=True)), shown, strict=True):
        for row in (row for row in rows if row["set"] == name):
            calls = np.sort(row[results.EACH])
            share = np.arange(1, len(calls) + 1) / len(calls)
            within = calls < CALLS
            line = "--" if row["optimiser"] in BASELINES else "-"
            axes.step(calls[within], share[within], line, where="post", label=row["optimiser"])
        axes.set(title=name, xscale="log", xlabel="force calls", xlim=(3, CALLS), ylim=(0, 1.02))
    figure.axes[0].set(ylabel=f"share relaxed to {FMAX} eV/Å")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize="small")
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "relaxations", kept=KEPT)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--structures", type=int, default=30, help="of each set")
    options = parser.parse_args()
    if options.quick:
        options.sets, options.structures = ["emt"], 1
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    conditions = {"fmax": FMAX, "calls": CALLS}
    path = options.out / "relaxations.csv"
    points = [
        {"set": name, "structure": k, "optimiser": optimiser}
        for name, k, optimiser in product(options.sets, range(options.structures), OPTIMISERS)
    ]
    results.sweep(path, points, functools.partial(relax, n=options.structures), conditions)
    rows = summary(results.read(path))
    results.record(options.results, rows, conditions)
    plot(results.figure_path(options.results), rows)


if __name__ == "__main__":
    main()
