"""Measure the intervals of ``pretrained:fg`` outside its training domain.

Models are trained without a kind of structures, one of the divisions of ``scripts.benchmarks.fg_splits``, and judged
on those that are then outside their domain. Divisions by metal give the intervals for elements that were not trained
on, those by size the intervals for larger adsorbates, others those for everything else; in each of the three every
division counts the same. Floors and multiples go to the model's file. The shares found, each division with the
intervals of the others of its kind, go to docs/results/fg.csv.

    molflt train small data.train=Zn-train.lmdb data.val=Zn-test.lmdb trainer.max_epochs=10 seed=0 --out Zn-0
    python -m scripts.tools.fg.outside Zn=Zn-0,Zn-1 Pt=Pt-0,Pt-1 size=size-0,size-1,size-2 size7=size7-0,size7-1 \
        amidines=amidines-0,amidines-1
    python -m scripts.tools.fg.outside --test molecules=molecules-0,molecules-1    # of the intervals in the file
    python -m scripts.tools.tables

``scripts.benchmarks.accuracy_data.split`` writes the files of a division. The shipped numbers have 10 epochs for
metals, 20 for size, amidines and molecules, 40 for slices, and 45 for size7.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

import numpy as np
import typer

from molflt.data.dataset import ListDataset
from molflt.model.config import LEVELS, ONE_SIGMA, WIDE, Uncertainty
from molflt.model.file import save_models
from molflt.prediction.members import calibrated, load_members
from molflt.prediction.metrics import fit_intervals
from molflt.prediction.predict import predict
from scripts import results
from scripts.benchmarks.fg_splits import METALS, MOST_ATOMS, divide
from scripts.tools.fg.ship import COLUMNS, MODEL, NUMBERS

Errors = dict[str, tuple[np.ndarray, np.ndarray]]
"""Absolute errors of the mean of the members and their spread, (n,) eV each, by division."""
RULES = {**dict.fromkeys(METALS, "elements"), **dict.fromkeys(MOST_ATOMS, "size")}
"""Rules of the domain with intervals of their own, by division."""


def errors_outside(division: str, runs: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Errors and spread of the structures that a division holds out and the domain of the runs calls outside."""
    members, (_, held_out) = load_members(runs), divide(division)
    found = predict([*calibrated(members, None)], ListDataset(held_out))
    assert found.uncertainty_eV is not None
    outside = sorted(found.warnings)
    expected = np.array([float(data.y_relaxed) for data in held_out])
    return np.abs(found.energies - expected)[outside], found.uncertainty_eV[outside]


def pooled(errors: Errors) -> tuple[float, list[float]]:
    """Floor and multiples of all divisions, of each as many structures as the smallest has."""
    n, random = min(len(error) for error, _ in errors.values()), np.random.default_rng(0)
    chosen = {name: random.permutation(len(error))[:n] for name, (error, _) in errors.items()}
    return fit_intervals(*(np.concatenate([each[k][chosen[name]] for name, each in errors.items()]) for k in (0, 1)))


def extended(known: Uncertainty, errors: Errors) -> Uncertainty:
    """Add intervals outside the domain: of the rules that have divisions, and of everything else."""
    by_rule = {rule: pooled(like(errors, rule)) for rule in {*RULES.values()} if like(errors, rule)}
    found: dict[str, Any] = {"by_rule": {**known.by_rule, **by_rule}}
    if others := like(errors, ""):
        found["outside_floor"], found["outside"] = pooled(others)
    return known.model_copy(update=found)


def like(errors: Errors, rule: str) -> Errors:
    """Errors of the divisions of one kind."""
    return {name: each for name, each in errors.items() if RULES.get(name, "") == rule}


def rows(errors: Errors, known: Uncertainty, test: bool = False) -> list[dict[str, Any]]:
    """Errors by division, and the shares inside the intervals of others of its kind, or those known (``test``)."""
    found = []
    for name, (error, spread) in errors.items():
        rule = RULES.get(name, "")
        others = {other: of for other, of in like(errors, rule).items() if other != name}
        if not (test or others):
            continue
        measured, broken = known if test else extended(known, others), [{rule}] * len(error)
        one, wide = (measured.half_width(spread, level, broken) for level in (ONE_SIGMA, WIDE))
        shares = [float((error <= widths).mean()) for widths in (one, wide)]
        values = (len(error), error.mean(), np.median(error), np.sqrt((error**2).mean()), one.mean(), *shares)
        found.append({"by": "outside", "of": name, **dict(zip(COLUMNS[2:], values, strict=True))})
    return found


def main(
    runs: Annotated[list[str], typer.Argument(help="DIVISION=RUN,RUN: models trained without what it holds out.")],
    test: Annotated[
        bool, typer.Option("--test", help="Judge the intervals of the model's file, and keep them.")
    ] = False,
) -> None:
    """Write the intervals to the model's file, and the shares to its numbers."""
    errors = {name: errors_outside(name, paths.split(",")) for name, _, paths in (one.partition("=") for one in runs)}
    path = results.ROOT / MODEL
    members = load_members(str(path))
    known = members[0].metadata.uncertainty
    assert known is not None
    if not test:
        known = extended(known, errors)
        save_models(path, calibrated(members, known))
    judged = rows(errors, known, test)
    new, of = [*judged], {"others": (known.outside_floor, known.outside), **known.by_rule}
    shares = {ONE_SIGMA: "inside_68", WIDE: "inside_95"}
    for (rule, (floor, multiples)), level in () if test else product(of.items(), shares):
        formula = f"{multiples[LEVELS.index(level)]:.2f} × (s + {floor:.3f} eV)"
        # The mean over the divisions of a kind, each by the others.
        found = [row[shares[level]] for row in judged if RULES.get(row["of"], "others") == rule]
        mean = {"inside_68": float(np.mean(found))} if found else {}
        new.append({"by": "uncertainty", "of": f"{level:.1%}, outside: {rule}", "n": formula, **mean})
    kept = results.read(results.ROOT / NUMBERS)
    mine = [
        (row["by"] == "outside" and row["of"] in errors) if test else "outside" in row["by"] + row["of"]
        for row in kept
    ]
    old = [row for row, is_mine in zip(kept, mine, strict=True) if not is_mine]
    measured_here = results.provenance({"data": "divisions of fg"})
    results.write(results.ROOT / NUMBERS, [*old, *(row | measured_here for row in new)], list(old[0]), digits=6)
    typer.echo(results.markdown(list(COLUMNS), [[results.text(row.get(name)) for name in COLUMNS] for row in new]))


if __name__ == "__main__":
    typer.run(main)
