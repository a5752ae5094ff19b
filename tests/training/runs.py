"""Short runs for the tests of training: starting, stopping and comparing them, in one process and in several."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import ase.io
import torch
from lightning.pytorch.callbacks import Callback

from molflt.data.ase import to_atoms
from molflt.data.open import open_dataset
from molflt.model.file import load_model
from molflt.training.run import train
from molflt.training.run_dir import read_records
from molflt.training.yaml import to_yaml

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCHERS = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 240
"""Seconds after which a test gives up: far more than any run takes, so that a hang is an error."""
FILES = {
    "best.safetensors",
    "last.safetensors",
    "last.ckpt",
    "previous.ckpt",
    "config.yaml",
    "metrics.csv",
    "metrics.jsonl",
}
QUICK = {"data.max_atoms": 150, "trainer.max_epochs": 1}
"""Few batches, for tests in which their number does not matter."""


def quiet(line):
    pass


def go(config, folder, *callbacks, resume=False):
    return train(config, folder, resume, quiet, list(callbacks))


class Stop(Callback):
    """Ctrl-C before a batch of choice."""

    def __init__(self, epoch, batch):
        self.epoch, self.batch = epoch, batch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            raise KeyboardInterrupt


class StopValidation(Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_validation_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            raise KeyboardInterrupt


class CrashBetweenFiles(Callback):
    """A crash after the epoch's metrics and models were written and before its checkpoint."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        if trainer.current_epoch == self.epoch:
            raise RuntimeError("crash")


def assert_same_run(a, b):
    assert read_records(a) == read_records(b)
    for name in ("metrics.csv", "metrics.jsonl"):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    for name in ("best.safetensors", "last.safetensors"):
        first, second = load_model(a / name), load_model(b / name)
        assert first.metadata == second.metadata
        for key, value in first.model.state_dict().items():
            assert torch.equal(value, second.model.state_dict()[key]), key


def written(config, folder):
    """The YAML file of a configuration, in a folder that is made if it is not there."""
    folder.mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(to_yaml(config), encoding="utf-8")
    return folder / "c.yaml"


def with_forces(source, path):
    """A copy of a set whose structures have no forces of their own; any numbers will do."""
    frames = []
    for k, data in enumerate(open_dataset(source)):
        data.forces = torch.sin(data.positions + k)
        frames.append(to_atoms(data))
    ase.io.write(path, frames)
    return str(path)


def environment(**extra):
    """One thread each, and nothing of a launcher under which the tests themselves may run."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in LAUNCHERS and not key.startswith(("SLURM_", "TORCHELASTIC_"))
    }
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", **extra}


def torchrun(n, *arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
    return [*launcher, *map(str, arguments)]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def slurm_task(rank, n, port, n_nodes=1):
    """Environment that srun gives one of ``n`` tasks, as many on each of the nodes."""
    of_node = n // n_nodes
    return environment(
        SLURM_JOB_ID="4242",
        SLURM_JOB_NAME="molflt",
        SLURM_NTASKS=str(n),
        SLURM_NTASKS_PER_NODE=str(of_node),
        SLURM_NNODES=str(n_nodes),
        SLURM_NODEID=str(rank // of_node),
        SLURM_NODELIST="localhost",
        SLURM_PROCID=str(rank),
        SLURM_LOCALID=str(rank % of_node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )


def run(command, **extra):
    return subprocess.run(
        list(command), capture_output=True, text=True, timeout=TIMEOUT, env=environment(**extra), check=False
    )
