"""The processes that share a run and those that load its data: who started them, and what to say when one is lost.

Lightning takes seconds to import and is imported where it is needed: the command line asks at once who is first.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from molflt.errors import InputError

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning.pytorch.strategies import Strategy

    from molflt.data.quality.screen import Crew
    from molflt.training.config import TrainerConfig

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""Set by torchrun; by Lightning for the processes it starts; by hand for its nodes; by srun; by jsrun."""
_LOST_PARTNER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "gloo",
    "NCCL",
    "Timed out waiting",
)
"""Found in the error of a collective operation whose partner is gone."""
_LOST_LOADER = re.compile("DataLoader worker .*(killed by signal|exited unexpectedly)")
"""Torch's error about a loader process that is gone, which has no type of its own."""
_PATIENCE = 10.0
"""Seconds that the first process has to report an error that all have, and that any process has to end by itself."""


def is_first_process() -> bool:
    """Whether this process speaks for all of them; there is one for every device."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def check_processes(config: TrainerConfig) -> None:
    """Check that torchrun or SLURM, if either started this process, started as many as are configured.

    Processes that do not know of each other would all write to the same run directory.

    Raises:
        InputError: it started another number.
    """
    wanted = f"trainer.devices={config.devices} and trainer.num_nodes={config.num_nodes}"
    if _by_torchrun():
        if (n := int(os.environ["WORLD_SIZE"])) != config.devices * config.num_nodes:
            raise InputError(
                f"torchrun started {n} process{'es' * (n != 1)}, but the configuration has {wanted}; start torchrun "
                f"with --nproc-per-node {config.devices} --nnodes {config.num_nodes}, or change the configuration"
            )
    elif _by_slurm() and (n := int(os.environ["SLURM_NTASKS"])) != config.devices * config.num_nodes:
        raise InputError(
            f"SLURM started {n} task{'s' * (n != 1)}, but the configuration has {wanted}; give sbatch --nodes="
            f"{config.num_nodes} --ntasks-per-node={config.devices} and put srun before the command"
        )


def cluster_plugins() -> list[ClusterEnvironment]:
    """What Lightning must be told about who started this process; an empty list where it finds out by itself.

    Raises:
        InputError: SLURM's variables do not say how the tasks are spread over the nodes.
    """
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

    if _by_torchrun() or not _by_slurm():
        return []
    try:
        # Lightning would requeue a job from a checkpoint of its own, in the folder where the command runs;
        # '--resume auto' continues a requeued job from the checkpoint of the run.
        return [SLURMEnvironment(auto_requeue=False)]
    except RuntimeError as error:
        n_tasks = os.environ["SLURM_NTASKS"]
        raise InputError(
            f"SLURM started {n_tasks} tasks and does not say how many on a node; give sbatch --ntasks-per-node"
        ) from error


def connect(strategy: Strategy) -> Crew:
    """Start the other processes of the run, unless a launcher has, and connect all of them.

    Lightning would do so only when training begins, after each of them had read all data.
    """
    from molflt.data.quality.screen import ALONE, Crew

    if strategy.launcher is None:
        return ALONE
    import torch

    strategy.launcher.launch(lambda: None)
    strategy.setup_environment()
    rank, n = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * n
        torch.distributed.all_gather_object(values, value)
        return values

    return Crew(rank, n, gather)


@contextmanager
def losing_no_process(n_processes: int) -> Iterator[None]:
    """Say in plain words that another process of the run is gone.

    Raises:
        ConnectionError: it is; the run can be resumed.
    """
    if n_processes > 1 and _by_lightning():
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        yield
    except RuntimeError as error:
        if n_processes > 1 and any(words in str(error) for words in _LOST_PARTNER):
            raise ConnectionError(
                f"another of the run's {n_processes} processes ended, so process {_rank()} cannot go on"
            ) from error
        raise


@contextmanager
def losing_no_loader() -> Iterator[None]:
    """Say in plain words what happened to a process that loads data.

    Raises:
        InputError: as raised in the process, without its traceback.
        ChildProcessError: the process is gone; the run can be resumed.
    """
    from torch.utils.data._utils import signal_handling

    # Torch's handler would raise wherever the process is when it hears of the loss, be it in a finaliser or with a
    # lock held, which then is for ever. Without the handler, torch looks after its processes every five seconds.
    signal_handling._SIGCHLD_handler_set = True
    try:
        yield
    except InputError as error:
        if "DataLoader worker process" not in str(error):
            raise
        raise InputError(str(error).rsplit("InputError: ", 1)[-1].strip()) from error
    except (RuntimeError, OSError, EOFError) as error:
        # Either torch has looked, or the process was to hand over a tensor.
        handing_over = any("multiprocessing" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if not handing_over and not _LOST_LOADER.search(str(error)):
            raise
        raise ChildProcessError(
            "a loader process was killed, which is what systems do when memory runs out; a smaller data.num_workers "
            "needs less"
        ) from error


def wait_for_the_first() -> None:
    """Give the first process time to report an error that all processes have; it then ends all others.

    This returns when it did not, in which case the error is this process's own.
    """
    parent, until = os.getppid(), time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if _by_lightning() and os.getppid() != parent:
            sys.exit(2)
        time.sleep(0.1)


def _by_torchrun() -> bool:
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    return TorchElasticEnvironment.detect()


def _by_slurm() -> bool:
    # A shell in an allocation starts whatever it likes.
    return "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")


def _by_lightning() -> bool:
    """Whether the parent of this process is the first process of the run."""
    return not _by_torchrun() and not _by_slurm() and int(os.environ.get("LOCAL_RANK", "0")) > 0


def _rank() -> int:
    import torch
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    if torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(getattr(rank_zero_only, "rank", 0) or 0)


def _end_with_parent(parent: int) -> None:
    """A collective operation on GPUs may wait for a process that is gone, and no launcher watches the first one."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(_PATIENCE)
    print(f"Error: the first process of the run is gone; process {_rank()} ends", file=sys.stderr, flush=True)
    os._exit(1)
