"""Interrupt molflt at random moments, go on as documented, compare with a run left alone.

Three ways of striking, in turn: a signal (SIGKILL, SIGTERM) after a random time; SIGKILL before or after a random one
of the calls that sync or rename a file; and a power cut, which is SIGKILL and one file of the output cut off at a
random byte. One point in four is struck a second time while it goes on. Then the same command is repeated, which is
all that the guide asks for, and everything that it leaves must be the same, bit by bit: weights, EMA, optimiser,
scheduler and loops of a training, its records and report; every record of a conversion; every prediction. After a
power cut, a refusal that names the file is as good, if doing what it says then leads to the same.

With ``--two``, nothing is struck: the command runs twice at once, the second some random time after the first, half
of the time with what makes it replace a file. One must end well, the other well or with an error of one line, and
what is left must be the same.

    python -m scripts.hardening.chaos --command train --points 50 --seed 0
    python -m scripts.hardening.chaos --two --points 20

Prints a table; exits with 1 on any difference. On platforms with fork.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from scripts import results
from scripts.hardening.chaos_jobs import JOBS, Job, differences, make_inputs
from scripts.hardening.chaos_strike import Ended, Moment, run, run_to_the_end, run_two

SAME = ("same", "complete already", "refused, then same")


class Point(NamedTuple):
    """One interruption: when and how, which file was cut and where, and one of ``SAME`` or what is wrong."""

    how: str
    torn: str
    outcome: str


def strike(
    job: Job, folder: Path, reference: dict[str, Any], whole: Ended, chance: random.Random, kind: int
) -> Point:
    """Interrupt a job at one point, go on, and compare with the uninterrupted job, ``whole``.

    ``kind`` is 0 for a signal, 1 for a call, 2 for a power cut. The folder is beside the inputs and always the same,
    because reports tell where they are.
    """
    folder.mkdir()
    moments = [_moment(whole, chance, kind)]
    if chance.random() < 0.25:
        moments.append(_moment(whole, chance, chance.choice((0, 1))))
    torn = ""
    for k, moment in enumerate(moments):
        run(folder, job.commands, moment)
        final_is_there = job.final and (folder / job.final).exists()
        if final_is_there and not torn and (half := _half_written(job, folder, reference)):
            return Point(", then ".join(map(str, moments[: k + 1])), torn, half)
        if k == 0 and kind == 2:
            torn = _tear(job.files(folder), folder, chance)
    how = ", then ".join(map(str, moments))
    again = run_to_the_end(folder, job.commands)
    if again.status == 0:
        return Point(how, torn, _compared(job, folder, reference))
    if again.status != 2 or "Traceback" in again.text:
        return Point(how, torn, f"status {again.status}: {again.text.strip()[-300:]}")
    if "exists already" in again.text and _compared(job, folder, reference) == "same":
        return Point(how, torn, "complete already")
    if not torn:
        return Point(how, torn, f"refused: {again.text.strip()[-300:]}")
    if not any(path.name in again.text for path in job.files(folder)):
        return Point(how, torn, f"refused without naming the file: {again.text.strip()[-300:]}")
    commands = [*job.commands[:-1], (*job.commands[-1], *job.remedy)]
    if not job.remedy:
        for path in job.files(folder):
            path.unlink()
    run_to_the_end(folder, commands)
    outcome = _compared(job, folder, reference)
    return Point(how, torn, "refused, then same" if outcome == "same" else outcome)


def two_at_once(job: Job, folder: Path, reference: dict[str, Any], whole: Ended, chance: random.Random) -> Point:
    """Run a job twice at once, and compare what is left with the job alone, ``whole``."""
    folder.mkdir()
    commands = [job.commands, job.commands]
    if job.remedy and chance.random() < 0.5:
        more = [*job.commands[:-1], (*job.commands[-1], *job.remedy)]
        commands[1] = more
        if chance.random() < 0.5:
            # A good file is there, and both replace it.
            run_to_the_end(folder, job.commands)
            commands[0] = more
    # Most moments matter at the beginning, where files are made.
    later = chance.choice((0.0, chance.uniform(0, 0.1), chance.uniform(0, whole.seconds)))
    ended = run_two(folder, *commands, later)
    how = f"the second after {later:.2f} s, ended with {ended[0].status} and {ended[1].status}"
    for one in ended:
        if one.status not in (0, 2) or "Traceback" in one.text:
            return Point(how, "", f"status {one.status}: {one.text.strip()[-300:]}")
    if 0 not in (ended[0].status, ended[1].status):
        return Point(how, "", f"neither did it: {ended[0].text.strip()[-200:]}; {ended[1].text.strip()[-200:]}")
    return Point(how, "", _compared(job, folder, reference))


def _moment(whole: Ended, chance: random.Random, kind: int) -> Moment:
    if kind == 1 or (kind == 2 and chance.random() < 0.5):
        return Moment(None, call=chance.randint(1, max(1, whole.calls)), before=chance.random() < 0.5)
    number = signal.SIGKILL if kind == 2 else chance.choice((signal.SIGKILL, signal.SIGTERM))
    return Moment(chance.uniform(0, whole.seconds), number)


def _tear(paths: list[Path], folder: Path, chance: random.Random) -> str:
    if not paths:
        return "nothing to cut"
    path = chance.choice(paths)
    size = path.stat().st_size
    length = chance.randrange(size) if size else 0
    os.truncate(path, length)
    return f"{path.relative_to(folder)} at {length} of {size}"


def _half_written(job: Job, folder: Path, reference: dict[str, Any]) -> str:
    """Say what is wrong with a file of the final name just after the end; empty if nothing is."""
    try:
        different = differences(job.outcome(folder), reference)
    except Exception as error:
        return f"half-written: {error!r}"
    # What a killed process leaves beside it is the next one's to clear away.
    return f"half-written: {different}" if set(different) - {"files"} else ""


def _compared(job: Job, folder: Path, reference: dict[str, Any]) -> str:
    try:
        different = differences(job.outcome(folder), reference)
    except Exception as error:
        return f"unreadable: {error!r}"
    return f"{len(different)} differ: {', '.join(different[:4])}" if different else "same"


def chaos(names: list[str], n_points: int, seed: int, work: Path, two: bool = False) -> bool:
    """Strike every job at some points, or run it twice at once, and print what came of it.

    Returns:
        Whether all outcomes were as they should be.
    """
    make_inputs(work / "inputs")
    fine = True
    for name in names:
        job, chance, folder = JOBS[name], random.Random(f"{seed} {name}"), work / "work"  # noqa: S311 (not for secrets)
        folder.mkdir()
        whole = run_to_the_end(folder, job.commands)
        if whole.status:
            raise RuntimeError(f"{name} fails without an interruption:\n{whole.text}")
        reference = job.outcome(folder)
        shutil.rmtree(folder)
        print(f"{name}: {whole.seconds:.1f} s and {whole.calls} syncs and renames; {len(reference)} items compared")
        counts: Counter[str] = Counter()
        for k in range(n_points):
            if two:
                point = two_at_once(job, folder, reference, whole, chance)
            else:
                point = strike(job, folder, reference, whole, chance, k % 3)
            shutil.rmtree(folder)
            good = point.outcome in SAME
            fine &= good
            counts[point.outcome if good else "DIFFERENT"] += 1
            torn = f"; cut {point.torn}" if point.torn else ""
            mark = "" if good else "WRONG: "
            print(
                f"{name:<14}{k + 1:>4}  {point.how + torn:<90}  {mark}{' | '.join(point.outcome.splitlines())}",
                flush=True,
            )
        print(f"{name}: {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common())}\n", flush=True)
    return fine


def main() -> None:
    """Read the options and strike."""
    parser = results.command(__doc__)
    parser.add_argument("--command", choices=JOBS, action="append", help="may be given again; default: all")
    parser.add_argument("--points", type=int, default=50, help="interruptions of each command (default 50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--two", action="store_true", help="strike nothing; run each command twice at once")
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        sys.exit("chaos.py needs fork, which this platform has not")
    _import_everything()
    with tempfile.TemporaryDirectory(prefix="molflt-chaos-") as work:
        fine = chaos(options.command or list(JOBS), options.points, options.seed, Path(work), options.two)
    if not fine:
        sys.exit(1)


def _import_everything() -> None:
    """Import what the commands import when they run: a strike is to meet them at work."""
    import molflt.data.oc20.writer  # noqa: F401
    import molflt.invariance  # noqa: F401
    import molflt.prediction.shards  # noqa: F401
    import molflt.report.model  # noqa: F401
    import molflt.training.ensemble  # noqa: F401


if __name__ == "__main__":
    main()
