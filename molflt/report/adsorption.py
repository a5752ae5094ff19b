"""Adsorption energies as files: a table, the best structures, and a page with both."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from molflt.adsorption import PLACING, Adsorption, doubts_of
from molflt.data.ase import to_atoms
from molflt.data.extxyz_output import write_extxyz
from molflt.data.tables import described
from molflt.files import atomic_file
from molflt.prediction.members import provenance
from molflt.prediction.model import Model
from molflt.report.figures import draw_adsorption, figure
from molflt.report.page import Page, svg
from molflt.report.viewer import structure_view

_COUNTS = ("site", "guesses", "inside")


def write_adsorption(path: Path, results: Sequence[Adsorption], model: Model) -> None:
    """Write the adsorption energies of a molecule, atomically; the suffix decides the format.

    Args:
        path: ``.csv`` (a row for each metal), ``.extxyz`` or ``.xyz`` (the guess that counts on each) or ``.html`` (a
            page with a chart, a table and those guesses in 3D).
        results: of one molecule.
        model: the model that predicted them.
    """
    if path.suffix.lower() == ".html":
        _write_page(path, results, model)
        return
    with atomic_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        if path.suffix.lower() == ".csv":
            writer = csv.writer(handle)
            writer.writerow(("molecule", "metal", "surface", "y_relaxed_eV", "uncertainty_eV", "lowest_eV", *_COUNTS))
            for one in results:
                energies = one.energy, one.uncertainty_eV, one.lowest
                counts = one.guess.site, len(one.guesses), int(one.inside.sum())
                writer.writerow((one.molecule, one.metal, one.face, *energies, *counts))
        else:
            for one in results:
                atoms = to_atoms(one.guess.structure)
                atoms.info |= {
                    "name": one.guess.structure.name,
                    "adsorbate": one.molecule,
                    "metals": one.metal,
                    "site": one.guess.site,
                    "predicted_y_relaxed": one.energy,
                    "uncertainty_eV": one.uncertainty_eV,
                }
                write_extxyz(handle, atoms)


def rows(results: Sequence[Adsorption], minus: str = "−") -> list[tuple[str, ...]]:
    """Rows of a table: surface, energy, uncertainty, lowest energy, site, number of guesses."""
    return [
        (
            f"{one.metal}{one.face[3:]}",
            f"{one.energy:.2f}".replace("-", minus) if one.is_inside else "outside",
            f"{one.uncertainty_eV:.2f}" if np.isfinite(one.uncertainty_eV) and one.is_inside else "–",
            f"{one.lowest:.2f}".replace("-", minus) if one.is_inside else "–",
            one.guess.site,
            f"{one.inside.sum():,} of {len(one.guesses):,}",
        )
        for one in results
    ]


def about_uncertainty(model: Model) -> str:
    """Explain the column ± in words."""
    if model.uncertainty is not None:
        own = f"the model's 68 % interval, calibrated on {model.uncertainty.data},"
    else:
        own = "the spread of the members" if len(model.members) > 1 else "nothing known of the model"
    return f"± combines {own} with {PLACING:g} eV for the choice of the placement"


HEAD = ("surface", "E / eV", "± / eV", "lowest / eV", "site", "placements inside")


def _write_page(path: Path, results: Sequence[Adsorption], model: Model) -> None:
    page = Page("adsorb.html")
    page.write(
        path,
        title=f"{described(results[0].molecule)} on {', '.join(one.metal for one in results)}",
        subtitle=f"adsorption energies, predicted by {model.members[0].name}",
        chart=svg(figure(draw_adsorption, results)),
        table={"head": HEAD, "rows": rows(results)},
        uncertainty=about_uncertainty(model),
        level=provenance(model.members)["level of theory"],
        doubt=doubts_of(results),
        cards=[
            {
                "name": f"{one.metal}{one.face[3:]}",
                "about": f"{one.guess.site}; {one.inside.sum():,} of {len(one.guesses):,} placements inside",
                "energy": f"{one.energy:.2f} eV".replace("-", "−") if one.is_inside else "outside",
                "figure": structure_view(page, one.guess.structure),
            }
            for one in results
        ],
    )
