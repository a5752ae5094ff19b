"""What commands say, and where: results to standard output, everything else to standard error or not at all."""

from __future__ import annotations

import sys

from rich.console import Console

from molflt.data import progress
from molflt.printable import printable

# Names of files are printed as they are, without markup and without :emoji:.
errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
output = Console(highlight=False, soft_wrap=True, emoji=False)


class Verbosity:
    """How much is said; set once by ``molflt --quiet`` or ``--verbose``."""

    quiet = False
    verbose = False

    @classmethod
    def set(cls, quiet: bool, verbose: bool) -> None:
        """Take over the options."""
        cls.quiet, cls.verbose = quiet, verbose
        progress.set_shown(not quiet)


def warn(message: str) -> None:
    """A warning on standard error."""
    errors.print("Warning:", printable(message, keep="\n\t"), style="yellow", markup=False)


def answer(message: str) -> None:
    """What a command was asked for, on standard output, at once even through a pipe."""
    output.print(message, markup=False)
    sys.stdout.flush()


def say(message: str) -> None:
    """How a command is getting on, on standard output; not with ``--quiet``."""
    if not Verbosity.quiet:
        answer(message)


def detail(message: str) -> None:
    """What only ``--verbose`` wants to know, on standard error."""
    if Verbosity.verbose:
        errors.print(message, style="dim", markup=False)
