import math

import torch

from molflt.attention.positive_features import orthogonal_gaussian, positive_features


def test_features_are_unbiased_for_the_softmax_kernel():
    """E φ(x)·φ(y) = exp(x·y) (Performer, Lemma 1), within four standard errors, and never negative."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64) * 0.5
    draws = []
    for _ in range(2000):
        omega = orthogonal_gaussian(16, 8, generator).double()
        draws.append(positive_features(x, omega) @ positive_features(y, omega).T)
    values = torch.stack(draws)
    assert bool((values > 0).all())
    error = (values.mean(dim=0) - (x @ y.T).exp()).abs() / (values.std(dim=0) / math.sqrt(len(draws)))
    assert float(error.max()) < 4.5


def test_rows_are_orthogonal_within_a_block_with_gaussian_lengths():
    generator = torch.Generator().manual_seed(1)
    omega = orthogonal_gaussian(20, 8, generator).double()
    for block in (omega[:8], omega[8:16], omega[16:]):
        unit = block / block.norm(dim=1, keepdim=True)
        torch.testing.assert_close(unit @ unit.T, torch.eye(len(block), dtype=torch.float64), atol=1e-6, rtol=0)
    lengths = torch.cat([orthogonal_gaussian(64, 8, generator) for _ in range(100)]).norm(dim=1)
    assert abs(float((lengths**2).mean()) - 8) < 0.3


def test_the_gaussian_kernel_is_not_taken_for_the_softmax_kernel():
    """At x = y the softmax kernel is exp(|x|²), not one."""
    generator = torch.Generator().manual_seed(2)
    x = torch.full((1, 8), 0.4, dtype=torch.float64)
    omega = orthogonal_gaussian(4096, 8, generator).double()
    estimate = float(positive_features(x, omega) @ positive_features(x, omega).T)
    assert abs(estimate / math.exp(8 * 0.16) - 1) < 0.1
