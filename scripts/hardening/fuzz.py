"""Feed readers with hostile input; each must end well or in ``InputError``, and run nothing.

An input is made from its target and seed alone. Inputs run in a child process with limited memory; the parent ends it
when one input takes too long, and goes on behind an input that ended it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from molflt.errors import InputError
from scripts.benchmarks.measuring import peak, start_peak
from scripts.hardening.fuzz_targets import TARGETS

ADDRESS_SPACE = 8 << 30
"""Bytes, PyTorch's own libraries included."""
MOST_MEMORY = 1 << 30
"""Bytes that reading one input may add to the process."""
MOST_SECONDS = 30.0
MOST_MESSAGE = 20_000
"""Characters of an error that somebody is to read."""
_CPU = torch.device("cpu")
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)
"""Audit events. The last one comes from an unpickler that looks names up, which none of molflt's does."""


def run(target: str, seed: int, n: int, seconds: float = MOST_SECONDS) -> list[str]:
    """Run the inputs of ``n`` seeds, each for some seconds at most; a line for each finding."""
    found: list[str] = []
    # everything is imported already
    context = multiprocessing.get_context("fork")
    end = seed + n
    while seed < end:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(target, seed, end, sender))
        child.start()
        sender.close()
        # the first message comes when the target is prepared
        started, patience = False, 300.0
        try:
            while receiver.poll(patience):
                kind, number, text = receiver.recv()
                started, patience = True, seconds
                if kind == "finding":
                    found.append(f"{target} seed {number}: {text}")
                seed = number + (kind != "begin")
            found.append(f"{target} seed {seed}: took more than {seconds:.0f} s")
            seed += 1
        except EOFError:
            child.join()
            if not started:
                raise RuntimeError(f"the process for {target} does not start: status {child.exitcode}") from None
            if seed < end and child.exitcode:
                found.append(f"{target} seed {seed}: the process ended with status {child.exitcode}")
                seed += 1
        finally:
            child.kill()
            child.join()
    return found


def _child(name: str, seed: int, end: int, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with TemporaryDirectory() as folder:
        target = TARGETS[name](Path(folder))
        # libraries write there what they think of the input
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        events: list[str] = []
        sys.addaudithook(lambda event, _: events.append(event) if event in _FORBIDDEN else None)
        canary = Path(folder) / "canary"
        before = start_peak(_CPU)
        for number in range(seed, end):
            sender.send(("begin", number, ""))
            raw = target.make(Random(f"{name} {number}"))  # noqa: S311 (inputs, not secrets)
            events.clear()
            text = _problem(target.read, raw)
            if events or canary.exists():
                text = f"it ran: {', '.join(events) or 'the canary'}"
                canary.unlink(missing_ok=True)
            elif not text and (grown := peak(_CPU) - before) > MOST_MEMORY:
                text = f"it took {grown / (1 << 20):.0f} MiB"
            sender.send(("finding" if text else "fine", number, text))
            if peak(_CPU) - before > MOST_MEMORY:
                # Starting the peak anew takes longer than most inputs: the next one begins in a new process.
                return


def _problem(read: Callable[[bytes], object], raw: bytes) -> str:
    """Say what is wrong with the end of an input; empty if nothing is."""
    try:
        read(raw)
    except InputError as error:
        if isinstance(error.__cause__, MemoryError) or "MemoryError" in str(error):
            return "it took all memory that was allowed"
        return "" if len(str(error)) < MOST_MESSAGE else f"a message of {len(str(error)):,} characters"
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]!r} ({Path(place.filename).name}:{place.lineno})"
    return ""
