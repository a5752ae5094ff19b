"""Progress of long work, on standard error: a bar over items, and a meter of bytes."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from molflt.terminal_text import printable

T = TypeVar("T")
_PATIENCE = 2.0
"""Seconds before a bar appears; shorter work needs none."""
_INTERVAL = 30.0
"""Seconds between lines if there is no terminal to draw a bar on."""
_shown = True


def set_shown(shown: bool) -> None:
    """Show or hide bars in this process."""
    global _shown
    _shown = shown


def visible() -> bool:
    """True if standard error is interactive, a terminal or a notebook, and bars are enabled."""
    return _shown and (sys.stderr.isatty() or _in_notebook())


def _in_notebook() -> bool:
    return "IPython" in sys.modules and Console().is_jupyter


def console() -> Console:
    """Return the console on standard error for bars.

    A notebook is treated like a terminal, in which a line can be overwritten. rich's own display for notebooks needs
    widgets, and stays among the results.
    """
    notebook = _in_notebook()
    return Console(
        stderr=True,
        highlight=False,
        soft_wrap=True,
        emoji=False,
        force_jupyter=False,
        force_terminal=True if notebook else None,
        color_system=None if notebook else "auto",
    )


class _Bar:
    """Bar that appears once the work has taken a while."""

    def __init__(
        self, label: str, total: int | None, done: int, columns: Iterable[ProgressColumn], clock: Callable[[], float]
    ) -> None:
        self.console = console()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), *columns, TimeRemainingColumn())
        # if a bar cannot be redrawn, its last state is printed once
        self._progress = Progress(*columns, console=self.console, transient=self.console.is_terminal)
        # columns render their text without the console
        self._task = self._progress.add_task(printable(label), total=total, completed=done)
        self._clock, self._started = clock, clock()

    def reach(self, done: int, total: int | None) -> None:
        self._progress.update(self._task, completed=done, total=total)
        if not self._progress.live.is_started and self._clock() - self._started > _PATIENCE:
            self._progress.start()

    def stop(self) -> None:
        # stopped before it started, it would print an empty line
        if self._progress.live.is_started:
            self._progress.stop()


def track(
    items: Iterable[T], label: str, total: int | None = None, done: int = 0, enabled: bool | None = None
) -> Iterator[T]:
    """Yield the items, with a bar on standard error once they take over two seconds.

    Args:
        items: the items.
        label: description of the work.
        total: number of all items, those done before included; unknown if None.
        done: number of items done before this run.
        enabled: None shows the bar on a terminal only, unless ``set_shown(False)``.
    """
    if not (visible() if enabled is None else enabled):
        yield from items
        return
    bar = _Bar(label, total, done, [MofNCompleteColumn()], time.monotonic)
    try:
        for count, item in enumerate(items, start=done + 1):
            yield item
            bar.reach(count, total)
    finally:
        bar.stop()


class ByteMeter:
    """Bar on a terminal, else a line every half minute, over ``total`` bytes, if known."""

    def __init__(
        self,
        label: str,
        total: int | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._clock = label, total, clock
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: _Bar | None = None
        self._said = clock()

    def __enter__(self) -> ByteMeter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def reach(self, n_bytes: int, total: int | None = None) -> None:
        """Report that so many bytes are done, of ``total`` if that has become known."""
        self._total = total or self._total
        if self._terminal:
            # The bar starts at the first report, so that its speed excludes bytes that were there before.
            if self._bar is None:
                columns = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
                self._bar = _Bar(self._label, self._total, n_bytes, columns, self._clock)
            self._bar.reach(n_bytes, self._total)
        elif (now := self._clock()) - self._said > _INTERVAL:
            self._said = now
            share = f" of {size_text(self._total)} ({100 * n_bytes // self._total} %)" if self._total else ""
            self.note(f"{self._label}: {size_text(n_bytes)}{share}")

    def note(self, message: str) -> None:
        """Print a line without damaging the bar."""
        (console() if self._bar is None else self._bar.console).print(printable(message), markup=False)


class MeteredFile(io.RawIOBase):
    """File opened for reading that reports its position to a meter."""

    def __init__(self, handle: IO[bytes], meter: ByteMeter) -> None:
        self._handle, self._meter, self._done = handle, meter, 0

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as :meth:`io.RawIOBase.readinto`, and report."""
        n_bytes: int = self._handle.readinto(buffer)  # type: ignore[attr-defined]
        self._done += n_bytes
        self._meter.reach(self._done)
        return n_bytes


def size_text(n_bytes: int) -> str:
    """Format a number of bytes for people: ``8.1 GiB``."""
    value, unit = float(n_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
