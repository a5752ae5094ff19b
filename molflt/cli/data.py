"""``molflt convert``, ``prepare`` and ``fetch``: data to train on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from molflt.cli.terminal import ACCEPT_UNCONVERGED, PAIRS, TAGS, errors, say, warn
from molflt.errors import InputError, listed
from molflt.vocabulary import EnergyUnit, Per, TagConvention

if TYPE_CHECKING:
    from molflt.data.reading import ReadOptions


LABEL = typer.Option(None, help="Name of the energy in the data.", show_default=False)
UNIT = typer.Option("eV", help="Unit of the energies in the data.")
PER = typer.Option("structure", help="Whether energies in the data are per structure or per atom.")
FORCE_LABEL = typer.Option(None, help="Name of the forces in the data.", show_default=False)
FORCE_UNIT = typer.Option(
    None, help="Unit of the forces, as in Hartree/bohr.", show_default="that of the energies per Ang"
)
TARGET = typer.Option("energy", help="Quantity that the energy is stored as.")
OPEN_SHELLS = typer.Option(False, "--allow-charged", help="Take open shells as well. Charges are kept in any case.")
Becomes = Literal["y_relaxed", "y_init", "energy"]


def _reading(given: dict[str, str | None], **options: bool | str) -> ReadOptions:
    """Return options of reading, from what was given of labels and of the rest."""
    from molflt.data.labels import LabelSpec, checked_force_unit
    from molflt.data.reading import ReadOptions

    spec = LabelSpec.model_validate(given | {"force_unit": checked_force_unit(given["force_unit"])})
    return ReadOptions(**options, labels=None if spec == LabelSpec() else spec)  # type: ignore[arg-type]


def convert_command(
    paths: list[str] = typer.Argument(..., metavar="IN... OUT.lmdb", help="Any readable structures, then the LMDB."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing file."),
    label: str = LABEL,
    unit: EnergyUnit = UNIT,
    per: Per = PER,
    force_label: str = FORCE_LABEL,
    force_unit: str = FORCE_UNIT,
    target: Becomes = TARGET,
    pairs: bool = PAIRS,
    tags: TagConvention = TAGS,
    allow_charged: bool = OPEN_SHELLS,
    accept_unconverged: bool = ACCEPT_UNCONVERGED,
) -> None:
    """Convert structures to an LMDB in the layout of OC20. Repeat the command to resume an interrupted conversion.

    Example: molflt convert relaxed/*.traj train.lmdb
    """
    from molflt.data.oc20.writer import convert

    *inputs, out = paths
    if not inputs or not out.endswith(".lmdb"):
        raise InputError(
            f"the last argument must be the LMDB to write, as in 'molflt convert IN OUT.lmdb', not {out}"
        )
    given = {"label": label, "unit": unit, "per": per, "force_label": force_label, "force_unit": force_unit}
    taken = {"allow_charged": allow_charged, "accept_unconverged": accept_unconverged, "pairs": pairs}
    with _to_be_continued():
        count = convert(inputs, out, overwrite, _reading({"target": target, **given}, tags=tags, **taken))
    say(f"{count} structure{'s' * (count != 1)} in {out}")


def prepare_command(
    inputs: list[str] = typer.Argument(..., metavar="IN...", help="Any readable structures.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="Folder to create or continue.", show_default=False),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace another prepared set."),
    label: str = LABEL,
    unit: EnergyUnit = UNIT,
    per: Per = PER,
    force_label: str = FORCE_LABEL,
    force_unit: str = FORCE_UNIT,
    target: Becomes = TARGET,
    pairs: bool = PAIRS,
    tags: TagConvention = TAGS,
    allow_charged: bool = OPEN_SHELLS,
    accept_unconverged: bool = ACCEPT_UNCONVERGED,
) -> None:
    """Prepare a large set once, on all cores; training and evaluation then open the folder in seconds.

    Repeat the command to resume an interrupted preparation.

    Example: molflt prepare oc20/all/train/data.lmdb -o oc20/train
    """
    from molflt.data.prepare import prepare

    given = {"label": label, "unit": unit, "per": per, "force_label": force_label, "force_unit": force_unit}
    taken = {"allow_charged": allow_charged, "accept_unconverged": accept_unconverged, "pairs": pairs}
    with _to_be_continued():
        made = prepare(inputs, out, _reading({"target": target, **given}, tags=tags, **taken), overwrite)
    if reasons := list(made.unusable().values()):
        n = len(reasons)
        what = f"{n:,} structure{'s' * (n != 1)} cannot be used; data.on_error=skip trains without"
        warn(listed(what, reasons))
    say(f"{len(made):,} structures in {out}")


@contextmanager
def _to_be_continued() -> Iterator[None]:
    """Say how to go on after the system has refused."""
    try:
        yield
    except OSError as error:
        error.add_note("then repeat the command to resume")
        raise


def fetch_command(
    name: str = typer.Argument(None, help="A data set.", show_default="list them"),
    to: Path = typer.Option(None, "--to", help="Folder to put it in.", show_default=False),
    only: list[str] = typer.Option(
        None, help="Unpack this split only, as 10k/train, 10k or val_id; as often as needed.", show_default=False
    ),
    archive: Path = typer.Option(None, help="Use this archive instead of downloading it.", show_default=False),
    url: str = typer.Option(None, help="Download from this mirror.", show_default=False),
    keep_archive: bool = typer.Option(False, "--keep-archive", help="Keep the archive after unpacking."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be done, and its size; do nothing."),
    list_all: bool = typer.Option(False, "--list", help="List the data sets."),
) -> None:
    """Fetch a public data set: download, check, unpack, and print the training command.

    Repeat the command to resume after an interruption.

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
                raise typer.Exit(1)
            return
        try:
            splits = obtain(plan, typer.echo)
        except KeyboardInterrupt:
            errors.print("Stopped. To resume, repeat the command.", markup=False)
            raise typer.Exit(130) from None
        except OSError as error:
            # The message on a broken connection is already printed.
            if error.errno is not None:
                error.add_note("then repeat the command to resume")
            raise
    typer.echo(commands(splits))
