"""Every way to start several processes: one speaks, one writes, and all end as they should."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.record import to_record
from molflt.errors import InputError
from molflt.training.launch import cluster_plugins, is_first_process
from molflt.training.run_dir import read_records
from molflt.training.yaml import to_yaml
from tests.training.runs import (
    FILES,
    LAUNCHERS,
    TIMEOUT,
    assert_same_run,
    environment,
    free_port,
    run,
    slurm_task,
    torchrun,
    written,
)

MOLFLT = ("-m", "molflt.cli.main")
N_EPOCHS = 16


@pytest.fixture
def no_launcher(monkeypatch):
    for name in [*LAUNCHERS, *(key for key in os.environ if key.startswith(("SLURM_", "TORCHELASTIC_")))]:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def together(n, command, n_nodes=1):
    port = free_port()
    tasks = [
        subprocess.Popen(
            command, env=slurm_task(rank, n, port, n_nodes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(n)
    ]
    try:
        ends = [task.communicate(timeout=TIMEOUT) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    return [
        subprocess.CompletedProcess(command, task.returncode, out, err)
        for task, (out, err) in zip(tasks, ends, strict=True)
    ]


@pytest.mark.slow
def test_three_launchers_one_run(make_config, tmp_path):
    config = written(make_config(**{"trainer.devices": 2}), tmp_path)
    arguments = (*MOLFLT, "train", str(config), "--out")
    runs = {name: tmp_path / name for name in ("lightning", "torchrun", "slurm", "nodes")}
    nodes = [*arguments, str(runs["nodes"]), "trainer.devices=1", "trainer.num_nodes=2"]
    ends = {
        "lightning": [run([sys.executable, *arguments, str(runs["lightning"])])],
        "torchrun": [run(torchrun(2, *arguments, runs["torchrun"]))],
        "slurm": together(2, [sys.executable, *arguments, str(runs["slurm"])]),
        "nodes": together(2, [sys.executable, *nodes], n_nodes=2),
    }
    for name, processes in ends.items():
        assert [process.returncode for process in processes] == [0] * len(processes), processes
        # torchrun itself warns of OMP_NUM_THREADS where it is not set, and says nothing here.
        lines = [line.split()[0] for process in processes for line in process.stderr.splitlines()]
        assert lines[1:] == ["epoch", "epoch", "report:"], name
        (best,) = (line for process in processes for line in process.stdout.splitlines())
        assert best.startswith("best: "), name
        assert {path.name for path in runs[name].iterdir()} == {*FILES, "report.html"}
    assert_same_run(runs["torchrun"], runs["lightning"])
    assert_same_run(runs["slurm"], runs["lightning"])
    # Two nodes of one process are one node of two.
    assert_same_run(runs["nodes"], runs["lightning"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "mistake"),
    [("lightning", "record"), ("lightning", "taken"), ("lightning", "divergence"), ("torchrun", "divergence")],
)
def test_a_mistake_is_reported_once(launcher, mistake, make_config, tiny_data, tmp_path):
    config = written(make_config(**{"trainer.devices": 2}), tmp_path)
    out = tmp_path / "run"
    overrides, message = {
        # In the share of the second process.
        "record": ([f"data.train={tmp_path / 'bad.lmdb'}"], "bad.lmdb#27"),
        "taken": ([], "is not empty"),
        # In the middle of training.
        "divergence": (["optimiser.lr=1e30", "optimiser.warmup_steps=0"], "training diverged"),
    }[mistake]
    if mistake == "taken":
        out.mkdir()
        (out / "mine.txt").write_text("mine", encoding="utf-8")
    records = [to_record(data) for data in open_dataset(tiny_data / "train.lmdb")]
    records[27]["pos"][0] = records[27]["pos"][1]
    records[27].pop("name", None)
    write_lmdb(tmp_path / "bad.lmdb", records, progress=False)
    arguments = (*MOLFLT, "train", str(config), *overrides, "--out", str(out))
    done = run([sys.executable, *arguments] if launcher == "lightning" else torchrun(2, *arguments))
    # torchrun's own status, whatever a process ended with, is 1; its report has the process's.
    assert done.returncode == (2 if launcher == "lightning" else 1)
    assert done.stderr.count(message) == 1, done.stderr
    if launcher == "torchrun":
        assert "exitcode  : 2" in done.stderr
    assert (out / "config.yaml").exists() == (mistake == "divergence")


def test_standard_input_is_for_one_process(molflt, monkeypatch, make_config):
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(to_yaml(make_config(**{"trainer.devices": 2}))))
    result = molflt("train", "-", "--out", "nowhere")
    assert result.status == 2
    assert "cannot be read by several processes" in result.err


def test_who_is_first(no_launcher):
    assert is_first_process()
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        no_launcher.setenv(name, "0")
        assert is_first_process()
        no_launcher.setenv(name, "1")
        assert not is_first_process()
        no_launcher.setenv(name, "0")


def test_torchrun_and_the_configuration_must_agree(no_launcher, make_config):
    no_launcher.setenv("TORCHELASTIC_RUN_ID", "x")
    no_launcher.setenv("WORLD_SIZE", "2")
    assert cluster_plugins(make_config(**{"trainer.devices": 2}).trainer) == []
    assert cluster_plugins(make_config(**{"trainer.num_nodes": 2}).trainer) == []
    with pytest.raises(InputError, match=r"torchrun started 2 processes, .*trainer\.devices=1 .*--nproc-per-node 1"):
        cluster_plugins(make_config().trainer)


def test_slurm_and_the_configuration_must_agree(no_launcher, make_config):
    for name, value in slurm_task(0, 2, "1").items():
        if name.startswith("SLURM_"):
            no_launcher.setenv(name, value)
    with pytest.raises(InputError, match=r"SLURM started 2 processes, .*--ntasks-per-node=1, srun"):
        cluster_plugins(make_config().trainer)
    (plugin,) = cluster_plugins(make_config(**{"trainer.devices": 2}).trainer)
    assert (plugin.global_rank(), plugin.world_size(), plugin.auto_requeue) == (0, 2, False)
    no_launcher.delenv("SLURM_NTASKS_PER_NODE")
    with pytest.raises(InputError, match="how many on a node; give sbatch --ntasks-per-node"):
        cluster_plugins(make_config(**{"trainer.devices": 2}).trainer)
    # A shell in an allocation.
    no_launcher.setenv("SLURM_JOB_NAME", "bash")
    assert cluster_plugins(make_config().trainer) == []


def family(mark):
    """Environments of the living processes that carry a mark, by their numbers; one that has ended has none."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if f"MARK={mark}".encode() in variables:
                found[int(folder.name)] = variables
    return found


