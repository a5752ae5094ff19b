"""The pilot across a vacuum: what a model can and cannot know of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from molflt.data.batching import collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.sources import open_dataset
from molflt.model.energy_model import EnergyModel

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import pilot_dipoles
from long_range import config


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dipoles") / "pairs.lmdb"
    pilot_dipoles.write_dipoles(path, 300, seed=0)
    return path


def features(path: Path, attention: dict) -> tuple[Tensor, Tensor]:
    """(n, dim) mean over the atoms of what an untrained encoder makes of each structure, and (n,) energies."""
    chosen = config(path, path, attention, seed=0, epochs=1, max_atoms=100, lr=2e-3)
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
    ions = pilot_dipoles.two_dipoles(random)
    first, second = ions.positions[0] - ions.positions[1], ions.positions[2] - ions.positions[3]
    r = ions.positions[2:].mean(axis=0) - ions.positions[:2].mean(axis=0)
    distance = np.linalg.norm(r)
    n = r / distance
    leading = 14.3996 / distance**3 * (first @ second - 3 * (first @ n) * (second @ n))
    assert ions.energy == pytest.approx(leading, rel=0.35, abs=0.01)


def test_without_a_far_field_every_structure_is_the_same(pairs):
    x, _ = features(pairs, {"far_field": False})
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
