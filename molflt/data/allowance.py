"""How many bytes one pickle may have copied: to copy the same bytes a million times takes a few bytes each time."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEFT: ContextVar[list[int]] = ContextVar("bytes left")


@contextmanager
def allowance(n_bytes: int) -> Iterator[None]:
    """While one pickle runs: what it may have copied in all."""
    token = _LEFT.set([n_bytes])
    try:
        yield
    finally:
        _LEFT.reset(token)


def take(n_bytes: int) -> None:
    """Count bytes that are about to be copied.

    Raises:
        pickle.UnpicklingError: more than allowed.
        LookupError: outside of ``allowance``.
    """
    left = _LEFT.get()
    left[0] -= n_bytes
    if left[0] < 0:
        raise pickle.UnpicklingError("refused: it unfolds to many times its size")
