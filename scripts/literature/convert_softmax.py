"""Luo Fig. 2 in miniature: a trained softmax model whose attention is replaced by random features.

Four byte-level language models are trained with dense softmax: queries and keys as they are or of unit length, with
and without a relative bias. Then softmax gives way to positive random features with m of them, without any further
training, and the loss in bits per byte on held-out files is reported over several draws.

    python -m scripts.literature.convert_softmax --out runs/convert            # ten minutes on one core
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.build import build_kernel
from molflt.attention.kernels import Kernel
from scripts import results
from scripts.literature.byte_text import LENGTH, bits_per_byte, corpus, fit
from scripts.literature.language_model import DIM, FFN, HEADS, LAYERS
from scripts.literature.sequence.layer import SequenceAttention
from scripts.literature.sequence.relative_bias import RelativeBias, log_linear_attention, softmax_attention
from scripts.literature.sequence_model import SequenceTransformer
from scripts.literature.training import kept

FEATURES = (16, 32, 64, 128, 256)
VARIANTS = {
    "standard": (False, False),
    "standard + RPE": (False, True),
    "normalised": (True, False),
    "normalised + RPE": (True, True),
}
"""(unit length, relative bias)."""


class ConvertibleAttention(SequenceAttention):
    """Causal attention by dense softmax, or by a kernel once there is one.

    Args:
        normalise: queries and keys of unit length.
        bias: relative bias; kept at zero where it is not to learn.
    """

    def __init__(self, normalise: bool, bias: RelativeBias) -> None:
        super().__init__(DIM, HEADS, causal=True)
        self.normalise = normalise
        self.bias = bias
        self.kernel: Kernel | None = None
        self.squares: list[float] = []
        """Means of |q|² in the calls without training."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`SequenceAttention`."""
        if self.normalise:
            query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
        if not self.training:
            self.squares.append(float(query.square().sum(dim=-1).mean()))
        bias, shape = self.bias(query.shape[-2])
        if self.kernel is None:
            return softmax_attention(query, key, value, bias, shape, causal=True)
        return log_linear_attention(self.kernel, query, key, value, bias, shape, causal=True)


def softmax_model(normalise: bool, rpe: bool, seed: int) -> SequenceTransformer:
    """A model to be trained and then converted."""
    torch.manual_seed(seed)
    bias = RelativeBias(HEADS, (LENGTH,)).requires_grad_(rpe)
    layers: list[SequenceAttention] = [ConvertibleAttention(normalise, bias) for _ in range(LAYERS)]
    return SequenceTransformer(layers, nn.Embedding(256, DIM), DIM, FFN, LENGTH, 256, pooled=False)


def convert(model: SequenceTransformer, n_features: int | None, seed: int) -> None:
    """Put random features in place of softmax in every layer; None puts softmax back."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, ConvertibleAttention):
            layer.kernel = None
            if n_features is not None:
                layer.kernel = build_kernel("posrf-orf", DIM // HEADS, HEADS, n_features, 1, generator)


def run_once(folder: Path, name: str, seed: int, steps: int, draws: int) -> list[dict[str, Any]]:
    """Train one variant and convert it: a row for every m, and one, m = 0, for softmax itself."""

    def make() -> dict[str, Any]:
        model, (_, validation) = softmax_model(*VARIANTS[name], seed), corpus()
        fit(model, steps, seed, f"{name}, seed {seed}")
        norms = query_norms(model, validation)
        rows = [{"variant": name, "m": 0, "bits": bits_per_byte(model, validation)} | norms]
        for m, draw in itertools.product(FEATURES, range(draws)):
            convert(model, m, seed=1000 * seed + draw)
            rows.append({"variant": name, "m": m, "bits": bits_per_byte(model, validation)} | norms)
        return {"rows": rows}

    settings = {"variant": name, "seed": seed, "steps": steps, "draws": draws}
    rows: list[dict[str, Any]] = kept(folder / name / str(seed), settings, make)["rows"]
    return rows


def query_norms(model: SequenceTransformer, text: Tensor) -> dict[str, float]:
    """Root mean square of |q| in all layers, which decides the variance of random features (Eq. 14)."""
    layers = [layer for layer in model.modules() if isinstance(layer, ConvertibleAttention)]
    for layer in layers:
        layer.squares.clear()
    bits_per_byte(model, text)
    return {"query_norm": float(np.sqrt(np.mean([layer.squares for layer in layers])))}


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Bits per byte against m; dashed, the softmax model itself."""
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for k, name in enumerate(VARIANTS):
        mine = [row for row in rows if row["variant"] == name]
        bits = [[row["bits"] for row in mine if row["m"] == m] for m in FEATURES]
        axes.plot(FEATURES, [np.mean(b) for b in bits], "o-", color=f"C{k}", label=name)
        axes.fill_between(FEATURES, [min(b) for b in bits], [max(b) for b in bits], color=f"C{k}", alpha=0.2)
        axes.axhline(np.mean([row["bits"] for row in mine if row["m"] == 0]), color=f"C{k}", linestyle="--")
    axes.set(xscale="log", xlabel="random features m", ylabel="bits per byte (dashed: softmax)")
    axes.set_xticks(FEATURES, [str(m) for m in FEATURES])
    axes.minorticks_off()
    axes.legend(frameon=False)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "runs and tables")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--draws", type=int, default=3, help="draws of random features for every m")
    options = parser.parse_args()
    rows = [
        row
        for name in VARIANTS
        for seed in options.seeds
        for row in run_once(options.out, name, seed, options.steps, options.draws)
    ]
    table = []
    for name in VARIANTS:
        mine = [row for row in rows if row["variant"] == name]
        norm = float(np.mean([row["query_norm"] for row in mine if row["m"] == 0]))
        for m in (0, *FEATURES):
            bits = np.array([row["bits"] for row in mine if row["m"] == m])
            table.append(
                {
                    "variant": name,
                    "m": m or "softmax",
                    "bits": float(bits.mean()),
                    "least": float(bits.min()),
                    "most": float(bits.max()),
                    "query_norm": norm,
                }
            )
    path = options.out / "convert_softmax.csv"
    results.record(path, table, {"steps": options.steps, "seeds": options.seeds, "draws": options.draws})
    plot(path.with_suffix(".png"), rows)
    print(results.table(table))


if __name__ == "__main__":
    main()
