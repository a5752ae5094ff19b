"""Interruptions, and two at once: each job of ``scripts/tools/chaos.py`` is two attacks."""

from __future__ import annotations

import subprocess
import sys

from scripts.results import ROOT
from scripts.tools.attack import Attack, Outcome
from scripts.tools.chaos_jobs import JOBS

POINTS = 6
"""In a round, two of each way of striking. The inputs and the uninterrupted job take about as long as one point."""


def _attack(job: str, two: bool) -> Attack:
    def round_of(seed: int) -> Outcome:
        command = [sys.executable, "-m", "scripts.tools.chaos", "--command", job, "--points", str(POINTS)]
        command += ["--two"] if two else []
        # In a process of its own: it forks, and must not have computed anything before.
        done = subprocess.run(
            [*command, "--seed", str(seed)], capture_output=True, text=True, encoding="utf-8", cwd=ROOT, check=False
        )
        points = [line for line in done.stdout.splitlines() if line.startswith(f"{job} ")]
        wrong = [line for line in points if "  WRONG: " in line]
        if done.returncode not in (0, 1) or len(points) != POINTS or bool(wrong) != bool(done.returncode):
            raise RuntimeError(f"chaos.py ended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return Outcome(POINTS, [f"seed {seed}: {line}" for line in wrong])

    if two:
        what = (
            "runs twice at once in one place: one does it, the other too or with one line of error, and all is whole"
        )
        return Attack(f"two {job}", f"'{job}' {what}", round_of)
    what = "is killed at random, or cut off as by a power cut, and repeated: all must be the same bit by bit"
    return Attack(f"kill {job}", f"'{job}' {what}", round_of)


ATTACKS = tuple(_attack(job, two) for two in (False, True) for job in JOBS)
