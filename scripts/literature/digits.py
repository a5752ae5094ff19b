"""FLT Table 2 in miniature: handwritten digits, one token for every pixel of 8 by 8.

Trains the same small transformer (3 layers, width 48, 4 heads, mean pooled, learned absolute positions) on 1,437
images with Performer, cosFormer and FLT with a Gaussian mixture in the plane, three seeds. The table has the accuracy
on the 360 other images, of which one is 0.28 %; the paper's order is Performer < cosFormer < FLT. FLT has the learned
ReLU features of appendix B.2, and so has Performer, which then differs by the RPE alone. cosFormer counts distances
along the raster order. AdamW with a weight decay of 0.05 and a cosine, as in the paper's Table 5; no augmentation, no
dropout. Finished runs are kept. Needs scikit-learn.

    python -m scripts.literature.digits --out runs/digits
    python -m scripts.literature.digits --out runs/digits --attention performer flt-gaussian --seeds 0 --steps 100
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts import results
from scripts.literature import training
from scripts.literature.sequence_model import SequenceTransformer, attention_layers

PAPER = {"performer": (75.1, 55.0, 91.1), "cosformer": (76.2, 55.6, 91.6), "flt-gaussian": (77.4, 56.0, 92.1)}
"""Per cent of ImageNet, Places365 and Fashion-MNIST, FLT Table 2, worst first."""
KERNEL = {"performer": "relu", "cosformer": "", "flt-gaussian": "relu", "log-linear": "posrf-orf", "softmax": ""}
SIDE, CLASSES, N_TRAIN, SPLIT_SEED, BATCH = 8, 10, 1437, 0, 32
LAYERS, DIM, HEADS, N_FEATURES, N_FREQUENCIES = 3, 48, 4, 32, 16
"""The paper has 128 features and 64 frequencies."""


def images() -> tuple[Tensor, Tensor]:
    """Pixels from 0 to 1, (1797, 64, 1), in raster order, and digits, (1797,)."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise SystemExit("error: this needs the digits of scikit-learn; pip install scikit-learn") from None
    data = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(data.target))
    pixels = torch.from_numpy(data.data[order] / 16).to(torch.get_default_dtype())
    return pixels[..., None], torch.from_numpy(data.target[order]).to(torch.int64)


def judge(attention: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one model: accuracy in per cent, and the other columns of :func:`training.fit`."""
    pixels, digits = images()
    torch.manual_seed(seed)
    counts = N_FEATURES, N_FREQUENCIES, seed, KERNEL[attention]
    layers = attention_layers(attention, DIM, HEADS, LAYERS, (SIDE, SIDE), False, *counts)
    model = SequenceTransformer(layers, nn.Linear(1, DIM), DIM, 2 * DIM, SIDE * SIDE, CLASSES, pooled=True)
    # The order of the images depends on the seed alone: every attention sees the same batches.
    random, waiting = torch.Generator().manual_seed(seed), list[Tensor]()

    def loss() -> Tensor:
        if not waiting:
            waiting.extend(reversed(torch.randperm(N_TRAIN, generator=random).split(BATCH)))
        part = waiting.pop()
        # Over the full size also where a batch has less, so that every image of an epoch counts the same.
        return functional.cross_entropy(model(pixels[part]), digits[part], reduction="sum") / BATCH

    def accuracy() -> float:
        model.eval()
        with torch.no_grad():
            parts = [model(part).argmax(dim=-1) for part in pixels[N_TRAIN:].split(BATCH)]
        model.train()
        return 100 * float((torch.cat(parts) == digits[N_TRAIN:]).double().mean())

    how: dict[str, Any] = {"lr": 2e-3, "warm_up": 0.2, "weight_decay": 0.05}
    return training.fit(model, loss, accuracy, steps, f"{attention}, seed {seed}", **how)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "runs and tables")
    parser.add_argument("--attention", nargs="+", default=list(PAPER), choices=list(KERNEL))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps = [0], 2
    points = [{"attention": name, "seed": seed} for seed, name in product(options.seeds, options.attention)]
    rows = []
    for name, mine in training.runs(options.out, points, partial(judge, steps=options.steps), options.steps).items():
        each = [float(run["value"]) for run in mine]
        mean, spread = training.mean_spread(each)
        row = {"attention": name, "kernel": KERNEL[name], "seeds": len(mine), "steps": options.steps}
        row |= {"accuracy": mean, "spread": spread, "parameters": mine[0]["parameters"], results.EACH: each}
        row |= {"seconds_per_step": training.milliseconds(mine) / 1e3}
        published = PAPER.get(name, (math.nan,) * 3)
        rows.append(row | dict(zip(("imagenet", "places365", "fashion_mnist"), published, strict=True)))
    results.record(options.out / "digits.csv", rows, {"steps": options.steps})
    print(results.table(rows))


if __name__ == "__main__":
    main()
