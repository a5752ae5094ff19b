"""Schedules and the moving average against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from molflt.training.optimisation import auxiliary_weight, learning_rate_factor, move_averages


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_learning_rate(shape: str) -> None:
    warmup, total = 10, 110
    factors = [learning_rate_factor(step, warmup, total, shape) for step in range(total + 1)]  # type: ignore[arg-type]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    done = [(step - 10) / 100 for step in range(10, 111)]
    expected = [1 - d if shape == "linear" else math.cos(math.pi * d / 2) ** 2 for d in done]
    assert factors[10:] == pytest.approx(expected, abs=1e-12)
    assert factors[-1] == pytest.approx(0, abs=1e-12)
    assert max(factors) == 1


@pytest.mark.parametrize(("warmup", "total"), [(0, 5), (100, 5), (100, 1), (3, 0), (0, 0)])
def test_learning_rate_of_short_runs(warmup: int, total: int) -> None:
    # A warm-up longer than the run is cut to half of it; no step is taken at rate zero except the very last.
    factors = [learning_rate_factor(step, warmup, total, "cosine") for step in range(max(total, 1))]
    assert all(0 < factor <= 1 for factor in factors)
    assert 0 <= learning_rate_factor(total + 5, warmup, total, "linear") <= 1


def test_auxiliary_weight_falls_from_15_to_1() -> None:
    assert auxiliary_weight(0, 100, 15, 1) == 15
    assert auxiliary_weight(50, 100, 15, 1) == 8
    assert auxiliary_weight(100, 100, 15, 1) == 1
    assert auxiliary_weight(1000, 100, 15, 1) == 1
    assert auxiliary_weight(0, 0, 15, 1) == 15


def test_moving_average_by_hand() -> None:
    decay = 0.5
    average = torch.tensor([1.0], dtype=torch.float64)
    expected = 1.0
    for n, weight in enumerate([2.0, -1.0, 4.0, 0.5, 7.0, 3.0, 2.0, 2.0, 8.0, 1.0, 5.0], start=1):
        # The decay rises as (1+n)/(10+n) until it reaches its value: 2/11, 3/12, ... 9/18 = 0.5
        d = min(decay, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * weight
        move_averages([average], [torch.tensor([weight], dtype=torch.float64)], n, decay)
        assert float(average) == pytest.approx(expected, rel=1e-12)


def test_moving_average_of_a_constant_is_that_constant() -> None:
    weight = torch.tensor([0.3, -2.0])
    average = weight.clone()
    for n in range(1, 200):
        move_averages([average], [weight], n, 0.999)
    torch.testing.assert_close(average, weight, rtol=0, atol=0)
