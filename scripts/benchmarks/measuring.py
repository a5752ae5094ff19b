"""Seconds and peak memory of a call, and a process of its own to measure them in.

    python -m scripts.benchmarks.measuring MODULE:FUNCTION ARGUMENTS

is such a process: it calls a function of a module here with arguments given as JSON, and prints a line of JSON.
Nothing here needs molflt: the peers' own environment measures with this file too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]

MARK = "measured: "
"""Before the JSON on the line by which a measurement answers."""

DOES_NOT_FIT, UNAVAILABLE, FAILED, DONE = "does not fit", "not available", "failed", "done"
TOO_SLOW = "over the time limit"

_OUT_OF_MEMORY = ("can't allocate", "not enough memory", "out of memory", "cannot allocate", "bad_alloc")


class UnavailableError(Exception):
    """The machine or the environment cannot do what was asked for, for the reason given."""


def synchronise(device: torch.device) -> None:
    """Wait for what the device still has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def start_peak(device: torch.device) -> float:
    """Measure :func:`peak` from here on; returns the bytes that are taken now.

    On a GPU the allocator's count. On a CPU resident memory as the kernel counts it, which includes what PyTorch's
    own count would miss: workspaces of FFT and BLAS, and NumPy.
    """
    gc.collect()
    if device.type == "cuda":
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    return_free_memory()
    # The peak so far may be that of imports: the kernel starts anew from what is resident now. ru_maxrss would not
    # do, which a process takes over from the one that started it.
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return resident("VmRSS")


def peak(device: torch.device) -> float:
    """The most bytes that were taken since :func:`start_peak`."""
    if device.type == "cuda":
        synchronise(device)
        return float(torch.cuda.max_memory_allocated(device))
    return resident("VmHWM")


def peak_growth(call: Callable[[], object], device: torch.device) -> float:
    """By how many bytes a call raises the peak above what was taken before it."""
    before = start_peak(device)
    call()
    return max(0.0, peak(device) - before)


def return_free_memory() -> None:
    """Give back what malloc holds: memory freed earlier and used again would not count."""
    ctypes.CDLL(None).malloc_trim(0)


def resident(field: str) -> float:
    """A field of /proc/self/status in bytes: VmRSS (now), VmHWM (the peak), VmSize (addresses)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(field))


def seconds_of(call: Callable[[], object], repeats: int, budget: float, device: torch.device) -> list[float]:
    """Wall-clock seconds of repeated calls, of which none is started after the budget is spent."""
    found: list[float] = []
    while len(found) < repeats and (not found or sum(found) < budget):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        found.append(time.perf_counter() - start)
    return found


def limit_memory(gibibytes: float) -> None:
    """Allow this process so much more memory: an allocation then fails instead of swapping."""
    limit = int(resident("VmSize") + gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def why(error: Exception) -> dict[str, str]:
    """``status`` and ``note`` of a measurement that an exception ended; prints that of a defect."""
    if isinstance(error, UnavailableError):
        return {"status": UNAVAILABLE, "note": str(error)}
    first = (str(error).strip().splitlines() or [""])[0][:200]
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY):
        return {"status": DOES_NOT_FIT, "note": first or "out of memory"}
    traceback.print_exception(error)
    return {"status": FAILED, "note": f"{type(error).__name__}: {first}"}


def answer(measure: Callable[[], dict[str, Any]]) -> None:
    """Print what a measurement found, or why it found nothing, as one line of JSON."""
    load = os.getloadavg()[0]
    # If memory runs out after all, this process is the one to be killed.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    try:
        found = {"status": DONE, **measure()}
    except Exception as error:
        found = why(error)
    print(MARK + json.dumps({**found, "load_before": load}), flush=True)


def isolated(
    function: str, threads: int, limit_seconds: float, python: str = sys.executable, **arguments: Any
) -> dict[str, Any]:
    """Call a function in a process of its own, which may run out of memory or time.

    Args:
        function: as ``module:function``, the module one of ``scripts``.
        threads: of PyTorch.
        limit_seconds: after which the process is ended.
        python: interpreter.
        arguments: of the function, what JSON can hold.

    Returns:
        Its answer; where it gave none, a ``status`` and a ``note`` that say why.
    """
    command = [python, "-m", "scripts.benchmarks.measuring", f"scripts.{function}", json.dumps(arguments)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    # As the command line sets it (molflt.cli.main), for all alike.
    environment = {"THP_MEM_ALLOC_ENABLE": "1", **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}
    # A session of its own: compilers that torch.compile started end with it.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"status": TOO_SLOW, "note": f"{limit_seconds:.0f} s"}
    lines = [line for line in out.splitlines() if line.startswith(MARK)]
    if lines:
        found: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
        if found["status"] == FAILED:
            found["stderr"] = err[-2000:]
        return found
    last = (err.strip().splitlines() or ["no word"])[-1][:200]
    if process.returncode == -signal.SIGKILL:
        return {"status": DOES_NOT_FIT, "note": "killed, as the kernel does when memory runs out"}
    if any(words in err for words in ("bad_alloc", "Cannot allocate memory", "Thread creation failed")):
        return {"status": DOES_NOT_FIT, "note": last}
    return {"status": FAILED, "note": f"exit {process.returncode}: {last}", "stderr": err[-2000:]}


def duration(seconds: float) -> str:
    """Three digits with a unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds * 1e6)} µs"


def size(n_bytes: float) -> str:
    """Three digits with a binary unit."""
    if n_bytes >= 2**30:
        return f"{_three_digits(n_bytes / 2**30)} GiB"
    return f"{_three_digits(n_bytes / 2**20)} MiB"


def _three_digits(x: float) -> str:
    return f"{x:.0f}" if x >= 99.95 else f"{x:.3g}"


if __name__ == "__main__":
    _module, _, _name = sys.argv[1].partition(":")
    answer(lambda: getattr(importlib.import_module(_module), _name)(**json.loads(sys.argv[2])))
