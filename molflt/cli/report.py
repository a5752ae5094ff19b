"""What ``train`` and ``evaluate`` put into a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from molflt.errors import InputError

if TYPE_CHECKING:
    from molflt.model.model_file import LoadedModel
    from molflt.report.evaluated import EvaluatedSet
    from molflt.training.config import TrainConfig

_TRIED = 2
"""Structures on which a report measures the invariances: a sign, not the proof that check-invariance gives."""


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
    from molflt.invariance.harness import run_suite
    from molflt.prediction.predictor import unlabelled
    from molflt.report.page import write_report
    from molflt.training.recorder import read_records

    structures = sets[0].structures
    step = max(1, len(structures) // _TRIED)
    tried = [unlabelled(structures[k]) for k in range(0, len(structures), step)][:_TRIED]
    results = run_suite(loaded, tried, ["float32", "float64"], n_draws=1)
    records = [] if run_dir is None else read_records(run_dir)
    write_report(path, loaded, sets, records, results, command=" ".join(["molflt", *sys.argv[1:]]))


def training_report(run_dir: Path, config: TrainConfig) -> Path:
    """Write ``report.html`` of a finished run, of the best model on every validation split."""
    from molflt.prediction.members import load_members
    from molflt.prediction.predictor import choose_device
    from molflt.report.evaluated import evaluate

    members = load_members(run_dir)
    device = choose_device("cpu" if config.trainer.accelerator == "cpu" else "auto")
    sets = [replace(evaluate(members, path, device), name=name) for name, path in config.data.val.items()]
    report = run_dir / "report.html"
    evaluation_report(report, members[0], sets, members[0].path.parent)
    return report
