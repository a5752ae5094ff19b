"""The ``molflt`` command."""

from __future__ import annotations

import os
import sys

import typer

from molflt import __version__
from molflt.cli.average import average_command
from molflt.cli.check_invariance import check_invariance_command
from molflt.cli.config import config_command
from molflt.cli.convert import convert_command
from molflt.cli.evaluate import evaluate_command
from molflt.cli.explain import explain_command
from molflt.cli.fetch import fetch_command
from molflt.cli.info import info_command
from molflt.cli.merge import merge_command
from molflt.cli.plot import plot_command
from molflt.cli.predict import predict_command
from molflt.cli.terminal import Verbosity, errors, forget_output, system_error
from molflt.cli.train import train_command
from molflt.errors import InputError

app = typer.Typer(
    name="molflt",
    help="Train, evaluate and use linear, exactly invariant Fourier-RPE transformers for molecules and materials.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=(
        "Exit status: 0 done; 1 a check failed, or the system refused; 2 a mistake in what was given; "
        "130 interrupted. NO_COLOR=1 turns colours off."
    ),
)
# In the order of the help. A command is called as its function is, such as check-invariance.
for _command in (
    train_command,
    evaluate_command,
    predict_command,
    merge_command,
    explain_command,
    plot_command,
    check_invariance_command,
    info_command,
    convert_command,
    average_command,
    config_command,
    fetch_command,
):
    app.command(_command.__name__.removesuffix("_command").replace("_", "-"))(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"molflt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Results and errors only: no progress, no remarks."),
    verbose: bool = typer.Option(
        False, "--verbose", "-v", help="Also details, and the place of an error in the code."
    ),
) -> None:
    if quiet and verbose:
        raise InputError("--quiet and --verbose: choose one")
    Verbosity.set(quiet, verbose)


def main() -> None:
    """Run a command.

    A user's mistake is one message and status 2, what the system refuses (disk full, no permission) status 1, an
    interruption status 130.
    """
    # Large arrays in large pages: half of the time that a mesh takes on a CPU would go into small ones. PyTorch looks
    # at it once, when it first takes memory.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        app()
    except InputError as error:
        if Verbosity.verbose:
            errors.print_exception()
        errors.print("Error:", str(error), style="red", markup=False)
        sys.exit(2)
    except BrokenPipeError:
        # The reader, such as head, has what it wanted.
        forget_output()
        sys.exit(0)
    except OSError as error:
        if Verbosity.verbose:
            errors.print_exception()
        errors.print("Error:", system_error(error), style="red", markup=False)
        try:
            sys.stdout.flush()
        except OSError:
            forget_output()
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("Interrupted.", style="yellow")
        sys.exit(130)


if __name__ == "__main__":
    main()
