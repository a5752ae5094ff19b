"""Progress in bytes, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from molflt.data.fetch.catalogue import size_text

_PATIENCE = 2.0
"""Seconds before a bar appears: what ends sooner needs none."""
_INTERVAL = 30.0
"""Seconds between lines where there is no terminal to draw a bar on."""


class ByteMeter:
    """A bar on a terminal, a line every half minute elsewhere.

    Args:
        label: what is being done.
        total: bytes in all, unknown when None.
        terminal: None finds out whether standard error is one.
        clock: seconds.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._clock = label, total, clock
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, transient=self._console.is_terminal)
        self._task: TaskID | None = None
        self._started = self._said = clock()

    def __enter__(self) -> ByteMeter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # stopped without having begun, it would print an empty line
        if self._progress.live.is_started:
            self._progress.stop()

    def reach(self, n_bytes: int, total: int | None = None) -> None:
        """Show that so many bytes are done, of ``total`` when that has become known."""
        self._total = total or self._total
        now = self._clock()
        if self._terminal:
            # The task begins where the first report stands, so that the speed leaves out what was there before.
            if self._task is None:
                self._task = self._progress.add_task(self._label, total=self._total, completed=n_bytes)
            self._progress.update(self._task, completed=n_bytes, total=self._total)
            if not self._progress.live.is_started and now - self._started > _PATIENCE:
                self._progress.start()
        elif now - self._said > _INTERVAL:
            self._said = now
            share = f" of {size_text(self._total)} ({100 * n_bytes // self._total} %)" if self._total else ""
            self.note(f"{self._label}: {size_text(n_bytes)}{share}")

    def note(self, message: str) -> None:
        """Print a line without damaging the bar."""
        self._console.print(message, markup=False)
