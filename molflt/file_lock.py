"""Locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import fcntl


def lock(descriptor: int) -> bool:
    """Lock an open file or folder, without waiting, until it is closed.

    Returns:
        False if another process holds the lock. True also where there are no locks: on Windows, and on file systems
        without them.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
