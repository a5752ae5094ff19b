"""Functions in R^d to minimise: three families to meta-train on, and three that are kept for testing.

Each is a batch of functions of its own place, turn and scale, looked for in the box [−5, 5]^d.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BOX = 5.0
"""Half the side of the box in which a search starts."""
MAX_SHIFT = 3.0
"""The places x* of the minima are uniform in [−MAX_SHIFT, MAX_SHIFT]^d."""

Shape = Callable[[Tensor], Tensor]
"""A function of z (batch, n, d) → (batch, n) with the minimum 0 at z = 0."""


@dataclass
class Landscapes:
    """Functions c·h(R diag(λ)(x − x*)), one for each place in the batch.

    Attributes:
        shape: h.
        shift: x*, (batch, 1, d).
        transform: diag(λ) Rᵀ, (batch, d, d), to multiply row vectors with from the right.
        factor: c, (batch, 1), between 0.01 and 100.
    """

    shape: Shape
    shift: Tensor
    transform: Tensor
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, n, d) → (batch, n)."""
        return self.factor * self.shape((x - self.shift) @ self.transform)


def value_and_gradient(functions: Sequence[Landscapes], x: Tensor) -> tuple[Tensor, Tensor]:
    """Values (batch, n) and gradients (batch, n, d), neither of them differentiable; the batch is that of all.

    A call of the value and one of the gradient for each of the n points.
    """
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        parts = leaf.split([len(f.shift) for f in functions])
        values = torch.cat([f(part) for f, part in zip(functions, parts, strict=True)])
        (gradient,) = torch.autograd.grad(values.sum(), leaf)
    return values.detach(), gradient


def quadratic(z: Tensor) -> Tensor:
    """|z|²/2; the condition number comes with the scales λ."""
    return 0.5 * z.square().sum(dim=-1)


def rosenbrock(z: Tensor) -> Tensor:
    """Σ_i 100(y_{i+1} − y_i²)² + (1 − y_i)² with y = z + 1."""
    y = z + 1
    return (100 * (y[..., 1:] - y[..., :-1].square()).square() + (1 - y[..., :-1]).square()).sum(dim=-1)


def rastrigin(z: Tensor) -> Tensor:
    """Σ_i z_i² + 10(1 − cos 2πz_i)."""
    return (z.square() + 10 * (1 - torch.cos(2 * math.pi * z))).sum(dim=-1)


def ackley(z: Tensor) -> Tensor:
    """20(1 − exp(−0.2 √(mean z²))) + e − exp(mean cos 2πz)."""
    root = (z.square().mean(dim=-1) + 1e-20).sqrt()
    return 20 * -torch.expm1(-0.2 * root) - torch.exp(torch.cos(2 * math.pi * z).mean(dim=-1)) + math.e


def griewank(z: Tensor) -> Tensor:
    """Σ_i y_i²/4000 + 1 − Π_i cos(y_i/√i) with y = 10 z, so that the box holds several waves of it."""
    y = 10 * z
    root = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device).sqrt()
    return y.square().sum(dim=-1) / 4000 + 1 - torch.cos(y / root).prod(dim=-1)


def placed(shape: Shape, n: int, dim: int, condition: float, generator: torch.Generator) -> Landscapes:
    """``n`` functions of one shape, shifted, turned and scaled at random.

    The largest λ over the smallest is exp(u log condition), u uniform in [0, 1].
    """
    shift = MAX_SHIFT * (2 * torch.rand(n, 1, dim, generator=generator) - 1)
    spread = torch.rand(n, 1, generator=generator) * math.log(condition)
    scales = torch.exp((torch.rand(n, dim, generator=generator) - 0.5) * spread)
    transform = rotations(n, dim, generator) * scales[:, None, :]
    # An optimiser must not know the unit of a function.
    factor = 10 ** (4 * torch.rand(n, 1, generator=generator) - 2)
    return Landscapes(shape, shift, transform, factor)


def fourier(n: int, dim: int, generator: torch.Generator, n_waves: int = 24) -> Landscapes:
    """``n`` sums of a bowl and plane waves of random directions, lengths and phases.

    Their minima are not known, and lie nowhere in particular: the phases are random, so that no lattice of minima
    as in Rastrigin's function is there to be learnt. Zero is a lower bound.
    """
    length = torch.exp(torch.empty(n, 1, n_waves).uniform_(math.log(0.7), math.log(8.0), generator=generator))
    direction = torch.randn(n, dim, n_waves, generator=generator)
    wave = 2 * math.pi * direction / direction.norm(dim=1, keepdim=True) / length
    phase = 2 * math.pi * torch.rand(n, 1, n_waves, generator=generator)
    amplitude = torch.rand(n, 1, n_waves, generator=generator)
    bowl = torch.exp(torch.empty(n, 1).uniform_(math.log(0.02), math.log(2.0), generator=generator))

    def shape(z: Tensor) -> Tensor:
        waves = (amplitude * (1 + torch.cos(z @ wave + phase))).sum(dim=-1)
        return waves + bowl * z.square().sum(dim=-1)

    return placed(shape, n, dim, 1.0, generator)


TESTING = {"Rastrigin": rastrigin, "Ackley": ackley, "Griewank": griewank}


def training_batch(n: int, dim: int, generator: torch.Generator) -> list[Landscapes]:
    """``n`` functions of each family to train on."""
    return [
        placed(quadratic, n, dim, 1e4, generator),
        placed(rosenbrock, n, dim, 1.0, generator),
        fourier(n, dim, generator),
    ]


def test_batch(name: str, n: int, dim: int, seed: int) -> Landscapes:
    """``n`` functions of a family in :data:`TESTING`, with scales λ that differ by a factor of up to 3."""
    return placed(TESTING[name], n, dim, 3.0, torch.Generator().manual_seed(1000 * dim + seed))


def start(n: int, members: int, dim: int, generator: torch.Generator) -> Tensor:
    """Points uniform in the box, (n, members, dim)."""
    return BOX * (2 * torch.rand(n, members, dim, generator=generator) - 1)


def rotations(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Orthogonal matrices, (n, dim, dim), uniform."""
    q, r = torch.linalg.qr(torch.randn(n, dim, dim, generator=generator))
    return q * torch.diagonal(r, dim1=-2, dim2=-1).sign()[:, None, :]
