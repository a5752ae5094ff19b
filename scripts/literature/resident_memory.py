"""Peak of resident memory, for measurements in a process of their own (Linux)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def growth(call: Callable[[], object]) -> float:
    """By how many bytes a call raises the peak above what was resident before it."""
    # The peak so far is that of imports: the kernel starts anew from what is resident now. ru_maxrss would not do,
    # which a process takes over from the one that started it.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (the peak) of this process, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(field))
