"""The processes that share a run: who started them, and what happens when one is lost."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only

from molflt.errors import InputError
from molflt.training.config import TrainerConfig

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL", "Timed out waiting")
"""What the error of a collective says whose partner is gone."""
_PATIENCE = 10.0
"""Seconds in which the first process reports an error that all have, or in which a process ends by itself."""


def check_processes(config: TrainerConfig) -> None:
    """Check that torchrun or SLURM, if one of them started this process, started as many as are configured.

    Processes that do not know of each other would all write the same run directory.

    Raises:
        InputError: it did not.
    """
    wanted = f"trainer.devices={config.devices} and trainer.num_nodes={config.num_nodes}"
    if TorchElasticEnvironment.detect():
        if (n := int(os.environ["WORLD_SIZE"])) != config.devices * config.num_nodes:
            raise InputError(
                f"torchrun started {n} process{'es' * (n != 1)}, the configuration has {wanted}; give torchrun "
                f"--nproc-per-node {config.devices} --nnodes {config.num_nodes}, or the configuration what it started"
            )
    elif _slurm() and (n := int(os.environ["SLURM_NTASKS"])) != config.devices * config.num_nodes:
        raise InputError(
            f"SLURM started {n} task{'s' * (n != 1)}, the configuration has {wanted}; give sbatch --nodes="
            f"{config.num_nodes} --ntasks-per-node={config.devices} and put srun before the command"
        )


def cluster_plugins() -> list[ClusterEnvironment]:
    """What Lightning is told about who started this process; nothing: it finds out.

    Raises:
        InputError: SLURM's variables do not say how the tasks are spread.
    """
    if TorchElasticEnvironment.detect() or not _slurm():
        return []
    try:
        # Lightning's own requeueing continues from a checkpoint of its own in whichever folder the command runs;
        # '--resume auto' continues a requeued job from that of the run.
        return [SLURMEnvironment(auto_requeue=False)]
    except RuntimeError as error:
        n_tasks = os.environ["SLURM_NTASKS"]
        raise InputError(
            f"SLURM started {n_tasks} tasks and does not say how many on a node; give sbatch --ntasks-per-node"
        ) from error


def _slurm() -> bool:
    # Shells in an allocation start what they like.
    return "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")


@contextmanager
def losing_no_process(n_processes: int) -> Iterator[None]:
    """Turn the error of a collective whose partner is gone into one that says so.

    Raises:
        ConnectionError: another process of the run has ended.
    """
    if n_processes > 1 and _started_by_lightning():
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        yield
    except RuntimeError as error:
        if n_processes > 1 and any(word in str(error) for word in _LOST):
            raise ConnectionError(
                f"another of the run's {n_processes} processes ended, so that process {_rank()} cannot go on"
            ) from error
        raise


def wait_for_the_first() -> None:
    """Give the first process the time to report an error that all have, upon which it ends all others.

    Returns when it did not: the error is this process's own.
    """
    parent, until = os.getppid(), time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if _started_by_lightning() and os.getppid() != parent:
            sys.exit(2)
        time.sleep(0.1)


def _rank() -> int:
    return (
        torch.distributed.get_rank()
        if torch.distributed.is_initialized()
        else int(getattr(rank_zero_only, "rank", 0) or 0)
    )


def _started_by_lightning() -> bool:
    """Whether the parent of this process is the first process of the run."""
    external = TorchElasticEnvironment.detect() or _slurm()
    return not external and int(os.environ.get("LOCAL_RANK", "0")) > 0


def _end_with_parent(parent: int) -> None:
    """A collective on GPUs may wait for a process that is gone; no launcher looks after the first one."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(_PATIENCE)
    print(f"Error: the first process of the run is gone; process {_rank()} ends", file=sys.stderr, flush=True)
    os._exit(1)
