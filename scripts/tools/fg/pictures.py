"""Pictures of ``pretrained:fg``: predictions on ``val``, and an answer of ``adsorb``.

python -m scripts.tools.fg.pictures            # docs/figures/fg_parity.png and fg_adsorb.png, two minutes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.data.colors import jmol_colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from molflt.adsorption import Adsorption, adsorb
from molflt.data.ase import to_atoms
from molflt.prediction.evaluate import Evaluation, evaluate
from molflt.prediction.members import load_members
from molflt.prediction.model import Model
from molflt.vocabulary import TAG_ADSORBATE
from scripts import results
from scripts.tools.fg.ship import VAL

MOLECULE, METALS = "CCO", ("Pt", "Pd", "Cu", "Ag")
FOLDER = results.DOCS / "figures"
_BLUE, _GREY = "#0072b2", "#6b7682"


def parity(found: Evaluation) -> Figure:
    """Predicted against DFT energies, with ± as bars."""
    figure = Figure(figsize=(4.4, 4.4), layout="constrained")
    axes = figure.subplots()
    both = np.concatenate([found.expected, found.predicted])
    ends = both.min() - 0.1, both.max() + 0.1
    axes.plot(ends, ends, color=_GREY, linewidth=0.8)
    bars = {"ecolor": _BLUE, "elinewidth": 0.5, "alpha": 0.35}
    axes.errorbar(found.expected, found.predicted, yerr=found.uncertainty_eV, fmt="none", **bars)
    axes.plot(found.expected, found.predicted, "o", color=_BLUE, markersize=3, markeredgewidth=0, alpha=0.6)
    axes.set(xlabel="DFT / eV", ylabel="pretrained:fg, from the initial geometry / eV")
    axes.set(xlim=ends, ylim=ends)
    axes.set_title(f"val, which helped to choose the model: MAE {found.mae:.3f} eV", fontsize=9)
    axes.set_aspect("equal")
    return figure


def answer(found: Sequence[Adsorption]) -> Figure:
    """Energies of a molecule on metals, above their structures from two sides."""
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    chart, *views = figure.subplot_mosaic(
        [["chart"] * len(found), [f"side {k}" for k in range(len(found))], [f"top {k}" for k in range(len(found))]],
        height_ratios=(1.6, 1.0, 1.0),
    ).values()
    names = [one.surface for one in found]
    chart.bar(
        names, [one.energy for one in found], yerr=[one.uncertainty_eV for one in found], color=_BLUE, ecolor=_GREY
    )
    chart.axhline(0, color=_GREY, linewidth=0.8)
    chart.set_ylabel("adsorption energy / eV")
    command = f"molflt adsorb {found[0].molecule} --on {','.join(one.metal for one in found)}"
    chart.set_title(command, fontsize=10, family="monospace")
    chart.spines[["top", "right"]].set_visible(False)
    for k, axes in enumerate(views):
        _draw(axes, to_atoms(found[k % len(found)].guess.structure), (0, 2, 1) if k < len(found) else (0, 1, 2))
    return figure


def _draw(axes: Axes, atoms: Atoms, order: tuple[int, int, int]) -> None:
    """Draw atoms as discs, the nearest last; ``order`` has the axes right, up and towards.

    The surface goes on to all sides, the molecule is there once.
    """
    right, up, depth = order
    towards = np.where(np.arange(3) == depth, -1.0 if depth == 1 else 1.0, 0.0)
    is_molecule = atoms.get_tags() == TAG_ADSORBATE
    molecule, metal = atoms[is_molecule], atoms[~is_molecule] * (3, 3, 1)
    metal.positions -= atoms.cell[0] + atoms.cell[1]
    everything, n = metal + molecule, len(metal)
    for k in np.argsort(everything.positions @ towards):
        z, at = everything.numbers[k], everything.positions[k]
        disc = Circle((at[right], at[up]), covalent_radii[z] * (1.0 if k < n else 0.9), facecolor=jmol_colors[z])
        disc.set(edgecolor="#9aa5b1" if k < n else "#1f2933", linewidth=0.5)
        axes.add_patch(disc)
    centre = molecule.positions.mean(axis=0)
    axes.set_xlim(centre[right] - 6, centre[right] + 6)
    axes.set_ylim(centre[up] - (5 if up == 2 else 4), centre[up] + (3 if up == 2 else 4))
    axes.set_aspect("equal")
    axes.set_axis_off()


def main() -> None:
    """Draw both."""
    out = results.parser(__doc__, "the pictures; default: docs/figures", required=False).parse_args().out or FOLDER
    model = Model(load_members("pretrained:fg"))
    results.save(parity(evaluate(model, results.ROOT / VAL)), out / "fg_parity.png")
    results.save(answer(adsorb(MOLECULE, METALS, model)), out / "fg_adsorb.png")


if __name__ == "__main__":
    main()
