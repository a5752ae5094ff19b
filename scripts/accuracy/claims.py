"""What one of several processes of the benchmark has taken on, so that the others leave it or wait for it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molflt.files import lock

POLL = 1.0
"""Seconds between two looks at what another process has claimed."""


@contextmanager
def claimed(path: Path, wait: bool = False) -> Iterator[bool]:
    """Claim something until the block ends or the process does, however it ends.

    Args:
        path: an empty file that stands for it; made if it is not there.
        wait: until no other process has it.

    Yields:
        False if another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        while not (mine := lock(handle)) and wait:
            time.sleep(POLL)
        yield mine
    finally:
        os.close(handle)
