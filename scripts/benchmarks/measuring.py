"""Seconds and peak memory of a call, measured in the process that makes it.

Nothing here needs molflt: the peers' own environment measures with this file too.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

MARK = "measured: "
"""Before the JSON on the line by which a measurement answers."""

DOES_NOT_FIT, UNAVAILABLE, FAILED, DONE = "does not fit", "not available", "failed", "done"

_OUT_OF_MEMORY = ("can't allocate", "not enough memory", "out of memory", "cannot allocate", "bad_alloc")


class UnavailableError(Exception):
    """The machine or the environment cannot do what was asked for, for the reason given."""


class Growth(NamedTuple):
    """What a call did to the memory in use, bytes."""

    peak: float
    kept: float


def synchronise(device: torch.device) -> None:
    """Wait for what the device still has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_growth(call: Callable[[], object], device: torch.device) -> Growth:
    """By how many bytes a call raises the peak above what was taken before it, and how many are still taken after.

    On a GPU the allocator's count. On a CPU resident memory as the kernel counts it, which includes what PyTorch's
    own count would miss: workspaces of FFT and BLAS, and NumPy.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = float(torch.cuda.memory_allocated(device))
        call()
        torch.cuda.synchronize(device)
        after, peak = float(torch.cuda.memory_allocated(device)), float(torch.cuda.max_memory_allocated(device))
        return Growth(peak - before, max(0.0, after - before))
    _return_free_memory()
    # The peak so far may be that of imports: the kernel starts anew from what is resident now. ru_maxrss would not
    # do, which a process takes over from the one that started it.
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    call()
    peak = _resident("VmHWM")
    _return_free_memory()
    return Growth(max(0.0, peak - before), max(0.0, _resident("VmRSS") - before))


def _return_free_memory() -> None:
    """Give back what malloc holds: memory freed earlier, and used again by the call, would otherwise not count."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return


def _resident(field: str) -> float:
    """VmRSS (now), VmHWM (the peak) or VmSize (addresses in use) of this process, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(field))


def seconds_of(call: Callable[[], object], repeats: int, budget: float, device: torch.device) -> list[float]:
    """Wall-clock seconds of repeated calls: as many as asked for, but none is started after the budget is spent."""
    found: list[float] = []
    while len(found) < repeats and (not found or sum(found) < budget):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        found.append(time.perf_counter() - start)
    return found


def limit_memory(gibibytes: float) -> None:
    """Refuse this process more memory than it has now plus so much: an allocation then fails instead of swapping."""
    limit = int(_resident("VmSize") + gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def answer(measure: Callable[[], dict[str, Any]]) -> None:
    """Print what a measurement found, or why it found nothing, as one line of JSON."""
    load = os.getloadavg()[0]
    try:
        found = {"status": DONE, **measure()}
    except UnavailableError as error:
        found = {"status": UNAVAILABLE, "note": str(error)}
    except MemoryError:
        found = {"status": DOES_NOT_FIT, "note": "out of memory"}
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        if any(words in str(error).lower() for words in _OUT_OF_MEMORY):
            found = {"status": DOES_NOT_FIT, "note": first}
        else:
            traceback.print_exc()
            found = {"status": FAILED, "note": f"{type(error).__name__}: {first}"}
    print(MARK + json.dumps({**found, "load_before": load}), flush=True)
