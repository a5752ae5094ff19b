"""FLT Fig. 4: local RPE functions on the plane, and what random frequencies reconstruct of the continuous ones.

The indicator of a box and its continuous relatives with the same support, each one at the origin: a hat on every axis
(power 2, the function of the paper's right panel) and a smooth spline (power 3). Below, Σ_k a_k cos(2πξ_k·Δ) of
the continuous one with few and with many random frequencies, and its root mean square error over the square shown.
The indicator has no such reconstruction: the integral of |g| diverges.

    python -m scripts.literature.local_rpe_shapes --out runs/local_rpe_shapes              # two minutes on one core
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from molflt.data.progress import track
from scripts import results
from scripts.literature.local_box import LocalBox

POWERS = (2, 3)
SHOWN = (64, 1024)
"""Frequencies of the two reconstructions in the figure."""
EXTENT = 2.0
"""Half the side of the square shown, in units of the reach on either axis."""


def local_rpe(reach: list[float], power: int) -> LocalBox:
    """The function that ends at reach_j on axis j, whatever the power: LocalBox ends at power times its radius."""
    return LocalBox([v / power for v in reach], [power] * 2)


def square(reach: list[float], points: int) -> Tensor:
    """Displacements on a grid, (points, points, 2)."""
    axes = [torch.linspace(-EXTENT * v, EXTENT * v, points, dtype=torch.float64) for v in reach]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


def reconstruction(spectrum: LocalBox, grid: Tensor, n_frequencies: int, seed: int) -> Tensor:
    """f̂ on the grid: the displacements as queries, the origin as the only key."""
    xi = spectrum.sample(n_frequencies, torch.Generator().manual_seed(seed))
    query, key = spectrum.features(grid.reshape(-1, 2), torch.zeros_like(grid[0, :1]), xi)
    return (query @ key.transpose(0, 1)).reshape(grid.shape[:2])


def measure(reach: list[float], points: int, counts: list[int], seeds: int) -> list[dict[str, Any]]:
    """A row for every power and number of frequencies r; errors are in units of f(0) = 1."""
    grid, rows = square(reach, points), []
    cases = [(power, r) for power in POWERS for r in counts]
    for power, r in track(cases, "local RPE", total=len(cases)):
        spectrum = local_rpe(reach, power)
        exact = spectrum.value(grid)
        error = torch.stack([reconstruction(spectrum, grid, r, seed) - exact for seed in range(seeds)])
        rms = error.square().mean(dim=(1, 2)).sqrt().numpy()
        low, middle, high = np.percentile(rms, [25, 50, 75])
        rows.append(
            {
                "power": power,
                "frequencies": r,
                "seeds": seeds,
                "rms_error": float(middle),
                "rms_error_low": float(low),
                "rms_error_high": float(high),
                "rms_error_shown": float(rms[0]),
                "largest_error": float(error.abs().amax(dim=(1, 2)).median()),
                "rms_of_f": float(exact.square().mean().sqrt()),
            }
        )
    return rows


def plot(path: Path, rows: list[dict[str, Any]], reach: list[float], points: int, power: int) -> None:
    """Closed forms above, reconstructions with seed 0 and the error against r below."""
    grid = square(reach, points)
    spectra = {k: local_rpe(reach, k) for k in (1, *POWERS)}
    figure = Figure(figsize=(11, 7), layout="constrained")

    def surface(place: int, values: Tensor, title: str) -> None:
        axes: Any = figure.add_subplot(2, 3, place, projection="3d")
        # All points: with the default stride the edges of the box would be slopes.
        axes.plot_surface(grid[..., 0], grid[..., 1], values, cmap="viridis", rcount=points, ccount=points)
        axes.set(xlabel="Δ₁", ylabel="Δ₂", zlim=(-0.4, 1.2), title=title)

    titles = {1: "indicator (power 1)", 2: "hat (power 2)", 3: "spline (power 3)"}
    for place, (k, spectrum) in enumerate(spectra.items(), start=1):
        surface(place, spectrum.value(grid), titles[k])
    exact = spectra[power].value(grid)
    for place, r in enumerate(SHOWN, start=4):
        found = reconstruction(spectra[power], grid, r, seed=0)
        rms = float((found - exact).square().mean().sqrt())
        surface(place, found, f"{titles[power]}, r = {r}: rms error {rms:.3f}")
    axes = figure.add_subplot(2, 3, 6)
    for k in POWERS:
        mine = [row for row in rows if row["power"] == k]
        counts = [row["frequencies"] for row in mine]
        (line,) = axes.plot(counts, [row["rms_error"] for row in mine], marker=".", label=titles[k])
        low, high = ([row[name] for row in mine] for name in ("rms_error_low", "rms_error_high"))
        axes.fill_between(counts, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.axhline(mine[0]["rms_of_f"], color=line.get_color(), linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="frequencies r", ylabel="rms error (dotted: rms of f)")
    axes.legend(frameon=False)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "figure and table")
    parser.add_argument("--reach", type=float, nargs=2, default=[1.0, 1.0], help="where f ends on either axis")
    parser.add_argument("--power", type=int, default=2, choices=POWERS, help="of the reconstruction in the figure")
    parser.add_argument("--frequencies", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    parser.add_argument("--points", type=int, default=81, help="of the grid on one axis")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    with torch.no_grad():
        rows = measure(options.reach, options.points, options.frequencies, options.seeds)
        plot(options.out / "local_rpe_shapes.png", rows, options.reach, options.points, options.power)
    conditions = {"reach": options.reach, "points": options.points, "extent": EXTENT, "power_shown": options.power}
    results.record(options.out / "local_rpe_shapes.csv", rows, conditions)
    print(results.table(rows))


if __name__ == "__main__":
    main()
