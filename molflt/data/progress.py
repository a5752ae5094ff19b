"""Progress of long reads and writes, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
_PATIENCE = 2.0
"""Seconds before a bar appears: what ends sooner needs none."""


_shown = True


def set_shown(shown: bool) -> None:
    """Whether bars appear at all in this process."""
    global _shown
    _shown = shown


def visible() -> bool:
    """Whether somebody is watching standard error and wants to see bars."""
    return _shown and sys.stderr.isatty()


def track(
    items: Iterable[T], label: str, total: int | None = None, done: int = 0, enabled: bool | None = None
) -> Iterator[T]:
    """Yield the items, with a bar on standard error once they take over two seconds.

    Args:
        items: what to go through.
        label: what is being done.
        total: how many there are in all, those done before included; unknown when None.
        done: how many were done before this run.
        enabled: None shows the bar on a terminal only, unless ``set_shown(False)``.
    """
    if not (visible() if enabled is None else enabled):
        yield from items
        return
    start = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # where a bar cannot be redrawn, its last state is printed once
    progress = Progress(*columns, console=console, transient=console.is_terminal)
    task = progress.add_task(label, total=total, completed=done)
    try:
        for item in items:
            yield item
            progress.advance(task)
            if not progress.live.is_started and time.monotonic() - start > _PATIENCE:
                progress.start()
    finally:
        progress.stop()
