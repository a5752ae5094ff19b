"""``molflt adsorb``: adsorption energies of a molecule on surfaces."""

from __future__ import annotations

from pathlib import Path

import typer

from molflt.cli.terminal import DEVICE, MAX_ATOMS, OVERWRITE, answer, claim_new_file, output, say


def adsorb_command(
    context: typer.Context,
    molecule: str = typer.Argument(
        ...,
        help="SMILES of one neutral molecule, such as CCO for ethanol, or molecule:NAME, such as molecule:CO.",
        show_default=False,
    ),
    on: str = typer.Option(
        None,
        "--on",
        metavar="SURFACES",
        help="Metals (Pt,Cu), planes of them (Pt:211) or of a crystal's file (alloy.cif:111), or files of slabs.",
        show_default="fourteen metals",
    ),
    coverage: str = typer.Option(
        None, metavar="1/N", help="One molecule to N outermost atoms.", show_default="low: images keep apart"
    ),
    model: str = typer.Option("pretrained:fg", help="Model of y_relaxed: a file, run directory or ensemble."),
    guesses: int = typer.Option(200, min=1, help="Placements of the molecule on each surface."),
    out: Path = typer.Option(
        None,
        "--out",
        "-o",
        help="Write to NAME.csv, NAME.extxyz or .xyz (the structures), or NAME.html (an interactive 3D page).",
        show_default=False,
    ),
    seed: int = typer.Option(0, min=0, help="Random seed of conformers and placements."),
    overwrite: bool = OVERWRITE,
    device: str = DEVICE,
    max_atoms: int = MAX_ATOMS,
) -> None:
    """Predict adsorption energies of a molecule on surfaces.

    Negative is bound, relative to the clean surface and the molecule in vacuum. Conformers of the molecule are placed
    on the surface, by default the close-packed one, in many ways, and the energy after relaxation is predicted for
    each. E is the 5th percentile over placements inside the model's domain, or "outside" where few are: pretrained:fg
    knows close-packed faces of fourteen metals and molecules of 4 to 18 atoms. pretrained:wwl knows H, C, CH, CH2,
    CH3, O, OH and CO on flat and stepped metals; its energies count from CH4, H2O and H2.

    Example: molflt adsorb CCO --on Pt,Pd,Cu -o ethanol.html

    Example: molflt adsorb molecule:CO --on Pt,Cu:211 --model pretrained:wwl
    """
    if out is not None:
        claim_new_file(context, out, (".csv", ".extxyz", ".xyz", ".html"), overwrite)
    from rich.table import Table

    from molflt.adsorption import adsorb
    from molflt.adsorption.surfaces import METALS
    from molflt.data.tables import described
    from molflt.prediction.members import provenance
    from molflt.prediction.model import load
    from molflt.report.adsorption import HEAD, about_columns, listed_surfaces, rows, write_adsorption

    loaded = load(model, device)
    results = adsorb(
        molecule,
        METALS if on is None else on,
        loaded,
        coverage=coverage,
        n_guesses=guesses,
        seed=seed,
        max_atoms=max_atoms,
    )
    if out is not None:
        write_adsorption(out, results, loaded)
    answer(f"{described(molecule)} on {listed_surfaces(results)}: adsorption energies")
    table = Table(*HEAD)
    for column in (*table.columns[1:4], table.columns[5]):
        column.justify = "right"
    for row in rows(results, minus="-"):
        table.add_row(*row)
    output.print(table)
    about = provenance(loaded.members) | about_columns(loaded)
    say("\n".join(f"{key}: {text}" for key, text in about.items()))
    if out is not None:
        say(f"{len(results)} surface{'s' * (len(results) != 1)} in {out}")
