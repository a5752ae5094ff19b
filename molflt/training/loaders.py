"""What happens when a loader process fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from molflt.errors import InputError

_LOST = ("killed by signal", "exited unexpectedly")
"""What torch says of a loader process that is gone, in an error without a type of its own."""


@contextmanager
def losing_no_loader() -> Iterator[None]:
    """Turn what torch says of a loader process into what happened.

    Raises:
        InputError: as raised in the process, without its traceback.
        ChildProcessError: the process is gone; the run can be resumed.
    """
    # Torch raises wherever the process is when it hears of the loss; in a finaliser it would be printed.
    hook = sys.unraisablehook
    sys.unraisablehook = lambda said: None if _is_loss(said.exc_value) else hook(said)
    try:
        yield
    except InputError as error:
        if "DataLoader worker process" not in str(error):
            raise
        raise InputError(str(error).rsplit("InputError: ", 1)[-1].strip()) from error
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        raise ChildProcessError(
            "a loader process was killed, as systems do when memory runs out (fewer of them: data.num_workers)"
        ) from error
    finally:
        sys.unraisablehook = hook


def _is_loss(error: Any) -> bool:
    return "DataLoader worker" in str(error) and any(said in str(error) for said in _LOST)
