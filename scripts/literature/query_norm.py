"""Luo Fig. 1b: error of positive random features against the length of queries and keys.

One query and 1024 keys, uniform on the unit sphere in 64 dimensions, all multiplied by R. The error is
|A − Â|₁ between the softmax distribution A and its estimate from m features; it is 2 where they share nothing.
Rows of ω are independent, as in the paper, and besides orthogonal or sampled on a sphere.

    python -m scripts.literature.query_norm --out runs/query_norm                    # two minutes on one core
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional

from molflt.attention.build import build_kernel
from molflt.data.progress import track
from scripts import results

DIM, N_KEYS = 64, 1024
MATRICES = ("iid", "orf", "sphere")
STYLES = {"iid": "-", "orf": "--", "sphere": ":"}
Key = tuple[str, float, int]
"""Weight matrix, R, m."""


def unit_sphere(n: int, generator: torch.Generator) -> Tensor:
    """(1, 1, n, DIM) float64."""
    return functional.normalize(torch.randn(1, 1, n, DIM, generator=generator, dtype=torch.float64), dim=-1)


def error(query: Tensor, key: Tensor, matrix: str, m: int, generator: torch.Generator) -> float:
    """|A − Â|₁ for one ω, in float64, where no exponent needs a shift."""
    kernel = build_kernel(f"posrf-{matrix}", DIM, 1, m, 0, generator).to(torch.float64)
    query_features, key_features = kernel(query, key)
    estimate = (query_features.values() @ key_features.values().transpose(-1, -2)).flatten()
    exact = torch.exp(query @ key.transpose(-1, -2)).flatten()
    return float((exact / exact.sum() - estimate / estimate.sum()).abs().sum())


def measure(radii: list[float], counts: list[int], seeds: int) -> list[dict[str, Any]]:
    """A row for every weight matrix, R and m; all R and m see the same tokens."""
    distances: dict[Key, list[float]] = defaultdict(list)
    for seed in track(range(seeds), "query norm", total=seeds):
        generator = torch.Generator().manual_seed(seed)
        query, key = unit_sphere(1, generator), unit_sphere(N_KEYS, generator)
        for radius in radii:
            for matrix in MATRICES:
                for m in counts:
                    found = error(radius * query, radius * key, matrix, m, generator)
                    distances[matrix, radius, m].append(found)
    rows = []
    for (matrix, radius, m), values in distances.items():
        low, high = np.percentile(values, [25, 75])
        rows.append(
            {
                "matrix": matrix,
                "radius": radius,
                "features": m,
                "error": float(np.mean(values)),
                "error_low": float(low),
                "error_high": float(high),
            }
        )
    return rows


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """The paper's panel, and the other weight matrices."""
    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    paper, others = figure.subplots(1, 2)
    radii = sorted({row["radius"] for row in rows})
    colours = {radius: colormaps["viridis"](0.9 * i / max(1, len(radii) - 1)) for i, radius in enumerate(radii)}
    few = sorted({radii[0], radii[len(radii) // 2], radii[-1]})

    def column(matrix: str, radius: float, name: str) -> list[float]:
        mine = [row for row in rows if (row["matrix"], row["radius"]) == (matrix, radius)]
        return [row[name] for row in sorted(mine, key=lambda row: row["features"])]

    for radius in radii:
        colour, m = colours[radius], column("iid", radius, "features")
        paper.plot(m, column("iid", radius, "error"), color=colour, marker=".", label=f"R = {radius:g}")
        low, high = column("iid", radius, "error_low"), column("iid", radius, "error_high")
        paper.fill_between(m, low, high, color=colour, alpha=0.2, linewidth=0)
    for radius in few:
        for matrix in MATRICES:
            label = matrix if radius == few[0] else None
            style, m = STYLES[matrix], column(matrix, radius, "features")
            others.plot(m, column(matrix, radius, "error"), color=colours[radius], linestyle=style, label=label)
    paper.set(xscale="log", ylim=(0, 2.05), xlabel="features m", ylabel="|A − Â|₁", title="independent rows")
    others.set(xscale="log", ylim=(0, 2.05), xlabel="features m", title="by weight matrix")
    figure.legend(*paper.get_legend_handles_labels(), loc="outside right center", frameon=False)
    others.legend(frameon=False, fontsize=8)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "figure and table")
    parser.add_argument("--radii", type=float, nargs="+", default=[1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
    parser.add_argument("--features", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    if options.quick:
        options.radii, options.features, options.seeds = [1.0, 3.0], [16, 256], 4
    rows = measure(options.radii, options.features, options.seeds)
    results.record(options.out / "query_norm.csv", rows, {"dim": DIM, "keys": N_KEYS, "seeds": options.seeds})
    plot(options.out / "query_norm.png", rows)
    print(results.table(rows))


if __name__ == "__main__":
    main()
