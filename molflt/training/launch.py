"""Processes that share a run or load its data: who started them, and how they end.

Lightning takes seconds to import and is imported where it is needed: the command line asks at once who is first.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from molflt.errors import InputError

if TYPE_CHECKING:
    import lightning
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning.pytorch.strategies import Strategy

    from molflt.data.quality.screen import Crew
    from molflt.training.config import TrainerConfig

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""Set by torchrun; by Lightning for the processes it starts; by hand for its nodes; by srun; by jsrun."""
_LOST_PARTNER = re.compile("Connection (closed|reset) by peer|Broken pipe|gloo|NCCL|Timed out waiting")
"""Found in the error of a collective operation whose partner is gone."""
_LOST_LOADER = re.compile("DataLoader worker .*(killed by signal|exited unexpectedly)")
"""Torch's error about a loader process that is gone, which has no type of its own."""
_PATIENCE = 10.0
"""Seconds that the first process has to report an error that all have."""


def is_first_process() -> bool:
    """Return True in the process that speaks for all of them; there is one for every device."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def cluster_plugins(config: TrainerConfig) -> list[ClusterEnvironment]:
    """Tell Lightning who started this process; an empty list where it finds out by itself.

    Processes that do not know of each other would all write to the same run directory.

    Raises:
        InputError: torchrun or SLURM started another number than is configured; or SLURM's variables do not say how
            the tasks are spread over the nodes.
    """
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if TorchElasticEnvironment.detect():
        starter, n = "torchrun", int(os.environ["WORLD_SIZE"])
        right = f"torchrun with --nproc-per-node {config.devices} --nnodes {config.num_nodes}"
    # A shell in an allocation starts whatever it likes.
    elif "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        starter, n = "SLURM", int(os.environ["SLURM_NTASKS"])
        right = f"sbatch with --nodes={config.num_nodes} --ntasks-per-node={config.devices}, srun before the command"
    else:
        return []
    if n != config.devices * config.num_nodes:
        raise InputError(
            f"{starter} started {n} process{'es' * (n != 1)}, but the configuration has trainer.devices="
            f"{config.devices} and trainer.num_nodes={config.num_nodes}; use {right}, or change the configuration"
        )
    if starter == "torchrun":
        return []
    try:
        # Lightning would requeue a job from a checkpoint of its own, in the folder where the command runs;
        # '--resume auto' continues a requeued job from the checkpoint of the run.
        return [SLURMEnvironment(auto_requeue=False)]
    except RuntimeError as error:
        raise InputError(
            f"SLURM started {n} tasks and does not say how many on a node; give sbatch --ntasks-per-node"
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
def explain_lost_process(n_processes: int) -> Iterator[None]:
    """Say in plain words that another process of the run is gone.

    Raises:
        ConnectionError: it is; the run can be resumed.
    """
    try:
        yield
    except RuntimeError as error:
        if n_processes > 1 and _LOST_PARTNER.search(str(error)):
            raise ConnectionError(
                f"another of the run's {n_processes} processes ended, so this one cannot continue"
            ) from error
        raise


@contextmanager
def explain_lost_loader() -> Iterator[None]:
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
            "a loader process was killed, probably because memory ran out; a smaller data.num_workers needs less"
        ) from error


def wait_for_first_process() -> None:
    """Give the first process time to report an error of all; its end is that of this one.

    This returns when it did not, in which case the error is this process's own.
    """
    parent, until = os.getppid(), time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if os.getppid() != parent:
            sys.exit(2)
        time.sleep(0.1)


@contextmanager
def interrupts(trainer: lightning.Trainer) -> Iterator[None]:
    """Give Ctrl-C and SIGTERM their usual meaning.

    Lightning ends the process with status 1 on Ctrl-C, deaf to further ones, and with status 0 on SIGTERM.
    """
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SIGTERMException as stop:
        raise SystemExit(128 + signal.SIGTERM) from stop
    except SystemExit as stop:
        if trainer.interrupted:
            raise KeyboardInterrupt from stop
        raise
    finally:
        if main_thread:
            signal.signal(signal.SIGINT, handler)
