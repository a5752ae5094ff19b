"""What happens when a loader process fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    try:
        yield
    except InputError as error:
        if "DataLoader worker process" not in str(error):
            raise
        raise InputError(str(error).rsplit("InputError: ", 1)[-1].strip()) from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error) or not any(said in str(error) for said in _LOST):
            raise
        raise ChildProcessError(
            "a loader process was killed, as systems do when memory runs out (fewer of them: data.num_workers)"
        ) from error