@pytest.fixture(scope="module")
def uninterrupted(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    config = written(make_config(**{"trainer.devices": 2, "trainer.max_epochs": N_EPOCHS}), folder)
    done = run([sys.executable, *MOLFLT, "train", str(config), "--no-report", "--out", str(folder / "run")])
    assert done.returncode == 0, done
    return config, folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "rank"), [("lightning", 1), ("lightning", 0), ("torchrun", 1)])
def test_a_killed_process(launcher, rank, uninterrupted, tmp_path):
    """The others end by themselves, say why, and the run goes on as if nothing had happened."""
    config, whole = uninterrupted
    out = tmp_path / "run"
    arguments = (*MOLFLT, "train", str(config), "--no-report", "--resume", "auto", "--out")
    command = [sys.executable, *arguments] if launcher == "lightning" else torchrun(2, *arguments)
    marked = environment(MARK=str(out))
    process = subprocess.Popen([*command, out], env=marked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + TIMEOUT
        while len(read_records(out)) < 2 or not (out / "last.ckpt").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ranks = [pid for pid, variables in family(out).items() if f"LOCAL_RANK={rank}".encode() in variables]
        # Lightning's first process is the one that was started.
        os.kill(ranks[0] if ranks else process.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=TIMEOUT)
        while family(out):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for pid in family(out):
            os.kill(pid, signal.SIGKILL)
    assert process.returncode != 0
    if launcher == "lightning":
        assert "another of the run's 2 processes ended" in err, err
        assert "--resume auto" in err
    else:
        assert "Signal 9 (SIGKILL)" in err, err
    # torchrun's report of the failure is a traceback of its own.
    assert err.count("Traceback") == (launcher == "torchrun")
    assert len(read_records(out)) < N_EPOCHS, "killed too late"
    again = run([*command, str(out)])
    assert again.returncode == 0, again
    assert_same_run(out, whole)
