"""Time and memory of layers against length (FLT Fig. 1; LARA Fig. 2 and Table 6).

Forward passes, each case in a process of its own: seconds per call, and by how much the first call raises the peak
of resident memory, parameters not counted. Beyond a case that takes more memory or time than allowed longer ones are
left out, and their rows say so. "softmax" writes its matrix out, as in 2022; "softmax-fused" is PyTorch's kernel.

    python -m scripts.literature.layer_cost --out runs/layer_cost --figure flt         # ten minutes
    python -m scripts.literature.layer_cost --out runs/layer_cost --figure lara        # twenty minutes
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.kernels.lara import LaraKernel
from molflt.attention.randomised import randomised_attention
from molflt.data.progress import track
from scripts import results
from scripts.benchmarks import measuring
from scripts.literature.sequence.layer import KernelisedSequenceAttention, LogLinearAttention, SequenceAttention
from scripts.literature.sequence.segments import Segments
from scripts.literature.sequence_model import Block, attention_layers


@dataclass
class Setting:
    """Mechanisms and sizes of a figure; ratios are to the first mechanism."""

    attention: tuple[str, ...]
    lengths: tuple[int, ...]
    layers: int
    heads: int
    dim: int
    batch: int
    features: int


FIGURES = {
    "flt": Setting(("performer", "log-linear", "flt"), (128, 256, 512, 1024, 2048, 4096), 1, 12, 768, 8, 64),
    "lara": Setting(
        ("softmax", "softmax-fused", "performer", "lara", "ra"), (1024, 2048, 3072, 4096, 8192), 8, 3, 192, 1, 16
    ),
}
N_FREQUENCIES, WARM_LENGTH = 32, 32
NUMBERS = ("seconds", "seconds_low", "seconds_high", "mebibytes", "time_ratio", "memory_ratio")


class DenseAttention(SequenceAttention):
    """Quadratic attention without positions: "softmax", "softmax-fused" or "ra" with one sample."""

    def __init__(self, dim: int, n_heads: int, name: str) -> None:
        super().__init__(dim, n_heads, causal=False)
        self.name = name

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`SequenceAttention`."""
        if self.name == "softmax":
            return torch.softmax(query @ key.transpose(-1, -2), dim=-1) @ value
        if self.name == "softmax-fused":
            return functional.scaled_dot_product_attention(query, key, value, scale=1.0)
        # One row of ones stands for all, so that no mask is charged to RA.
        near = key.new_ones(1, 1, 1, key.shape[-2])
        return randomised_attention(query, key, value, near, None, 1, "exact", draw=True)


def layers(setting: Setting, name: str, length: int) -> nn.Module:
    """The blocks of one mechanism."""
    dim, heads, n_layers, found = setting.dim, setting.heads, setting.layers, list[SequenceAttention]()
    if name in ("softmax", "softmax-fused", "ra"):
        found = [DenseAttention(dim, heads, name) for _ in range(n_layers)]
    elif name == "lara":
        kernels = [LaraKernel(Segments(setting.features)) for _ in range(n_layers)]
        found = [KernelisedSequenceAttention(dim, heads, kernel, causal=False) for kernel in kernels]
    else:
        known, counts = "flt-gaussian" if name == "flt" else name, (setting.features, N_FREQUENCIES)
        found = attention_layers(known, dim, heads, n_layers, (length,), False, *counts, seed=0)
    for attention in found:
        if isinstance(attention, LogLinearAttention):
            # As published: by FFT at every length.
            attention.order = "linear"
    # LARA's paper gives no width of the feed-forward block; FLT's is four times the model's.
    return nn.Sequential(*(Block(attention, dim, 4 * dim) for attention in found)).eval()


@torch.no_grad()
def measure(figure: str, name: str, length: int, repeats: int, gibibytes: float) -> dict[str, Any]:
    """Measure seconds of every call after the first, and the growth of memory in the first."""
    setting = FIGURES[figure]
    torch.manual_seed(0)
    model, cpu = layers(setting, name, length), torch.device("cpu")
    x = torch.randn(setting.batch, length, setting.dim)
    # Start up whatever a first call does, on a sequence too short to count.
    model(x[:, :WARM_LENGTH])
    measuring.limit_memory(gibibytes)
    added = measuring.peak_growth(lambda: model(x), cpu)
    return {"seconds": measuring.seconds_of(lambda: model(x), repeats, math.inf, cpu), "bytes": added}


def case(options: argparse.Namespace, name: str, length: int, known: list[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table, by :func:`measure` in a fresh process or with a note why not."""
    row: dict[str, Any] = {"attention": name, "length": length, **dict.fromkeys(NUMBERS), "note": ""}
    if failed := next((old["note"] for old in known if old["attention"] == name and old["note"]), ""):
        return row | {"note": failed}
    job = {"figure": options.figure, "name": name, "length": length, "repeats": options.repeats}
    job["gibibytes"] = options.memory
    cost = measuring.isolated("literature.layer_cost:measure", options.threads, options.seconds, **job)
    if cost["status"] != measuring.DONE:
        return row | {"note": f"{cost['status']}: {cost.get('note', '')}"}
    low, middle, high = (float(s) for s in np.percentile(cost["seconds"], [25, 50, 75]))
    row |= {"seconds": middle, "seconds_low": low, "seconds_high": high, "mebibytes": cost["bytes"] / 2**20}
    for old in (*known, row):
        if old["attention"] == FIGURES[options.figure].attention[0] and old["length"] == length and old["seconds"]:
            row |= {"time_ratio": middle / old["seconds"], "memory_ratio": row["mebibytes"] / old["mebibytes"]}
    return row


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Time and memory against the length."""
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    time_axes, memory_axes = figure.subplots(1, 2)
    for name in dict.fromkeys(row["attention"] for row in rows):
        mine = [row for row in rows if row["attention"] == name and row["seconds"] is not None]
        n = [row["length"] for row in mine]
        time_axes.semilogx(n, [row["seconds"] for row in mine], base=2, marker=".", label=name)
        time_axes.fill_between(n, *([row[key] for row in mine] for key in NUMBERS[1:3]), alpha=0.2, linewidth=0)
        memory_axes.semilogx(n, [row["mebibytes"] for row in mine], base=2, marker=".")
    time_axes.set(yscale="log", xlabel="tokens", ylabel="seconds, forward")
    memory_axes.set(yscale="log", xlabel="tokens", ylabel="peak memory added, MiB")
    time_axes.legend(frameon=False)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "figure and table")
    parser.add_argument("--figure", choices=list(FIGURES), required=True)
    parser.add_argument("--lengths", type=int, nargs="+", help="other than those of the figure, increasing")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each case, after one that is not")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=float, default=16.0, help="GiB that a case may take")
    parser.add_argument("--seconds", type=float, default=600.0, help="that a case may take")
    options = parser.parse_args()
    if options.quick:
        options.lengths, options.repeats, options.threads = [64], 1, 1
    setting = FIGURES[options.figure]
    # Length by length, so that ratios compare what ran within minutes of each other.
    cases = [(name, n) for n in options.lengths or setting.lengths for name in setting.attention]
    rows: list[dict[str, Any]] = []
    base = options.out / f"layer_cost_{options.figure}"
    for name, length in track(cases, f"layer cost, {options.figure}"):
        rows.append(case(options, name, length, rows))
        conditions = asdict(setting) | {"threads": options.threads, "repeats": options.repeats}
        results.record(base.with_suffix(".csv"), rows, conditions)
    plot(base.with_suffix(".png"), rows)
    print(results.table(rows))


if __name__ == "__main__":
    main()
