"""The long-range pilots: their energies, and what a model can and cannot know across a vacuum."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from molflt.data.batch import collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.open import open_dataset
from molflt.model.energy_model import EnergyModel
from scripts import results
from scripts.benchmarks import pilots


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pilots.write_data("dipoles", tmp_path_factory.mktemp("dipoles"), 300)[0]


def features(path: Path, attention: dict) -> tuple[Tensor, Tensor]:
    """(n, dim) mean over the atoms of what an untrained encoder makes of each structure, and (n,) energies."""
    chosen = pilots.config(path, path, attention, seed=0, epochs=1, max_atoms=100, lr=2e-3)
    torch.manual_seed(0)
    model = EnergyModel(chosen.model, 0).double().eval()
    data = open_dataset(path)
    batch = collate([attach_neighbours(data[i], model.config.neighbour_cutoff) for i in range(len(data))])
    found: list[Tensor] = []
    model.encoder.register_forward_hook(lambda module, inputs, output: found.append(output))
    with torch.no_grad():
        model(batch)
    return found[0].view(len(data), 4, -1).mean(dim=1), batch.y_relaxed.double()


def spread(x: Tensor) -> float:
    """Root mean square deviation of the features from their mean."""
    return float((x - x.mean(dim=0)).square().mean().sqrt())


def test_the_energy_is_that_of_two_dipoles_far_apart():
    """The leading term, p²/(4πε₀R³)(cos θ₁₂ − 3 cos θ₁ cos θ₂), of ions 2.4 Å apart at a distance of 100 Å."""
    random = np.random.default_rng(3)
    ions = pilots.two_dipoles(random)
    first, second = ions.positions[0] - ions.positions[1], ions.positions[2] - ions.positions[3]
    r = ions.positions[2:].mean(axis=0) - ions.positions[:2].mean(axis=0)
    distance = np.linalg.norm(r)
    n = r / distance
    leading = pilots.COULOMB / distance**3 * (first @ second - 3 * (first @ n) * (second @ n))
    assert ions.energy == pytest.approx(leading, rel=0.35, abs=0.01)


def test_without_a_far_field_every_structure_is_the_same(pairs):
    x, _ = features(pairs, {"mechanism": "local"})
    assert spread(x) < 1e-7


@pytest.mark.parametrize("attention", [{"isolated_atoms": 4.0}, {"mechanism": "softmax"}])
def test_with_one_the_energy_is_in_the_features(pairs, attention):
    """A ridge on the features of an untrained model, fitted to one half, explains the other."""
    x, energy = features(pairs, attention)
    x = (x - x.mean(dim=0)) / x.std(dim=0)
    y = (energy - energy.mean()) / energy.std()
    half = len(y) // 2
    weights = torch.linalg.solve(
        x[:half].T @ x[:half] + 1e-3 * torch.eye(x.shape[1], dtype=x.dtype), x[:half].T @ y[:half]
    )
    assert float((x[half:] @ weights - y[half:]).square().mean()) < 0.15


def test_scaling_by_the_atoms_there_are_lets_the_far_field_be_seen(pairs):
    scaled, _ = features(pairs, {"isolated_atoms": 4.0})
    unbounded, _ = features(pairs, {})
    assert spread(scaled) > 10 * spread(unbounded)


def test_the_energy_of_a_cluster_is_that_of_smeared_charges():
    """Gaussian charges of width 1 Å: erf(d/2)/d, here from its Fourier transform, 2/π ∫ exp(−k²) sin(kd)/(kd) dk."""
    ions = pilots.cluster(np.random.default_rng(0), 6)
    expected = 0.0
    for i, j in combinations(range(6), 2):
        d = float(np.linalg.norm(ions.positions[i] - ions.positions[j]))
        assert d > pilots.CLOSEST
        integral = quad(lambda k, d=d: np.exp(-(k**2)) * np.sinc(k * d / np.pi), 0, 9)[0]
        expected += ions.charges[i] * ions.charges[j] * 2 / np.pi * integral
    assert ions.energy == pytest.approx(expected, rel=1e-9)
    assert ions.charges.sum() == 0


def test_a_pilot_runs_and_refuses_other_settings(monkeypatch, tmp_path, capsys, call):
    monkeypatch.setattr(pilots, "CLUSTER", 4)
    monkeypatch.setitem(
        pilots.PILOTS, "ions", pilots.Pilot(pilots.cluster, (4, 6), {"molflt": {}}, 1, 1e-3, 8, 4, 64, "ions")
    )
    kept = tmp_path / "kept.csv"

    def run(*arguments):
        call(pilots.main, "ions", "--out", tmp_path, "--results", kept, *arguments)

    run()
    rows = results.read(kept)
    assert [(row["attention"], row["test"]) for row in rows] == [("molflt", "4"), ("molflt", "6")]
    assert min(float(row[name]) for row in rows for name in ("mae", "mad")) > 0
    assert kept.with_suffix(".png").exists()
    run()
    assert results.read(kept) == rows, "a finished run is not repeated"
    for wrong, message in ((("--lr", "0.5"), "error: "), (("--attention", "none"), "no attention 'none'")):
        with pytest.raises(SystemExit) as stop:
            run(*wrong)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
