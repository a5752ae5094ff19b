"""Run commands of molflt in a process of their own, and end it at a moment of choice.

The process is a fork of this one, which has imported everything: what is struck is work, not seconds of imports.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Commands = Sequence[Sequence[str]]


class Moment(NamedTuple):
    """Moment and way to end a process: by a signal after some seconds, or at one of its calls.

    ``call`` counts those of os.replace and os.fsync from one, if ``seconds`` is None; ``before`` or after it.
    """

    seconds: float | None
    number: signal.Signals = signal.SIGKILL
    call: int = 0
    before: bool = True

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.number.name} after {self.seconds:.2f} s"
        return f"{self.number.name} {'before' if self.before else 'after'} sync or rename {self.call}"


class Ended(NamedTuple):
    """End of a process.

    Its exit status, of a signal the negative number; what it printed; how long it took; and its calls of os.replace
    and os.fsync, zero where it was ended.
    """

    status: int
    text: str
    seconds: float
    calls: int


def run_to_the_end(folder: Path, commands: Commands) -> Ended:
    """Run commands in a folder, one after another, up to the first that fails."""
    return run(folder, commands, None)


def run_two(folder: Path, first: Commands, second: Commands, seconds: float) -> tuple[Ended, Ended]:
    """Run commands in a folder, and others there that begin so many seconds later."""
    log = folder.with_suffix(".second.log")
    start = time.monotonic()
    child = _fork(folder, second, None, log, folder.with_suffix(".second.count"), seconds)
    one = run(folder, first, None)
    status = _ended(child, 0)
    return one, Ended(status, log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - start, 0)


def run(folder: Path, commands: Commands, moment: Moment | None) -> Ended:
    """Run commands in a folder, and end the process at a moment."""
    log, count = folder.with_suffix(".chaos.log"), folder.with_suffix(".chaos.count")
    count.unlink(missing_ok=True)
    start = time.monotonic()
    child = _fork(folder, commands, moment, log, count)
    status = None
    if moment is not None and moment.seconds is not None:
        while status is None and time.monotonic() < start + moment.seconds:
            time.sleep(0.002)
            status = _ended(child, os.WNOHANG)
        if status is None:
            os.kill(child, moment.number)
    if status is None:
        status = _ended(child, 0)
    seconds = time.monotonic() - start
    text = log.read_text(errors="replace", encoding="utf-8") if log.exists() else ""
    return Ended(status, text, seconds, int(count.read_text(encoding="utf-8")) if count.exists() else 0)


def _ended(child: int, options: int) -> int | None:
    pid, status = os.waitpid(child, options)
    return os.waitstatus_to_exitcode(status) if pid else None


def _fork(
    folder: Path, commands: Commands, moment: Moment | None, log: Path, count: Path, seconds: float = 0.0
) -> int:
    """Start the process, which begins after some seconds; returns its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os._exit(_child(folder, commands, moment, log, count))
    return child


def _child(folder: Path, commands: Commands, moment: Moment | None, log: Path, count: Path) -> int:
    from molflt.cli.main import main

    status = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(folder)
        calls = _watch(moment if moment is not None and moment.seconds is None else None)
        for arguments in commands:
            sys.argv = ["molflt", *arguments]
            try:
                main()
                status = 0
            except SystemExit as stop:
                status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if status:
                break
        count.write_text(str(calls[0]), encoding="utf-8")
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def _watch(moment: Moment | None) -> list[int]:
    """Count calls that make a file durable or give it its name; end the process at one."""
    calls = [0]

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            due = moment is not None and calls[0] == moment.call
            if due and moment is not None and moment.before:
                os.kill(os.getpid(), moment.number)
            result = call(*arguments, **options)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    os.replace, os.fsync = watched(os.replace), watched(os.fsync)
    return calls
