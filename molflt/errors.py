"""The error a user can mend: bad input, a bad config, a wrong file."""

from __future__ import annotations

from typing import Literal


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the file, the record where there is one, and the remedy. The command line prints it
    without a traceback and exits with status 2; in Python it is an ordinary ``ValueError``.
    """


OnBad = Literal["stop", "skip"]
"""Whether a structure that cannot be used stops what is being done, or is left out of it."""
