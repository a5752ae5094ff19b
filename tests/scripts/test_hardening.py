"""The attacks of scripts/hardening find nothing in molflt, and find what is put there."""

import gc
import mmap
import os
import time
from pathlib import Path
from random import Random

import pytest
import torch

from scripts.hardening import fuzz, soak, trial
from scripts.hardening.chaos_jobs import differences, run_content
from scripts.hardening.fuzz_targets import TARGETS, Target

N = {
    "smiles": 60, "config": 100, "model": 200, "names": 60, "encodings": 60, "bombs": 10, "extents": 100,
    "archive": 100, "threads": 5,
}  # fmt: skip
"""Inputs of a target; the quick ones get more."""


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_input_is_refused(target, tmp_path):
    assert fuzz.run(target, 0, N.get(target, 400)) == []
    make = TARGETS[target](tmp_path).make
    first, again, other = (make(Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.slow
@pytest.mark.parametrize("attack", [name for name in trial.ATTACKS if name not in TARGETS])
def test_a_round_of_kills(attack, python):
    done = python("-m", "scripts.hardening.trial", "--seconds", "0", "--seed", "1", "--attack", attack)
    assert done.returncode == 0, done.stdout + done.stderr


def _raises(raw):
    raise KeyError("x")


def _sleeps(raw):
    time.sleep(60)


def _dies(raw):
    os.abort()


def _runs(raw):
    os.system("true")


def _grows(raw):
    # written to: what is only reserved takes no memory
    _ = b"x" * (fuzz.MOST_MEMORY + (64 << 20))


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (_raises, "KeyError: \"'x'\""),
        (_sleeps, "took more than 0 s"),
        (_dies, "the process ended with status -6"),
        (_runs, "it ran: os.system"),
        (_grows, "it took 1"),
    ],
)
def test_the_fuzzer_finds_what_is_wrong_and_goes_on(read, expected, monkeypatch):
    monkeypatch.setattr(fuzz, "MOST_MEMORY", 1 << 26)
    monkeypatch.setitem(TARGETS, "pyg1", lambda folder: Target(lambda random: b"", read))
    found = fuzz.run("pyg1", 5, 2, seconds=0.3 if read is _sleeps else 60.0)
    assert len(found) == 2
    for seed, line in zip((5, 6), found, strict=True):
        assert line.startswith(f"pyg1 seed {seed}: ")
        assert expected in line


def test_one_bit_is_a_difference(tiny_run):
    weights = {"a": torch.tensor([1.0, 2.0]), "b": b"x", "n": 1}
    assert differences(dict(weights), weights) == []
    assert differences({**weights, "a": torch.nextafter(weights["a"], torch.tensor(9.0))}, weights) == ["a"]
    assert differences({**weights, "a": weights["a"].double()}, weights) == ["a"]
    assert differences({"a": weights["a"], "n": True}, weights) == ["b", "n"]
    assert differences({**weights, "left over": 0}, weights) == ["left over"]
    content = run_content(tiny_run)
    for part in ("optimizer_states", "lr_schedulers", "loops", "state_dict", "callbacks", "global_step", "epoch"):
        assert any(name.startswith(f"last.ckpt: {part}") for name in content), part
    assert {"metrics.csv", "metrics.jsonl", "config.yaml", "best.safetensors", "last.safetensors"} <= set(content)


@pytest.fixture
def little_garbage():
    """What other tests have left is not collected at every sample: that takes longer than the tests."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_leak_is_found(little_garbage):
    held = []
    files = []

    def take_memory():
        # Mapped, so that no hole that earlier tests have left in the heap takes it.
        held.append(mmap.mmap(-1, 1 << 21))
        held[-1].write(b"1" * (1 << 21))

    def sampled(work):
        series = soak.Series("some work")
        for calls in range(60):
            work()
            series.sample(calls + 1)
        return series

    memory = sampled(take_memory)
    for pages in held:
        pages.close()
    descriptors = sampled(lambda: files.append(os.open(os.devnull, os.O_RDONLY)))
    for file in files:
        os.close(file)
    for series, complaint in ((memory, "memory grows by"), (descriptors, "descriptors a call")):
        (found,) = series.complaints(64.0)
        assert complaint in found
    assert memory.growth()[0] == pytest.approx(2048, rel=0.1)
    assert descriptors.growth()[1] == pytest.approx(1, rel=0.1)
    assert sampled(lambda: bytes(bytearray(1 << 18))).complaints(64.0) == []
    assert "too few" in soak.Series("short", [1], [1.0], [1.0]).complaints(64.0)[0]
