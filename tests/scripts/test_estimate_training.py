"""The estimate of memory and time: what is measured, and how it is scaled."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from molflt.data.sources import open_dataset
from molflt.training.presets import preset_config

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def estimate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import estimate_training

    return estimate_training


def test_what_is_measured(estimate: ModuleType) -> None:
    structures = open_dataset(estimate.DATA)
    config = preset_config("tiny").model
    indices = estimate.near_size(structures, 30, 2)
    torch.manual_seed(0)
    single = estimate.measure(config, structures, indices[:1])
    double = estimate.measure(config, structures, indices)
    assert single.n_parameters == double.n_parameters > 10_000
    assert double.n_atoms == int(structures.n_atoms[indices].sum())
    # Linear in atoms.
    assert double.saved_per_atom == pytest.approx(single.saved_per_atom, rel=0.3)
    assert double.flops_per_atom == pytest.approx(single.flops_per_atom, rel=0.3)
    # Dense layers alone: 2 operations a weight forwards, 4 backwards.
    weights = config.n_layers * (4 * config.dim**2 + 2 * config.dim * config.ffn_dim)
    assert double.flops_per_atom > 6 * weights
    # A larger batch is hardly more operations.
    assert single.launches > 100
    assert double.launches < 1.5 * single.launches
    # Recycles multiply what the layers keep, but neither what they make of positions alone nor the parameters.
    twice = estimate.measure(config.model_copy(update={"n_recycles": 2}), structures, indices[:1])
    assert twice.n_parameters == single.n_parameters
    assert 1.2 * single.saved < twice.saved < 2.2 * single.saved


def test_scaling_by_hand(estimate: ModuleType) -> None:
    taken = estimate.Measurement(1024**3 // 16, 2, 100, 5000, 100 * 2**20, 100 * 10**9, 10_000, 0.003)
    text = "\n".join(estimate.table(taken, taken, 1, 8, 64, 80.0, 86400, [8.0]))
    # 8 structures of 80 atoms on each; 1 MiB and 1 GFLOP an atom.
    assert "640 atoms on each" in text
    assert "1.00 GiB on every GPU" in text
    assert "0.6 GiB on every GPU" in text
    assert "0.07 s at 7 µs each" in text
    assert "3.0 ms a structure and core" in text
    assert "0.08 s a step, 0.1 days for 86,400 steps" in text
    # The launches take longer than a GPU that is fast.
    assert "0.07 s a step" in "\n".join(estimate.table(taken, taken, 1, 8, 64, 80.0, 86400, [800.0]))


def test_command_line(
    estimate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["estimate_training.py", "--preset", "tiny", "--atoms", "20", "--structures", "1"]
    )
    estimate.main()
    assert "tiny: 2 layers, 1 recycles" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["estimate_training.py", "--batch", "0"])
    with pytest.raises(SystemExit):
        estimate.main()
