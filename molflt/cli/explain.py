"""``molflt explain``: what an energy is made of, and what one atom attends to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from molflt.choices import TagConvention
from molflt.cli.options import ALLOW_CHARGED, CONFORMERS, DEVICE, TAGS, claim_new_file
from molflt.cli.terminal import answer, answer_json, output, remark, say, warn
from molflt.errors import InputError, listed

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from molflt.data.reading import Reading
    from molflt.report.explain import Explanation

PAGE = Path("explain.html")
_ROWS = 20
"""Atoms that the printed table shows."""


def explain_command(
    context: typer.Context,
    model: Path = typer.Argument(..., help="Model file, run directory, or pretrained:NAME.", show_default=False),
    structure: str = typer.Argument(..., help="A file, or a SMILES.", show_default=False),
    atom: int = typer.Option(
        None, "--atom", help="Whose attention, counted from 0; left out: the one that stands out."
    ),
    index: int = typer.Option(None, help="Which structure of several, counted from 0."),
    out: Path = typer.Option(
        None, "--out", "-o", help="NAME.html, a page in 3D, or NAME.csv; left out: explain.html.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object; no page unless -o says so."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing output."),
    allow_charged: bool = ALLOW_CHARGED,
    conformers: int = CONFORMERS,
    tags: TagConvention = TAGS,
    device: str = DEVICE,
) -> None:
    """Show what every atom contributes to an energy, and what one atom attends to.

    Prints a table, and writes a page with both in 3D.

    Example: molflt explain runs/tiny/best.safetensors CCO
    """
    out = PAGE if out is None and not as_json else out
    if out is not None:
        claim_new_file(context, out, (".html", ".csv"), overwrite)
    from molflt.data.reading import Reading
    from molflt.prediction.members import load_member
    from molflt.prediction.predictor import choose_device, outside
    from molflt.report.explain import explain
    from molflt.report.explain_page import as_json as content
    from molflt.report.explain_page import write_csv, write_page

    target_device = choose_device(device)
    loaded = load_member(model, remark)
    takes_ions = loaded.model.config.takes_ions
    how = Reading(allow_charged, conformers, charges=takes_ions, accept_unconverged=True)
    data = _one_structure(structure, index, tags, how)
    explanation = explain(loaded, data, atom, target_device)
    doubt = ""
    if reasons := [reason.text for reason in outside(loaded, explanation.structure)]:
        doubt = listed("outside the model's domain; what it says may mean little", reasons)
        warn(doubt)
    if out is not None:
        if out.suffix.lower() == ".csv":
            write_csv(out, explanation)
        else:
            write_page(out, explanation, loaded, doubt)
    if as_json:
        answer_json(content(explanation))
        return
    _print_table(explanation)
    assert out is not None
    say(f"{'page' if out.suffix.lower() == '.html' else 'table of all atoms'} in {out}")


def _one_structure(text: str, index: int | None, tags: TagConvention, how: Reading) -> Data:
    from molflt.data.sources import resolve_inputs

    dataset = resolve_inputs([text], tags, how=how)
    n = len(dataset)
    if index is None and n > 1:
        raise InputError(f"{text}: holds {n} structures; choose one with --index, from 0 to {n - 1}")
    if index is not None and not 0 <= index < n:
        raise InputError(f"{text}: --index {index} is out of range; it holds structures 0 to {n - 1}")
    return dataset[index or 0]


def _print_table(explanation: Explanation) -> None:
    from rich.table import Table

    from molflt.report.explain_page import adsorbate_first, atom_rows

    answer(f"{explanation.name}: {explanation.target} {explanation.energy:.6f} eV")
    referenced = bool(explanation.reference.any())
    if referenced:
        answer("sum over the atoms of their element's reference energy and what the model has learnt")
    else:
        answer(f"{explanation.mean:.6f} eV for every structure, plus what the model has learnt of each atom")
    parts = ("contribution / eV", "reference", "learnt") if referenced else ("contribution / eV",)
    table = Table("index", "element", "tag", *parts, "share")
    for column in table.columns[3:]:
        column.justify = "right"
    rows = list(atom_rows(explanation))
    shown = adsorbate_first(explanation, _ROWS)
    for i in shown:
        row = rows[i]
        keys = ("contribution_eV", "reference_eV", "learnt_eV") if referenced else ("contribution_eV",)
        energies = [f"{row[key]:.4f}" for key in keys]
        mark = " ←" if i == explanation.atom else ""
        table.add_row(f"{i}{mark}", row["element"], row["tag"], *energies, f"{row['share']:.1%}")
    output.print(table)
    if len(shown) < len(rows):
        with_adsorbate = "adsorbate and the " if any(row["tag"] == "adsorbate" for row in rows) else ""
        say(f"the {with_adsorbate}largest parts, {len(shown)} of {len(rows):,} atoms; -o NAME.csv writes all")
    say(f"← the atom whose attention is given: {explanation.atom}, counted from 0")
