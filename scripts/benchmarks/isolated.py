"""One measurement in a process of its own, which may run out of memory or time without harm to the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import DOES_NOT_FIT, FAILED, MARK

TOO_SLOW = "over the time limit"

SCRIPTS = Path(__file__).resolve().parents[1]


def run_isolated(command: Sequence[str], threads: int, limit_seconds: float) -> dict[str, Any]:
    """Run a command that answers as :func:`benchmarks.measuring.answer` does.

    Returns:
        Its answer; where it gave none, a ``status`` and a ``note`` that say why.
    """
    path = os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH", ""))))
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
