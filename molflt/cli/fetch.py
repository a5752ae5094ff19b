"""``molflt fetch``: a public data set, ready to train on."""

from __future__ import annotations

from pathlib import Path

import typer

from molflt.cli.terminal import errors
from molflt.errors import InputError


def fetch_command(
    name: str = typer.Argument(None, help="A data set; leave it out to see them.", show_default=False),
    to: Path = typer.Option(None, "--to", help="Folder to put it in.", show_default=False),
    only: list[str] = typer.Option(
        None, help="Unpack this split only, as 10k/train, 10k or val_id; as often as needed.", show_default=False
    ),
    archive: Path = typer.Option(None, help="Use this archive instead of downloading it.", show_default=False),
    url: str = typer.Option(None, help="Download from this mirror.", show_default=False),
    keep_archive: bool = typer.Option(False, "--keep-archive", help="Keep the archive after unpacking."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be done, and its size."),
    list_all: bool = typer.Option(False, "--list", help="List the data sets."),
) -> None:
    """Fetch a public data set: download, check, unpack, and print the training command.

    Repeat the command after an interruption: it goes on where it stopped.

    Example: molflt fetch oc20-is2re --to oc20
    """
    from molflt.data.fetch.catalogue import ARCHIVES, commands, find_archive
    from molflt.data.fetch.obtain import make_plan, obtain, present_splits
    from molflt.data.progress import size_text

    if name is None or list_all:
        for entry in ARCHIVES.values():
            sizes = f"{size_text(entry.size)} to download, {size_text(entry.unpacked)} unpacked"
            typer.echo(f"{entry.name:<24}{entry.title}\n{'':<24}{sizes}, {entry.licence}, {entry.page}")
            if len(entry.splits) > 1:
                typer.echo(f"{'':<24}--only {', '.join(entry.splits)}")
        return
    entry = find_archive(name).of(only or [])
    if to is None:
        raise InputError(f"where to? Give a folder, as in 'molflt fetch {name} --to {name}'")
    plan = make_plan(entry, to, url, archive, keep_archive)
    splits = present_splits(plan)
    if splits is not None:
        typer.echo(f"{entry.name} is complete in {plan.target}")
    else:
        typer.echo(plan.describe())
        if dry_run:
            if not plan.fits:
                typer.echo("It does not fit.")
            return
        try:
            splits = obtain(plan, typer.echo)
        except KeyboardInterrupt:
            errors.print("Stopped. To go on, repeat the command.", markup=False)
            raise typer.Exit(130) from None
        except OSError as error:
            # What a broken connection is worth knowing about is said already.
            if error.errno is not None:
                error.add_note("then repeat the command: it goes on where it stopped")
            raise
    typer.echo(commands(splits))
