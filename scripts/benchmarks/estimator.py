"""Errors of estimators of the RPE mask against the number of frequencies.

40 atoms from N(0, 2.5² I) Å; f with amplitudes 0.8, −0.5, 0.6, 0.3 and widths 1, 1.5, 2.5, 4 Å; the estimator with
the scales and quantiles with which a model begins. Prints the median and the quartiles over seeds of the relative
root-mean-square error of the mask, and writes docs/figures/estimator.csv and estimator.png.

    python -m scripts.benchmarks.estimator
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from molflt.attention.far.members import TAPER, GaussianBasis, GaussianRPE, cutoff_factor
from molflt.attention.far.undamped import UndampedMethod
from molflt.attention.smooth import sinc_of_square, taper
from molflt.data.progress import track
from scripts import results

AMPLITUDES = torch.tensor([0.8, -0.5, 0.6, 0.3], dtype=torch.float64)
WIDTHS = torch.tensor([1.0, 1.5, 2.5, 4.0], dtype=torch.float64)
N_ATOMS, SPREAD = 40, 2.5

ESTIMATORS: dict[str, dict[str, Any]] = {
    "own density (paper)": {"directions": "random", "radii": "random", "proposal": "own"},
    "balance heuristic": {"directions": "random", "radii": "random", "proposal": "mixture"},
    "+ averaged": {"directions": "averaged", "radii": "random", "proposal": "mixture"},
    "+ stratified": {"directions": "averaged", "radii": "stratified", "proposal": "mixture"},
}
QUADRATURE = "quadrature (best ε)"


def displacements(seed: int) -> Tensor:
    """(n, n, 3) Å."""
    x = SPREAD * torch.randn(N_ATOMS, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x[:, None] - x[None]


def basis() -> tuple[GaussianBasis, Tensor]:
    """The Gaussians, and the weights that give the amplitudes above."""
    found = GaussianBasis(WIDTHS)
    return found, AMPLITUDES / found.amplitudes


def exact(delta: Tensor) -> Tensor:
    """F of displacements (..., 3)."""
    gaussians, weights = basis()
    return gaussians.on_pairs(delta.square().sum(-1)).movedim(0, -1) @ weights


def sampled_method(r: int, options: dict[str, Any], seed: int) -> UndampedMethod:
    """The paper's estimator as it starts out in a model."""
    rpe = GaussianRPE(len(WIDTHS), float(WIDTHS[0]), float(WIDTHS[-1]))
    return UndampedMethod(rpe, r, spectrum="gaussian", periodic_radius=1.0, seed=seed, **options).double()


def sampled_mask(delta: Tensor, r: int, options: dict[str, Any], seed: int) -> Tensor:
    """f̂ of displacements (..., 3)."""
    gaussians, weights = basis()
    method = sampled_method(r, options, seed)
    with torch.no_grad():
        xi, a = method.frequencies(), method.coefficients(gaussians) @ weights
        if options["directions"] == "averaged":
            kappa = 2 * math.pi * xi.norm(dim=1)
            return sinc_of_square(kappa**2 * delta.square().sum(-1)[..., None]) @ a
        return torch.cos(2 * math.pi * delta @ xi.T) @ a


def trapezoid(r: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Nodes ξ of the quadrature, (r,) 1/Å, and weights, (r, n_basis), for a number of them."""
    end = cutoff_factor(tolerance) / (2 * math.pi * float(WIDTHS[0]))
    spacing = TAPER * end / (r + 1)
    xi = spacing * torch.arange(1, r + 1, dtype=torch.float64)
    radial = spacing * 4 * math.pi * xi**2 * taper(xi, end, TAPER * end)
    return xi, radial[:, None] * basis()[0].spectra(xi)


def quadrature_mask(delta: Tensor, r: int, tolerance: float) -> Tensor:
    """F by the trapezoid rule with r nodes that reach as far as ``tolerance`` asks."""
    xi, node_weights = trapezoid(r, tolerance)
    kappa = 2 * math.pi * xi
    return sinc_of_square(kappa**2 * delta.square().sum(-1)[..., None]) @ (node_weights @ basis()[1])


def errors(r: int, seeds: range) -> dict[str, list[float]]:
    """Relative root-mean-square error of the mask for each seed, by estimator."""
    found: dict[str, list[float]] = {name: [] for name in (*ESTIMATORS, QUADRATURE)}
    for seed in seeds:
        delta = displacements(seed)

        def relative(mask: Tensor, right: Tensor = exact(delta)) -> float:
            return float((mask - right).square().mean().sqrt() / right.square().mean().sqrt())

        for name, options in ESTIMATORS.items():
            found[name].append(relative(sampled_mask(delta, r, options, seed)))
        tries = [quadrature_mask(delta, r, 10.0**-d) for d in range(1, 15)]
        found[QUADRATURE].append(min(relative(mask) for mask in tries))
    return found


def plot(path: Path, counts: list[int], table: dict[str, list[list[float]]]) -> None:
    """Medians and quartiles against r."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, rows in table.items():
        low, median, high = np.percentile(np.array(rows), [25, 50, 75], axis=1)
        axes.plot(counts, median, marker="o", label=name)
        axes.fill_between(counts, low, high, alpha=0.2)
    axes.set(xscale="log", yscale="log", xlabel="number of frequencies r", ylabel="relative error of the mask")
    axes.set_xticks(counts, [str(r) for r in counts])
    axes.minorticks_off()
    axes.legend(frameon=False)
    results.save(figure, path)


def main() -> None:
    """Measure, print and draw."""
    parser = results.parser(__doc__, kept=results.DOCS / "figures" / "estimator.csv")
    options = parser.parse_args()
    counts, seeds = ([8, 16], 2) if options.quick else ([16, 64, 256, 1024], 30)
    table: dict[str, list[list[float]]] = {name: [] for name in (*ESTIMATORS, QUADRATURE)}
    for r in track(counts, "measuring", total=len(counts)):
        for name, values in errors(r, range(seeds)).items():
            table[name].append(values)
    rows = []
    for name, found in table.items():
        for r, values in zip(counts, found, strict=True):
            low, median, high = (float(x) for x in np.percentile(values, [25, 50, 75]))
            row = {"estimator": name, "r": r, "lower_quartile": low, "median": median, "upper_quartile": high}
            rows.append({**row, "seeds": seeds})
    print(results.table(rows))
    results.record(options.results, rows, {"atoms": N_ATOMS})
    plot(options.results.with_suffix(".png"), counts, table)


if __name__ == "__main__":
    main()
