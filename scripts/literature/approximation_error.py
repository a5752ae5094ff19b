"""LARA Fig. 1: mean squared error of Performer, LARA and RA by the number of samples.

The paper takes vision transformers trained on ImageNet. Here a small one is trained with softmax attention on
scikit-learn's digits, enlarged to 14×14, 24×24 and 28×28 pixels: with a token for every pixel these are the paper's
lengths 196, 576 and 784. It learns on the smallest images and continues from there on the larger ones, its positions
interpolated. On the queries, keys and values of held-out images all mechanisms are then compared with softmax; the
error is averaged over layers, heads and images. RA takes one sample, and "mean value" is the error of giving every
query the same average, which attention must beat.

    python -m scripts.literature.approximation_error --out runs/approximation_error          # ten minutes on one core
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.build import build_kernel
from molflt.attention.kernels import kernelised_attention
from molflt.attention.kernels.lara import LaraKernel
from molflt.attention.randomised import randomised_attention
from molflt.data.progress import track
from scripts import results
from scripts.literature import digits
from scripts.literature.sequence.layer import SequenceAttention
from scripts.literature.sequence.segments import Segments
from scripts.literature.sequence_model import SequenceTransformer

DIM, HEADS, LAYERS, FFN, BATCH, HELD_OUT = 64, 4, 2, 128, 16, 297
CONSTANT = ("ra", "mean value")
"""Lines in the figure: they have no number of samples."""


class RecordedAttention(SequenceAttention):
    """Softmax attention that keeps the queries, keys and values of its last call."""

    seen: tuple[Tensor, Tensor, Tensor]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`SequenceAttention`."""
        self.seen = query.detach(), key.detach(), value.detach()
        return functional.scaled_dot_product_attention(query, key, value, scale=1.0)


def tokens(images: Tensor, side: int) -> Tensor:
    """A token for every pixel, in raster order: (batch, side², 1), in standard deviations."""
    large = functional.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    return (large.flatten(1)[..., None] - 0.3) / 0.35


def transformer(side: int, start: SequenceTransformer | None) -> SequenceTransformer:
    """A new model, or one for larger images that begins where another ended."""
    attention: list[SequenceAttention] = [RecordedAttention(DIM, HEADS, causal=False) for _ in range(LAYERS)]
    model = SequenceTransformer(attention, nn.Linear(1, DIM), DIM, FFN, side * side, 10, pooled=True)
    # Positions as large as the pixels: a mean over tokens that hardly know their place learns nothing for long.
    nn.init.normal_(model.positions)
    if start is not None:
        state = start.state_dict()
        old = round(len(state["positions"]) ** 0.5)
        grid = state["positions"].T.reshape(1, DIM, old, old)
        larger = functional.interpolate(grid, size=(side, side), mode="bilinear", align_corners=False)
        model.load_state_dict(state | {"positions": larger.flatten(2)[0].T})
    return model


