"""Tables of the accuracy benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from benchmarks.results import markdown

from accuracy.data_sets import DATA_SETS

PUBLISHED = {
    "perovskites": (
        "Published for matbench_perovskites, five folds, eV per cell: coGN 0.0269, ALIGNN 0.0288, SchNet 0.0342, "
        "MEGNet 0.0352, DimeNet++ 0.0376, CGCNN 0.0452, the mean 0.566 (matbench's leaderboard). A peer of the table "
        "above that is far from its published error has been trained too briefly, not beaten."
    ),
}


def tables(results: Sequence[dict[str, Any]], order: Sequence[str]) -> str:
    """One table for each data set, rows in the given order; minutes are the median of the runs."""
    parts = []
    for data in dict.fromkeys(result["data"] for result in results):
        mine = [result for result in results if result["data"] == data]
        judged = list(dict.fromkeys(name for result in mine for name in result["mae"]))
        header = ["", *(f"MAE, {name}" for name in judged), "runs", "epochs", "minutes", "parameters"]
        rows = []
        for row in [name for name in order if any(result["row"] == name for result in mine)]:
            runs = [result for result in mine if result["row"] == row]
            rows.append(
                [
                    row,
                    *(cell([run["mae"][name] for run in runs if name in run["mae"]]) for name in judged),
                    str(len(runs)),
                    f"{np.mean([run['epochs'] for run in runs]):.3g}",
                    f"{np.median([run['seconds'] for run in runs]) / 60:.1f}",
                    f"{runs[0]['parameters']:,}",
                ]
            )
        title = f"### {data}, {DATA_SETS[data].unit}\n\n"
        note = f"\n{PUBLISHED[data]}\n" if data in PUBLISHED else ""
        parts.append(f"{title}{markdown(header, rows)}{note}")
    return "\n".join(parts)


def cell(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds and folds."""
    if not values:
        return ""
    text = f"{np.mean(values):.4f}"
    return f"{text} ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else text
