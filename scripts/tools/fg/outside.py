"""Measure the intervals of ``pretrained:fg`` outside its training domain.

Models are trained without a kind of structures, by a rule of ``scripts.benchmarks.fg_splits``, and judged on those
that are then outside their domain. Every rule counts the same. The floor and the multiples go to the model's file,
the shares found, each rule with the intervals of the others, to docs/results/fg.csv.

    molflt train small data.train=size-train.lmdb data.val=size-test.lmdb trainer.max_epochs=10 seed=0 --out size-0
    python -m scripts.tools.fg.outside size=size-0,size-1 Zn=Zn-0,Zn-1
    python -m scripts.tools.fg.outside --test amidines=amidines-0,amidines-1     # of the intervals that the file has
    python -m scripts.tools.tables

``scripts.benchmarks.accuracy_data.split`` writes the files of a rule; the shipped numbers have 20 epochs for size.
"""

from __future__ import annotations

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
from scripts.benchmarks.fg_splits import divide
from scripts.tools.fg.ship import COLUMNS, MODEL, NUMBERS

Errors = dict[str, tuple[np.ndarray, np.ndarray]]
"""Absolute errors of the mean of the members and their spread, (n,) eV each, by rule."""


def errors_outside(rule: str, runs: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Errors and spread of the structures that a rule holds out and the domain of the runs calls outside."""
    members, (_, held_out) = load_members(runs), divide(rule)
    found = predict([*calibrated(members, None)], ListDataset(held_out))
    assert found.uncertainty_eV is not None
    outside = sorted(found.warnings)
    expected = np.array([float(data.y_relaxed) for data in held_out])
    return np.abs(found.energies - expected)[outside], found.uncertainty_eV[outside]


def pooled(errors: Errors) -> tuple[float, list[float]]:
    """Floor and multiples of all rules, of each as many structures as the smallest has."""
    n, random = min(len(error) for error, _ in errors.values()), np.random.default_rng(0)
    chosen = {rule: random.permutation(len(error))[:n] for rule, (error, _) in errors.items()}
    return fit_intervals(*(np.concatenate([each[k][chosen[rule]] for rule, each in errors.items()]) for k in (0, 1)))


def extended(known: Uncertainty, errors: Errors) -> Uncertainty:
    """Add intervals outside the domain."""
    floor, multiples = pooled(errors)
    return known.model_copy(update={"outside": multiples, "outside_floor": floor})


def rows(errors: Errors, known: Uncertainty, test: bool) -> list[dict[str, Any]]:
    """Errors by rule, and the shares inside the intervals known, or in those with what the other rules add."""
    found = []
    for rule, (error, spread) in errors.items():
        others = {other: of for other, of in errors.items() if other != rule}
        measured = known if test else extended(known, others)
        one, wide = (measured.half_width(spread, level, outside=True) for level in (ONE_SIGMA, WIDE))
        shares = [float((error <= widths).mean()) for widths in (one, wide)]
        values = (len(error), error.mean(), np.median(error), np.sqrt((error**2).mean()), one.mean(), *shares)
        found.append({"by": "outside", "of": rule, **dict(zip(COLUMNS[2:], values, strict=True))})
    return found


def main(
    runs: Annotated[list[str], typer.Argument(help="RULE=RUN,RUN: models trained without what the rule holds out.")],
    test: Annotated[
        bool, typer.Option("--test", help="Judge the intervals of the model's file, and keep them.")
    ] = False,
) -> None:
    """Write the intervals to the model's file, and the shares to its numbers."""
    errors = {rule: errors_outside(rule, paths.split(",")) for rule, _, paths in (one.partition("=") for one in runs)}
    path = results.ROOT / MODEL
    members = load_members(str(path))
    known = members[0].metadata.uncertainty
    assert known is not None
    if not test:
        known = extended(known, errors)
        save_models(path, calibrated(members, known))
    new = rows(errors, known, test)
    for level, share in () if test else ((ONE_SIGMA, "inside_68"), (WIDE, "inside_95")):
        formula = f"{known.outside[LEVELS.index(level)]:.2f} × (s + {known.outside_floor:.3f} eV)"
        mean = float(np.mean([row[share] for row in new if row["by"] == "outside"]))
        new.append({"by": "uncertainty", "of": f"{level:.1%}, outside", "n": formula, "inside_68": mean})
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
