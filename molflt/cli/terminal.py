"""What commands say, and where: results to standard output, everything else to standard error."""

from __future__ import annotations

import sys

from rich.console import Console

errors = Console(stderr=True, highlight=False, soft_wrap=True)
output = Console(highlight=False, soft_wrap=True)


def warn(message: str) -> None:
    """A warning on standard error."""
    errors.print("Warning:", message, style="yellow", markup=False)


def say(message: str) -> None:
    """A line on standard output, at once even through a pipe."""
    output.print(message, markup=False)
    sys.stdout.flush()
