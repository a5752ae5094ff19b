"""Positive random features of the softmax kernel, FAVOR+: κ(q, k) ≈ exp(q·k).

FAVOR+ is that of Performer (arXiv 2009.14794). The kernel takes any component function and any weight matrix
(Spectraformer, Eq. 11). Two simple feature maps estimate no kernel: elu + 1 and learned ReLU features.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.kernels import Features, Kernel

ComponentFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Features, Features]]
"""(query, key, ω (m, c), mask) → features of either."""


class RandomFeatureKernel(Kernel):
    """κ(q, k) ≈ exp(q·k).

    Args:
        component: function of ω·x.
        weights: the matrix of the ω.
        positive: whether ``component`` makes one positive feature of every ω; otherwise a cosine and a sine.
    """

    def __init__(self, component: ComponentFunction, weights: WeightMatrix, positive: bool = True) -> None:
        super().__init__()
        self.component = component
        self.weights = weights
        self.positive = positive
        self.n_features = weights.shape[0] * (1 if positive else 2)

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        omega: Tensor = self.weights()
        return self.component(query, key, omega, mask)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw new ω if they are drawn and not learned."""
        self.weights.redraw(generator)


def positive(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """φ(x) = exp(ω·x − |x|²/2)/√m: E φ(q)·φ(k) = exp(q·k).

    The variance is Eq. 14 of arXiv 2106.12566.

    Args:
        query: (batch, heads, n, c).
        key: as ``query``.
        omega: (m, c).
        mask: not used; part of the interface of component functions.
    """
    log_root = 0.5 * math.log(omega.shape[0])
    return Features(log_xi(query, omega) - log_root), Features(log_xi(key, omega) - log_root)


def log_xi(x: Tensor, omega: Tensor) -> Tensor:
    """ω·x − |x|²/2 for tokens and ω: (..., n, c) and (m, c) or (..., m, c) → (..., n, m)."""
    half_square = 0.5 * (x * x).sum(dim=-1, keepdim=True)
    return x @ omega.transpose(-1, -2) - half_square


Draw = Callable[[int, int, torch.Generator], Tensor]
"""(n_features, dim, generator) → ω, (m, dim) float64."""


class WeightMatrix(nn.Module):
    """ω of a random feature kernel, which is part of the model and saved with it.

    Attributes:
        shape: (m, c); m may differ from the requested number if the matrix consists of whole quadrature rules.
    """

    shape: tuple[int, int]

    def forward(self) -> Tensor:
        """(m, dim)."""
        raise NotImplementedError

    def redraw(self, generator: torch.Generator) -> None:
        """Draw anew; learned matrices stay as they are."""


class DrawnMatrix(WeightMatrix):
    """Matrix drawn from a distribution, which stays the same until it is redrawn.

    Args:
        draw: the distribution.
        n_features: m.
        dim: c, the width of queries and keys.
        generator: of the first draw.
    """

    def __init__(self, draw: Draw, n_features: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.draw = draw
        self.n_features = n_features
        # On the generator's device, even if modules are built on the meta device: some distributions need numbers.
        with generator.device:
            omega = draw(n_features, dim, generator)
        self.shape = (len(omega), dim)
        self.omega = nn.Buffer(omega.to(torch.get_default_dtype()))

    def forward(self) -> Tensor:
        """See :class:`WeightMatrix`."""
        return self.omega

    def redraw(self, generator: torch.Generator) -> None:
        """See :class:`WeightMatrix`."""
        with generator.device:
            omega = self.draw(self.n_features, self.shape[1], generator)
        self.omega.copy_(omega)


def orthogonal(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): each row is N(0, I), and rows within a block of ``dim`` are orthogonal.

    Directions come from Haar-distributed matrices, lengths from independent Gaussian vectors.
    """
    blocks = [haar(dim, generator) for _ in range(math.ceil(n_features / dim))]
    lengths = torch.randn(n_features, dim, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:n_features] * lengths


def haar(dim: int, generator: torch.Generator) -> Tensor:
    """(dim, dim): a uniformly distributed orthogonal matrix.

    It comes from QR with the signs that make the distribution uniform (Mezzadri 2007).
    """
    q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    return (q * torch.sign(r.diagonal())).transpose(0, 1)


def redraw(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Draw new random features in every kernel of a model that does not learn them."""
    for part in module.modules():
        if isinstance(part, RandomFeatureKernel):
            part.redraw(generator)


class EluKernel(Kernel):
    """φ(x) = elu(x) + 1, which is positive and estimates no kernel.

    See Katharopoulos et al. 2020, arXiv 2006.16236.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.n_features = dim

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        # elu(x) + 1 = exp(min(x, 0)) (1 + max(x, 0)), which does not cancel where x is far below zero.
        phi_q, phi_k = (Features(x.clamp(max=0), 1 + functional.relu(x)) for x in (query, key))
        return phi_q, phi_k


class ReluKernel(Kernel):
    """φ(x) = ReLU(Wx) + ε with W (m, c) learned, which estimates no kernel.

    See Performer, arXiv 2009.14794, and FLT appendix B.2.
    """

    EPSILON = 1e-3
    """ε prevents a division by zero for queries that all rows of W cut off; Performer's own value."""

    def __init__(self, n_features: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_features = n_features
        start = orthogonal(n_features, dim, generator) / dim**0.5
        self.matrix = nn.Parameter(start.to(torch.get_default_dtype()))

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        return self._features(query), self._features(key)

    def _features(self, x: Tensor) -> Features:
        factor = functional.relu(x @ self.matrix.transpose(0, 1)) + self.EPSILON
        return Features(torch.zeros_like(x[..., :1]), factor)
