"""``molflt convert``: structures of any kind to an OC20-layout LMDB."""

from __future__ import annotations

import typer

from molflt.cli.terminal import say
from molflt.errors import InputError


def convert_command(
    paths: list[str] = typer.Argument(..., metavar="IN... OUT.lmdb", help="Any readable structures, then the LMDB."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing file."),
) -> None:
    """Convert structures to an LMDB in the layout of OC20. An interrupted conversion goes on where it stopped.

    Example: molflt convert relaxed/*.traj train.lmdb
    """
    from molflt.data.convert import convert

    *inputs, target = paths
    if not inputs or not target.endswith(".lmdb"):
        raise InputError(
            f"the last argument must be the LMDB to write, as in 'molflt convert IN OUT.lmdb', not {target}"
        )
    count = convert(inputs, target, overwrite)
    say(f"{count} structures in {target}")
