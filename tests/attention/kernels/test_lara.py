"""LARA against its definition with distributions from torch."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal

from molflt.attention.kernels.lara import Landmarks, LaraKernel, SoftClusters
from tests.attention.kernels.checks import estimate

HEADS, N, C, WIDTH = 2, 7, 3, 4


def kernel():
    return LaraKernel(SoftClusters(HEADS, C, WIDTH, torch.Generator().manual_seed(0))).double()


def tokens(batch=1, scale=0.5):
    generator = torch.Generator().manual_seed(1)
    q, k = scale * torch.randn(2, batch, HEADS, N, WIDTH, generator=generator, dtype=torch.float64)
    return q, k + 0.2


def xi(x, omega):
    return math.exp(float(omega @ x - x @ x / 2))


@torch.no_grad()
def defined(made, q, k, omega, h):
    """Σ_c α_nc(ω_c) N(ω_c; 0, I)/q_c(ω_c) ξ(q_n, ω_c) ξ(k_m, ω_c) of one head, written out."""
    weights = made.landmarks(q, None)
    # Landmarks that are the same for all heads have no axis for them.
    weights = weights[0, h] if weights.dim() == 4 else weights
    centre = weights @ q[0, h]
    proposals = [Independent(Normal(m, torch.ones_like(m)), 1) for m in centre + weights @ k[0, h]]
    target = Independent(Normal(torch.zeros(WIDTH).double(), torch.ones(WIDTH).double()), 1)
    found = torch.zeros(N, N, dtype=torch.float64)
    for n in range(N):
        similarity = torch.softmax(torch.stack([q[0, h, n] @ c for c in centre]), dim=0)
        for c in range(len(centre)):
            densities = torch.stack([p.log_prob(omega[0, h, c]).exp() for p in proposals])
            balance = densities / densities.sum()
            alpha = balance[c] * (1 + similarity[c] - balance @ similarity)
            ratio = target.log_prob(omega[0, h, c]).exp() / densities[c]
            for m in range(N):
                found[n, m] += alpha * ratio * xi(q[0, h, n], omega[0, h, c]) * xi(k[0, h, m], omega[0, h, c])
    return found


class Halves(Landmarks):
    """The first tokens and the rest."""

    n_landmarks = 2

    def forward(self, query, mask):
        member = torch.zeros(2, N, dtype=query.dtype)
        member[0, :3], member[1, 3:] = 1 / 3, 1 / (N - 3)
        return member


@pytest.mark.parametrize("made", [kernel(), LaraKernel(Halves())], ids=["clusters", "the same for all heads"])
@pytest.mark.parametrize("training", [True, False])
def test_it_is_its_definition(made, training):
    made, (q, k) = made.train(training), tokens()
    torch.manual_seed(5)
    found = estimate(made, q, k)
    weights = made.landmarks(q, None)
    omega = weights @ q + weights @ k
    if training:
        torch.manual_seed(5)
        omega = omega + torch.randn_like(omega)
    for h in range(HEADS):
        torch.testing.assert_close(found[0, h], defined(made, q, k, omega, h), rtol=1e-10, atol=0)
