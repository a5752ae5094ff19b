"""``molflt merge``: the shards of a prediction to one file."""

from __future__ import annotations

from pathlib import Path

import typer

from molflt.cli.options import claim
from molflt.cli.terminal import say
from molflt.errors import InputError
from molflt.vocabulary import OC20Split


def merge_command(
    context: typer.Context,
    shards: list[Path] = typer.Argument(
        ..., help="Every file that 'molflt predict --shard' wrote, in any order.", show_default=False
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Write to NAME.csv or NAME.npz.", show_default=False),
    oc20_split: OC20Split = typer.Option(
        None, help="With npz: the OC20 leaderboard's keys for this split; four runs make one file."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing output."),
) -> None:
    """Put the shards of a prediction together.

    The result is the same, to the last digit, as without shards. All of them must be there, complete, and of the same
    model and inputs.

    Example: molflt merge energies.csv.shard-* -o energies.csv
    """
    from molflt.prediction.output import check_output, write_predictions
    from molflt.prediction.shards import merge

    claim(context, out, lambda: check_output(out, oc20_split, overwrite), oc20_split or "")
    prediction, target = merge(shards)
    if oc20_split is not None and prediction.failures:
        raise InputError(
            f"--oc20-split: a submission needs every structure; {len(prediction.failures)} were skipped "
            f"({next(iter(prediction.failures.values()))})"
        )
    write_predictions(out, prediction, None, target, oc20_split)
    skipped = f", {len(prediction.failures)} skipped" if prediction.failures else ""
    n_energies = len(prediction.names) - len(prediction.failures)
    say(f"{n_energies} energies ({target}, eV) of {len(shards)} shards in {out}{skipped}")
