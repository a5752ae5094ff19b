"""What ``train`` and ``evaluate`` put into a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from molflt.atomic_file import remove_leftovers

if TYPE_CHECKING:
    from molflt.model.model_file import LoadedModel
    from molflt.prediction.evaluation import Evaluation
    from molflt.training.config import TrainConfig

_TRIED = 2
"""Structures, the smallest, on which a report measures the invariances: a sign, not what check-invariance does."""


def evaluation_report(
    path: Path, loaded: LoadedModel, sets: Sequence[Evaluation], run_dir: Path | None = None
) -> None:
    """Write the report of an evaluation; with a run directory, its learning curves as well."""
    import numpy as np

    from molflt.invariance.harness import run_suite
    from molflt.prediction.predictor import unlabelled
    from molflt.report.page import write_report
    from molflt.training.recorder import read_records

    structures = sets[0].structures
    smallest = np.argsort(structures.n_atoms, kind="stable")[:_TRIED]
    tried = [unlabelled(structures[int(k)]) for k in smallest]
    results = run_suite(loaded, tried, ["float32", "float64"], n_draws=1)
    records = [] if run_dir is None else read_records(run_dir)
    write_report(path, loaded, sets, records, results, command=" ".join(["molflt", *sys.argv[1:]]))


def default_report(model: Path, data: str) -> Path:
    """Where the report of an evaluation goes: beside the model, named after the data."""
    folder = model if model.is_dir() else model.parent
    path = Path(data)
    # OC20 calls every split data.lmdb.
    return folder / f"report-{path.parent.name if path.stem == 'data' else path.stem}.html"


def training_report(run_dir: Path, config: TrainConfig) -> Path:
    """Write ``report.html`` of a finished run, of the best model on every validation split."""
    from molflt.prediction.evaluation import evaluate
    from molflt.prediction.members import load_members
    from molflt.prediction.predictor import choose_device

    members = load_members(run_dir)
    device = choose_device("cpu" if config.trainer.accelerator == "cpu" else "auto")
    sets = [
        evaluate(members, path, name=name, device=device, on_bad=config.data.on_bad)
        for name, path in config.data.val.items()
    ]
    report = run_dir / "report.html"
    remove_leftovers(run_dir, [report.name])
    evaluation_report(report, members[0], sets, members[0].path.parent)
    return report
