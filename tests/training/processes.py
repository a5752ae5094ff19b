"""Runs shared by several processes on this machine, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCHERS = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 240
"""Seconds after which a test gives up: far more than any run takes, so that a hang is an error."""


def environment(**extra: str) -> dict[str, str]:
    """One thread each, and nothing of a launcher under which the tests themselves may run."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in LAUNCHERS and not key.startswith(("SLURM_", "TORCHELASTIC_"))
    }
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", **extra}


def torchrun(n: int, *arguments: object) -> list[str]:
    """The command for ``n`` processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
    return [*launcher, *map(str, arguments)]


def free_port() -> str:
    """A port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def slurm_task(rank: int, n: int, port: str) -> dict[str, str]:
    """What srun gives one of ``n`` tasks on a node of its own."""
    return environment(
        SLURM_JOB_ID="4242",
        SLURM_JOB_NAME="molflt",
        SLURM_NTASKS=str(n),
        SLURM_NTASKS_PER_NODE=str(n),
        SLURM_NNODES="1",
        SLURM_NODEID="0",
        SLURM_NODELIST="localhost",
        SLURM_PROCID=str(rank),
        SLURM_LOCALID=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )


def run(command: Sequence[str], **extra: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        list(command), capture_output=True, text=True, timeout=TIMEOUT, env=environment(**extra), check=False
    )
