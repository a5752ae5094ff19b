"""``molflt convert``: structures of any kind to an OC20-layout LMDB."""

from __future__ import annotations

from typing import Literal

import typer

from molflt.cli.options import ACCEPT_UNCONVERGED, PAIRS, TAGS
from molflt.cli.terminal import say
from molflt.errors import InputError
from molflt.vocabulary import EnergyUnit, Per, TagConvention


def convert_command(
    paths: list[str] = typer.Argument(..., metavar="IN... OUT.lmdb", help="Any readable structures, then the LMDB."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing file."),
    label: str = typer.Option(None, help="Name of the energy in the data.", show_default=False),
    unit: EnergyUnit = typer.Option("eV", help="Unit of the energies in the data."),
    per: Per = typer.Option("structure", help="What an energy in the data is of."),
    force_label: str = typer.Option(None, help="Name of the forces in the data.", show_default=False),
    force_unit: str = typer.Option(
        None, help="Unit of the forces, as in Hartree/bohr.  [default: that of the energies per Ang]"
    ),
    target: Literal["y_relaxed", "y_init", "energy"] = typer.Option("energy", help="What the energy becomes."),
    pairs: bool = PAIRS,
    tags: TagConvention = TAGS,
    allow_charged: bool = typer.Option(False, "--allow-charged", help="Take open shells. Charges are kept anyway."),
    accept_unconverged: bool = ACCEPT_UNCONVERGED,
) -> None:
    """Convert structures to an LMDB in the layout of OC20. An interrupted conversion goes on where it stopped.

    Example: molflt convert relaxed/*.traj train.lmdb
    """
    from molflt.data.labels import LabelSpec, checked_force_unit
    from molflt.data.oc20.writer import convert
    from molflt.data.reading import ReadOptions

    *inputs, out = paths
    if not inputs or not out.endswith(".lmdb"):
        raise InputError(
            f"the last argument must be the LMDB to write, as in 'molflt convert IN OUT.lmdb', not {out}"
        )
    given = {"label": label, "unit": unit, "per": per, "force_label": force_label}
    spec = LabelSpec.model_validate({"target": target, **given, "force_unit": checked_force_unit(force_unit)})
    try:
        labels = None if spec == LabelSpec() else spec
        options = ReadOptions(
            allow_charged, accept_unconverged=accept_unconverged, pairs=pairs, tags=tags, labels=labels
        )
        count = convert(inputs, out, overwrite, options)
    except OSError as error:
        error.add_note("then repeat the command: it goes on where it stopped")
        raise
    say(f"{count} structure{'s' * (count != 1)} in {out}")
