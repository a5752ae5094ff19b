"""The figures of docs/attention.md.

python scripts/make_attention_figures.py          # into docs/figures, about two minutes
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from bench_estimator import ESTIMATORS, WIDTHS, basis, displacements, quadrature_mask, sampled_mask
from matplotlib.figure import Figure
from torch import Tensor

from molflt.atomic_file import atomic_file

R = 16
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"


def save(figure: Figure, path: Path) -> None:
    """Atomically, as PNG."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
    print(path)


def exact(delta: Tensor) -> Tensor:
    """F of displacements (..., 3)."""
    gaussians, weights = basis()
    return gaussians.values(delta.square().sum(-1)) @ weights


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
    for width in WIDTHS:
        variance = (1 / (2 * math.pi * width)) ** 2
        density = shell * (2 * math.pi * variance) ** -1.5 * torch.exp(-(xi**2) / (2 * variance))
        mixture += density / len(WIDTHS)
        axes.plot(xi, density, color="tab:blue", alpha=0.3)
    axes.plot(xi, mixture, color="tab:blue", label="4πξ² p, mixture of the four proposals (faint)")
    axes.set(xlabel="|ξ| / (1/Å)", ylabel="Å", ylim=(-0.5, 12))
    axes.axhline(0, color="black", linewidth=0.5)
    axes.legend(frameon=False)
    return figure


def rotation_figure() -> tuple[Figure, dict[str, float]]:
    """How far the mask moves when 40 atoms are turned, relative to the mask's size."""
    delta, size = displacements(0), float(exact(displacements(0)).square().mean().sqrt())
    random = np.random.default_rng(0)
    turns = [np.linalg.qr(random.normal(size=(3, 3)))[0] for _ in range(20)]
    found: dict[str, list[float]] = {}
    for name, options in ESTIMATORS.items():
        before = sampled_mask(delta, R, options, seed=0)
        found[name] = [
            float((sampled_mask(delta @ torch.from_numpy(q), R, options, seed=0) - before).square().mean().sqrt())
            / size
            for q in turns
        ]
    before = quadrature_mask(delta, R, 1e-4)
    found["quadrature"] = [
        float((quadrature_mask(delta @ torch.from_numpy(q), R, 1e-4) - before).square().mean().sqrt()) / size
        for q in turns
    ]
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for k, values in enumerate(found.values()):
        axes.plot(np.maximum(values, 1e-17), [k] * len(values), "o", alpha=0.4)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="change of the mask under 20 rotations, relative to the mask")
    return figure, {name: float(np.median(values)) for name, values in found.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    save(mask_figure(), options.out / "mask.png")
    save(spectrum_figure(), options.out / "spectrum.png")
    figure, medians = rotation_figure()
    save(figure, options.out / "rotation.png")
    for name, median in medians.items():
        print(f"  {name:<24}{median:.1e}")
    bench = Path(__file__).with_name("bench_estimator.py")
    subprocess.run([sys.executable, str(bench), "--out", str(options.out)], check=True)


if __name__ == "__main__":
    main()
