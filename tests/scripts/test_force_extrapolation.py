"""The benchmark of forces outside the training set: it runs, and its control is invariant."""

import json
import sys

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.emt import EMT
from ase.io import write

from scripts.benchmarks import force_extrapolation
from scripts.benchmarks.force_extrapolation import TensorNet


@pytest.fixture
def folder(tmp_path):
    """Rattled ammonia by EMT."""
    random = np.random.default_rng(0)
    start = np.array([[0, 0, 0.1], [0.94, 0, -0.2], [-0.47, 0.81, -0.2], [-0.47, -0.81, -0.2]])
    for name, n in (("train", 20), ("test_600K", 5)):
        frames = [Atoms("NH3", start + random.normal(0, 0.05, (4, 3)), calculator=EMT()) for _ in range(n)]
        for frame in frames:
            frame.get_forces()
        write(tmp_path / f"{name}.xyz", frames, format="extxyz")
    return tmp_path


@pytest.mark.parametrize("job", ["tensornet, Muon", "matrices"])
def test_a_job_prints_errors_of_every_set(job, folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x", "--data", str(folder), "--job", job, "--quick"])
    force_extrapolation.main()
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] > 0
    assert {f"{part}_f" for part in ("train", "val", "test_600K")} <= found.keys()


def test_the_control_is_invariant_under_rotation_and_reflection():
    torch.manual_seed(0)
    net = TensorNet(torch.tensor([6, 1, 1, 8, 1])).double()
    positions = torch.randn(3, 5, 3, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    expected = net(positions)
    assert expected.std() > 1e-3
    for moved in (positions @ turn, -positions, positions + 3):
        # The basis of matrices is rounded to single precision.
        torch.testing.assert_close(net(moved), expected, rtol=0, atol=1e-6)
