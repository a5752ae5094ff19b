"""``molflt benchmark``: errors of any calculator of ASE."""

from __future__ import annotations

import csv
from pathlib import Path

import typer

from molflt.cli import terminal
from molflt.errors import InputError, listed
from molflt.files import atomic_file

COLUMNS = (
    "set",
    "structures",
    "relative energies / eV",
    "of structures",
    "forces / eV/Å",
    "dipoles / D",
    "ms",
)


def benchmark_command(
    context: typer.Context,
    calculator: str = typer.Argument(
        ...,
        help="A model as for 'molflt predict', gfn2 (needs tblite), or package.module:name of an ASE calculator.",
        show_default=False,
    ),
    data: list[str] = typer.Argument(..., help="Files of structures with energies.", show_default=False),
    out: Path = typer.Option(None, "--out", "-o", help="Write the table to NAME.csv.", show_default=False),
    overwrite: bool = terminal.OVERWRITE,
) -> None:
    """Compare any calculator of ASE with labelled structures: energies, forces, dipoles, time.

    Energies are compared less the mean of their molecule ('smiles' in the file, or else the formula), so that any
    zero will do; 'of structures' counts those of molecules that have several. Errors are mean absolute ones, those of
    dipoles mean lengths. package.module:name is imported and called without arguments.

    Example: molflt benchmark pretrained:acac held_out.extxyz
    """
    from rich.table import Table

    from molflt.data.ase import to_atoms
    from molflt.data.open import open_dataset
    from molflt.files import resolve_path
    from molflt.simulate.benchmark import named_calculator, score

    if out is not None:
        terminal.claim_new_file(context, out, (".csv",), overwrite, "a table")
    made, rows = named_calculator(calculator), []
    for source in data:
        dataset = open_dataset(resolve_path(source))
        try:
            found = score([to_atoms(dataset[k]) for k in range(len(dataset))], made)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
        if found.failures:
            terminal.warn(listed(f"{source}: {len(found.failures)} structures were skipped", found.failures))
        numbers = (found.relative_mae, found.n_relative, found.force_mae, found.dipole_mae, 1000 * found.seconds)
        rows.append([source, found.n, *("" if value != value else value for value in numbers)])
    table = Table(*COLUMNS)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row))
    terminal.output.print(table)
    if out is not None:
        with atomic_file(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows([COLUMNS, *rows])
        terminal.say(f"table: {out}")
