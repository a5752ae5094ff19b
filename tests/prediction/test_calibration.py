"""Calibration against errors drawn from a known distribution."""

import numpy as np
import pytest
from scipy.stats import norm

from molflt.errors import InputError
from molflt.model.uncertainty import LEVELS
from molflt.prediction.uncertainty import calibrate

N = 20_000


def drawn(factor, seed=0):
    """Predictions, spreads, and labels whose errors are ``factor`` times as wide as the spreads say."""
    random = np.random.default_rng(seed)
    std = random.uniform(0.05, 0.5, N)
    expected = random.normal(size=N)
    return expected + factor * std * random.normal(size=N), std, expected


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_the_factor_is_found(factor):
    found = calibrate(*drawn(factor))
    assert found.factor == pytest.approx(factor, rel=0.03)
    np.testing.assert_allclose(found.calibrated_coverage, LEVELS, atol=0.015)
    as_it_is = [2 * norm.cdf(norm.ppf((1 + level) / 2) / factor) - 1 for level in LEVELS]
    np.testing.assert_allclose(found.coverage, as_it_is, atol=0.015)
    assert found.calibrated_nll <= found.nll + 1e-12


def test_nll_is_that_of_the_normal_distribution():
    predicted, std, expected = drawn(1.7)
    found = calibrate(predicted, std, expected)
    assert found.nll == pytest.approx(-norm.logpdf(expected, predicted, std).mean(), rel=1e-9)
    assert found.calibrated_nll == pytest.approx(-norm.logpdf(expected, predicted, std * found.factor).mean())
    # The factor is the best one.
    for other in (0.95, 1.05):
        worse = -norm.logpdf(expected, predicted, std * found.factor * other).mean()
        assert worse > found.calibrated_nll


def test_rank_correlation_knows_hard_from_easy():
    predicted, std, expected = drawn(1.0)
    assert calibrate(predicted, std, expected).rank_correlation > 0.3
    shuffled = np.random.default_rng(1).permutation(std)
    assert abs(calibrate(predicted, shuffled, expected).rank_correlation) < 0.05
    assert np.isnan(calibrate(predicted, np.full(N, 0.1), expected).rank_correlation)


def test_what_cannot_be_calibrated():
    with pytest.raises(InputError, match="at least two"):
        calibrate(np.zeros(1), np.ones(1), np.zeros(1))
    with pytest.raises(InputError, match="agree exactly"):
        calibrate(np.zeros(2), np.array([1.0, 0.0]), np.ones(2))


def test_perfect_predictions():
    found = calibrate(np.zeros(5), np.ones(5), np.zeros(5))
    assert found.factor == 0.0
    assert found.coverage == (1.0,) * len(LEVELS)
