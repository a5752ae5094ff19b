"""What ``train`` and ``evaluate`` put into a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from molflt.errors import InputError
from molflt.files import remove_leftovers

if TYPE_CHECKING:
    from molflt.model.model_file import LoadedModel
    from molflt.report.evaluated import EvaluatedSet
    from molflt.training.config import TrainConfig

_TRIED = 2
"""Structures, the smallest, on which a report measures the invariances: a sign, not what check-invariance does."""


def check_report(path: Path, overwrite: bool) -> None:
    """Refuse a report before anything is computed for it.

    Raises:
        InputError: not an HTML file, or one that exists.
    """
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"{path}: a report must end in .html")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; choose another name or give --overwrite")


def evaluation_report(
    path: Path, loaded: LoadedModel, sets: Sequence[EvaluatedSet], run_dir: Path | None = None
) -> None:
    """Write the report of an evaluation; with a run directory, its learning curves as well."""
    import numpy as np

    from molflt.invariance.harness import run_suite
    from molflt.prediction.predictor import unlabelled
    from molflt.report.page import write_report
    from molflt.training.run_directory import read_records

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
    from molflt.prediction.members import load_members
    from molflt.prediction.predictor import choose_device
    from molflt.report.evaluated import evaluate

    members = load_members(run_dir)
    device = choose_device("cpu" if config.trainer.accelerator == "cpu" else "auto")
    sets = [
        replace(evaluate(members, path, device, on_bad=config.data.on_bad), name=name)
        for name, path in config.data.val.items()
    ]
    report = run_dir / "report.html"
    remove_leftovers(run_dir, [report.name])
    evaluation_report(report, members[0], sets, members[0].path.parent)
    return report
