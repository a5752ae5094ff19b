"""Adsorption energies as files: a table, the best structures, and a page with both."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from molflt.adsorption import ENOUGH, MANY, PLACING, Adsorption, doubts_of
from molflt.data.ase import to_atoms
from molflt.data.extxyz_output import write_extxyz
from molflt.data.tables import described
from molflt.files import atomic_file
from molflt.prediction.members import provenance
from molflt.prediction.model import Model
from molflt.report.figures import draw_adsorption, figure
from molflt.report.page import Page, svg
from molflt.report.viewer import structure_view

_COUNTS = ("site", "coverage", "guesses", "inside", "warning")
OUTSIDE = "outside"
"""In place of an energy that would mean nothing."""


def write_adsorption(path: Path, results: Sequence[Adsorption], model: Model) -> None:
    """Write the adsorption energies of a molecule, atomically; the suffix decides the format.

    Args:
        path: ``.csv`` (a row for each surface, ``outside`` in place of an energy that would mean nothing),
            ``.extxyz`` or ``.xyz`` (the guess that counts on each) or ``.html`` (a page with a chart, a table and
            those guesses in 3D).
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
                energies: tuple[object, ...] = (OUTSIDE, "", "")
                if one.is_inside:
                    energies = one.energy, one.uncertainty_eV, one.lowest
                counts = one.guess.site, f"{one.coverage:.4g}", len(one.guesses), int(one.inside.sum())
                writer.writerow((one.molecule, one.metal, one.face, *energies, *counts, one.doubt or ""))
        else:
            for one in results:
                atoms = to_atoms(one.guess.structure)
                atoms.info |= {
                    "name": one.guess.structure.name,
                    "adsorbate": one.molecule,
                    "metals": one.metal,
                    "site": one.guess.site,
                }
                if one.is_inside:
                    atoms.info |= {"predicted_y_relaxed": one.energy, "uncertainty_eV": one.uncertainty_eV}
                if one.doubt:
                    atoms.info["warning"] = one.doubt
                write_extxyz(handle, atoms)


def listed_surfaces(results: Sequence[Adsorption]) -> str:
    """Name the surfaces: by their metals if each is there once."""
    metals = [one.metal for one in results]
    return ", ".join(metals if len(set(metals)) == len(metals) else [one.surface for one in results])


def rows(results: Sequence[Adsorption], minus: str = "−") -> list[tuple[str, ...]]:
    """Rows of a table: surface, energy, uncertainty, lowest energy, site, number of guesses."""
    return [
        (
            one.surface,
            f"{one.energy:.2f}".replace("-", minus) if one.is_inside else OUTSIDE,
            f"{one.uncertainty_eV:.2f}" if np.isfinite(one.uncertainty_eV) else "–",
            f"{one.lowest:.2f}".replace("-", minus) if one.is_inside else "–",
            one.guess.site,
            f"{one.inside.sum():,} of {len(one.guesses):,}",
        )
        for one in results
    ]


def about_columns(model: Model) -> dict[str, str]:
    """Explain the columns E and ±, a sentence each."""
    if model.uncertainty is not None:
        own = f"the model's 68 % interval, calibrated on {model.uncertainty.data},"
    else:
        own = "the spread of the members" if len(model.members) > 1 else "nothing known of the model"
    return {
        "E": "the 5th percentile over placements inside the training domain, of up to 20 the lowest; "
        f"'{OUTSIDE}' if fewer than {100 * ENOUGH:.0f} % are inside",
        "±": f"combines {own} with {PLACING:g} eV for the choice of the placement; doubled if fewer than "
        f"{100 * MANY:.0f} % are inside",
    }


HEAD = ("surface", "E / eV", "± / eV", "lowest / eV", "site", "placements inside")


def _write_page(path: Path, results: Sequence[Adsorption], model: Model) -> None:
    page = Page("adsorb.html")
    page.write(
        path,
        title=f"{described(results[0].molecule)} on {listed_surfaces(results)}",
        subtitle=f"adsorption energies, predicted by {model.members[0].name}",
        chart=svg(figure(draw_adsorption, results)),
        table={"head": HEAD, "rows": rows(results)},
        columns=about_columns(model),
        level=provenance(model.members)["level of theory"],
        doubt=doubts_of(results),
        cards=[
            {
                "name": one.surface,
                "about": f"{one.guess.site}; {one.inside.sum():,} of {len(one.guesses):,} placements inside",
                "energy": f"{one.energy:.2f} eV".replace("-", "−") if one.is_inside else OUTSIDE,
                "figure": structure_view(page, one.guess.structure),
            }
            for one in results
        ],
    )
