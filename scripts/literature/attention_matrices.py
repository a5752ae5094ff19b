"""FLT Fig. 5: attention matrices of a trained FLT model with local RPE, head by head, and how local they are.

Reads the model that language_model.py left, writes the matrices of its first layer for a window of held-out text
out in full, and prints the mean attention on the nearest and on the farthest tenth of the tokens seen.

    python -m scripts.literature.attention_matrices --runs runs/language --out runs/language
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor

from molflt.attention.kernels import stable_features
from scripts import results
from scripts.literature.byte_text import LENGTH, corpus, windows
from scripts.literature.language_model import HEADS, language_model
from scripts.literature.sequence.layer import KernelisedSequenceAttention


def first_layer_matrices(runs: Path, name: str, seed: int, n_windows: int) -> Tensor:
    """(n_windows, heads, n, n): rows sum to one over the tokens before and the token itself."""
    model = language_model(name, seed)
    model.load_state_dict(load_file(runs / name / str(seed) / "model.safetensors"))
    model.eval()
    _, validation = corpus()
    starts = torch.linspace(0, len(validation) - LENGTH - 2, n_windows).to(torch.int64)
    tokens, _ = windows(validation, starts)
    block = model.blocks[0]
    layer: KernelisedSequenceAttention = block.attention
    with torch.no_grad():
        x = block.attention_norm(model.embedding(tokens) + model.positions)
        query, key, _ = layer.projection(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scale = layer.head_dim**-0.25
        query_features, key_features = layer.kernel(query * scale, key * scale)
        phi_q, phi_k = stable_features(query_features, key_features, None)
        weights = (phi_q @ phi_k.transpose(-1, -2)).tril()
    return weights / weights.sum(dim=-1, keepdim=True)


def near_and_far(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Mean attention per head on the nearest and the farthest tenth of the tokens a query sees, (heads,) each.

    The nearest include the query itself. Queries that see fewer than ten tokens are left out.
    """
    near, far = [], []
    for i in range(9, LENGTH):
        tenth = (i + 1) // 10
        row = matrices[:, :, i, : i + 1]
        near.append(row[..., -tenth:].sum(dim=-1).mean(dim=0))
        far.append(row[..., :tenth].sum(dim=-1).mean(dim=0))
    return torch.stack(near).mean(dim=0), torch.stack(far).mean(dim=0)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "figure and table")
    parser.add_argument("--runs", type=Path, required=True, help="folder that language_model.py wrote")
    parser.add_argument("--attention", default="flt-local", choices=["flt-local", "flt-gaussian", "performer"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    weights = options.runs / options.attention / str(options.seed) / "model.safetensors"
    if not weights.exists():
        parser.error(
            f"{weights} is not there; python -m scripts.literature.language_model --out {options.runs} makes it"
        )
    matrices = first_layer_matrices(options.runs, options.attention, options.seed, n_windows=32)
    near, far = near_and_far(matrices)
    figure = Figure(figsize=(2.3 * HEADS, 2.6), layout="constrained")
    for h, axes in enumerate(figure.subplots(1, HEADS)):
        axes.imshow(matrices[16, h].sqrt(), cmap="viridis")
        axes.set(title=f"near {near[h]:.2f}, far {far[h]:.3f}", xticks=[], yticks=[])
    name = f"attention_matrices_{options.attention}"
    results.save(figure, options.out / f"{name}.png")
    rows = [{"head": h, "nearest_tenth": float(near[h]), "farthest_tenth": float(far[h])} for h in range(HEADS)]
    results.record(options.out / f"{name}.csv", rows, {"seed": options.seed})
    print(f"nearest tenth {float(near.mean()):.3f}, farthest tenth {float(far.mean()):.3f} (FLT: 0.279 and 0.068)")


if __name__ == "__main__":
    main()
