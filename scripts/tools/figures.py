"""The figures of docs/design.md.

python -m scripts.tools.figures          # into docs/figures, about a minute
python -m scripts.benchmarks.estimator   # the fourth, estimator.png
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from molflt.attention.build import build_kernel
from molflt.attention.concat import ConcatAttention, ConcatContext
from molflt.attention.geometry import geometry_of_batch
from molflt.attention.layout import Plan
from scripts import results
from scripts.benchmarks.estimator import (
    ESTIMATORS,
    N_ATOMS,
    SPREAD,
    basis,
    displacements,
    exact,
    quadrature_mask,
    sampled_mask,
    sampled_method,
    trapezoid,
)

R = 16
N_FEATURES = 64
N_TURNS = 20
FOLDER = results.DOCS / "figures"


def mask_figure() -> Figure:
    """F along a line, and what the estimators make of it with 16 frequencies."""
    distance = torch.linspace(0, 14, 200, dtype=torch.float64)
    delta = torch.stack([distance, 0 * distance, 0 * distance], dim=-1)
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(distance, exact(delta), color="black", linewidth=2.5, label="f")
    for name, options in ESTIMATORS.items():
        axes.plot(distance, sampled_mask(delta, R, options, seed=3), label=name)
    axes.plot(distance, quadrature_mask(delta, R, 1e-4), "--", color="tab:gray", label="quadrature")
    axes.set(xlabel="|Δ| / Å", ylabel="f", title=f"r = {R}, one draw, along one direction", ylim=(-0.6, 1.7))
    axes.legend(frameon=False, ncols=2)
    return figure


def spectrum_figure() -> Figure:
    """The radial weight 4πξ²|g|, the proposals, and the quadrature's nodes."""
    gaussians, weights = basis()
    xi = torch.linspace(1e-3, 0.7, 400, dtype=torch.float64)
    shell = 4 * math.pi * xi**2
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(xi, shell * (gaussians.spectra(xi) @ weights), color="black", linewidth=2.5, label="4πξ² g")
    mixture = torch.zeros_like(xi)
    for scale in sampled_method(R, ESTIMATORS["+ averaged"], seed=0).scales.detach():
        density = shell * (2 * math.pi * scale**2) ** -1.5 * torch.exp(-(xi**2) / (2 * scale**2))
        mixture += density / R
        axes.plot(xi, density, color="tab:blue", alpha=0.15)
    axes.plot(xi, mixture, color="tab:blue", label=f"4πξ² p, mixture of the {R} proposals (faint)")
    positions = trapezoid(R, 1e-4)[0]
    axes.plot(positions, 0 * positions, "|", color="tab:red", markersize=12, label=f"{R} nodes of the quadrature")
    axes.set(xlabel="|ξ| / (1/Å)", ylabel="Å", xlim=(-0.02, 0.72), ylim=(-0.5, 15.5))
    axes.axhline(0, color="black", linewidth=0.5)
    axes.legend(frameon=False)
    return figure


def relative_change(after: Tensor, before: Tensor) -> float:
    """Frobenius norm of the change, in units of the matrix itself."""
    return float((after - before).norm() / before.norm())


def concatenated_attention(positions: Tensor) -> Tensor:
    """The attention matrix of the published Algorithm 1, (n, n), of atoms at ``positions``.

    One head whose values are the identity, whose queries and keys are standard normal, and whose RPE is f by the
    paper's own densities.
    """
    n = len(positions)
    gaussians, weights = basis()
    random = torch.Generator().manual_seed(0)
    kernel = build_kernel("posrf-orf", n + 2 * R, 1, N_FEATURES, 0, random)
    layer = ConcatAttention(n, 1, len(gaussians), kernel, 0.0).double()
    atoms = SimpleNamespace(
        positions=positions,
        atomic_numbers=torch.full((n,), 6),
        batch=torch.zeros(n, dtype=torch.long),
        cell=torch.zeros(1, 3, 3),
        pbc=torch.zeros(1, 3, dtype=torch.bool),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        cell_offsets=torch.zeros(0, 3),
    )
    geometry = geometry_of_batch(atoms, Plan(1.0)(atoms), torch.float64)
    method = sampled_method(R, ESTIMATORS["own density (paper)"], seed=0)
    identity = torch.eye(n, dtype=torch.float64)
    with torch.no_grad():
        query_and_key = torch.randn(2 * n, n, generator=random, dtype=torch.float64)
        layer.projection.weight.copy_(torch.cat([query_and_key, identity]))
        layer.output.weight.copy_(identity)
        layer.projection.bias.zero_()
        layer.output.bias.zero_()
        layer.rpe_weights.copy_(weights[:, None])
        phase = 2 * math.pi * positions @ method.frequencies().T
        waves = torch.cat([phase.cos(), phase.sin()], dim=1)
        return layer(identity, geometry, ConcatContext(waves, method.coefficients(gaussians)))


def rotation_figure() -> tuple[Figure, dict[str, float]]:
    """Changes of masks and of the published attention as 40 atoms turn, and their medians."""
    x = SPREAD * torch.randn(N_ATOMS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    delta = displacements(0)
    random = np.random.default_rng(0)
    orthogonal = [np.linalg.qr(random.normal(size=(3, 3)))[0] for _ in range(N_TURNS)]
    turns = [torch.from_numpy(q * np.linalg.det(q)) for q in orthogonal]
    shifts = torch.from_numpy(random.normal(size=(N_TURNS, 3)))
    shifts = shifts / shifts.norm(dim=1, keepdim=True)
    found: dict[str, list[float]] = {}
    for name, options in ESTIMATORS.items():
        before = sampled_mask(delta, R, options, seed=0)
        found[name] = [relative_change(sampled_mask(delta @ q, R, options, seed=0), before) for q in turns]
    before = quadrature_mask(delta, R, 1e-4)
    found["quadrature"] = [relative_change(quadrature_mask(delta @ q, R, 1e-4), before) for q in turns]
    before = concatenated_attention(x)
    found["Algorithm 1, turned"] = [relative_change(concatenated_attention(x @ q), before) for q in turns]
    found["Algorithm 1, shifted 1 Å"] = [relative_change(concatenated_attention(x + t), before) for t in shifts]
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for k, values in enumerate(found.values()):
        axes.plot(np.maximum(values, 1e-17), [k] * len(values), "o", alpha=0.4)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel=f"relative change of mask or attention matrix, {N_TURNS} rotations or shifts")
    return figure, {name: float(np.median(values)) for name, values in found.items()}


def main() -> None:
    """Draw all of them."""
    parser = results.parser(__doc__, "the figures; default: docs/figures", required=False)
    out = parser.parse_args().out or FOLDER
    results.save(mask_figure(), out / "mask.png")
    results.save(spectrum_figure(), out / "spectrum.png")
    figure, medians = rotation_figure()
    results.save(figure, out / "rotation.png")
    for name, median in medians.items():
        print(f"{name:<28}{median:.1e}")


if __name__ == "__main__":
    main()