def fit(model: SequenceTransformer, images: Tensor, labels: Tensor, side: int, steps: int, rate: float) -> None:
    """AdamW with warm-up over a tenth of the steps and cosine decay."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=max(2, steps), pct_start=0.1)
    for _ in track(range(steps), f"training, {side}×{side}", total=steps):
        batch = torch.randint(len(images), (BATCH,))
        optimiser.zero_grad()
        functional.cross_entropy(model(tokens(images[batch], side)), labels[batch]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()


def estimates(
    query: Tensor, key: Tensor, value: Tensor, counts: list[int], seed: int
) -> dict[tuple[str, int], Tensor]:
    """The outputs of all mechanisms; (mechanism, samples) → (1, heads, n, head_dim)."""
    generator = torch.Generator().manual_seed(seed)
    near = query.new_ones(1, 1, query.shape[-2], query.shape[-2])
    found = {
        ("ra", 1): randomised_attention(query, key, value, near, None, 1, "exact", draw=True),
        ("mean value", 0): value.mean(dim=-2, keepdim=True),
    }
    for m in counts:
        performer = build_kernel("posrf-iid", query.shape[-1], HEADS, m, 0, generator)
        found["performer", m] = kernelised_attention(performer, query, key, value, None)
        lara = LaraKernel(Segments(m))
        found["lara", m] = kernelised_attention(lara.train(), query, key, value, None)
        found["lara, at the means", m] = kernelised_attention(lara.eval(), query, key, value, None)
    return found


@torch.no_grad()
def errors(model: SequenceTransformer, images: Tensor, side: int, counts: list[int]) -> dict[tuple[str, int], Any]:
    """(mechanism, samples) → (images,) mean squared errors, averaged over layers and heads."""
    found: dict[tuple[str, int], list[float]] = {}
    for index, image in enumerate(track(images, f"errors, {side}×{side}", total=len(images))):
        model(tokens(image[None], side))
        for layer, block in enumerate(model.blocks):
            query, key, value = block.attention.seen
            exact = functional.scaled_dot_product_attention(query, key, value, scale=1.0)
            for case, estimate in estimates(query, key, value, counts, LAYERS * index + layer).items():
                found.setdefault(case, []).append(float((estimate - exact).square().mean()))
    return {case: np.array(values).reshape(-1, LAYERS).mean(axis=1) for case, values in found.items()}


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """A panel for every length, as in the paper; bands are quartiles over the images."""
    lengths = list(dict.fromkeys(row["length"] for row in rows))
    figure = Figure(figsize=(3.6 * len(lengths), 3.4), layout="constrained")
    for axes, length in zip(figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0], lengths, strict=True):
        for i, name in enumerate(dict.fromkeys(row["attention"] for row in rows)):
            mine = [row for row in rows if (row["attention"], row["length"]) == (name, length)]
            if name in CONSTANT:
                axes.axhline(mine[0]["mse"], color=f"C{i}", linestyle="--" if name == "ra" else ":", label=name)
                continue
            m = [row["samples"] for row in mine]
            axes.plot(m, [row["mse"] for row in mine], color=f"C{i}", marker=".", label=name)
            low, high = ([row[key] for row in mine] for key in ("mse_low", "mse_high"))
            axes.fill_between(m, low, high, color=f"C{i}", alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="samples", title=f"{length} tokens")
        if length == lengths[0]:
            axes.set_ylabel("mean squared error")
            axes.legend(fontsize=7)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "figure and table")
    parser.add_argument("--side", type=int, nargs="+", default=[14, 24, 28], help="of the images, increasing")
    parser.add_argument("--steps", type=int, default=600, help="of training on the smallest images")
    parser.add_argument("--further-steps", type=int, default=100, help="on every larger size")
    parser.add_argument("--images", type=int, default=16, help="held-out images to compare on")
    parser.add_argument("--samples", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.quick:
        options.side, options.steps, options.further_steps, options.images, options.samples = [8], 3, 1, 2, [4, 64]
    torch.manual_seed(options.seed)
    images, labels = digits.images()
    images = images.view(-1, 1, digits.SIDE, digits.SIDE)
    rows: list[dict[str, Any]] = []
    model = None
    for side in options.side:
        first = model is None
        model = transformer(side, model)
        steps, rate = (options.steps, 2e-3) if first else (options.further_steps, 5e-4)
        fit(model, images[HELD_OUT:], labels[HELD_OUT:], side, steps, rate)
        with torch.no_grad():
            parts = [model(tokens(part, side)).argmax(dim=1) for part in images[:HELD_OUT].split(BATCH)]
        accuracy = float((torch.cat(parts) == labels[:HELD_OUT]).float().mean())
        print(f"{side}×{side}: {100 * accuracy:.1f} % of the held-out digits right", flush=True)
        # A segment needs a token.
        counts = [m for m in options.samples if m <= side * side]
        for (name, m), found in errors(model, images[: options.images], side, counts).items():
            low, high = (float(x) for x in np.percentile(found, [25, 75]))
            row = {"length": side * side, "attention": name, "samples": m, "mse": float(found.mean())}
            rows.append(row | {"mse_low": low, "mse_high": high, "accuracy": accuracy})
    path = options.out / "approximation_error.csv"
    results.record(path, rows, {key: value for key, value in vars(options).items() if key != "out"})
    plot(path.with_suffix(".png"), rows)
    print(results.table(rows))


if __name__ == "__main__":
    main()
