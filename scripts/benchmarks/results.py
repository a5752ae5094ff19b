"""What was measured, in a file that is complete after every point, and its statistics."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from molflt.files import atomic_file

_PACKAGES = ("molflt", "torch", "torch-geometric", "vesin", "numpy", "ase")


class Results:
    """Points by name, each a list of rounds, kept in a JSON file.

    Args:
        path: the file; what it holds already is kept.
        conditions: what all points share.

    Raises:
        SystemExit: the file was made under other conditions, which must not be mixed.
    """

    def __init__(self, path: Path, conditions: dict[str, Any]) -> None:
        self.path = path
        self.content: dict[str, Any] = {"machine": machine(), "conditions": conditions, "points": {}}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if conditions and found["conditions"] != json.loads(json.dumps(conditions)):
                raise SystemExit(
                    f"{path} was measured under other conditions: {found['conditions']}, now {conditions}; "
                    "choose another --out, or move the file away"
                )
            self.content = found

    def rounds(self, name: str) -> list[dict[str, Any]]:
        """What is known of a point; empty for nothing."""
        return list(self.content["points"].get(name, []))

    def add(self, name: str, found: dict[str, Any]) -> None:
        """Another round of a point, on disk before this returns."""
        self.content["points"].setdefault(name, []).append(found)
        with atomic_file(self.path) as temporary:
            temporary.write_text(json.dumps(self.content, indent=1, ensure_ascii=False), encoding="utf-8")

    def forget(self, status: Sequence[str]) -> None:
        """Drop points whose last round ended in one of these ways, to measure them again."""
        points = self.content["points"]
        self.content["points"] = {name: r for name, r in points.items() if r[-1]["status"] not in status}


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system and versions."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def machine_line(found: dict[str, Any]) -> str:
    """The machine in a sentence for people."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    gpu = f", {found['gpu']}" if "gpu" in found else ""
    return (
        f"{found['processor']}, {found['cores']} cores, {found['memory_gib']} GiB{gpu}; {found['system']}; "
        f"Python {found['python']}, {versions}"
    )


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    low, q1, median, q3, high = (float(x) for x in np.percentile(seconds, [0, 25, 50, 75, 100]))
    return {"min": low, "q1": q1, "median": median, "q3": q3, "max": high, "n": len(seconds)}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Power p of the least-squares fit values ∝ sizes^p on logarithms; None for fewer than two points."""
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def break_even(sizes: Sequence[float], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The size from which on ``ours`` is the smaller one, interpolated on logarithms.

    The smallest size if it always is, None if it is not at the largest.
    """
    if not sizes:
        return None
    difference = np.log(np.asarray(ours) / np.asarray(theirs))
    if difference[-1] > 0:
        return None
    above = np.flatnonzero(difference > 0)
    if len(above) == 0:
        return float(sizes[0])
    k = int(above[-1])
    fraction = difference[k] / (difference[k] - difference[k + 1])
    return float(np.exp((1 - fraction) * np.log(sizes[k]) + fraction * np.log(sizes[k + 1])))


def duration(seconds: float) -> str:
    """Three digits with a unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
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


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines) + "\n"
