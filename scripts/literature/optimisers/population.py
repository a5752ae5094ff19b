"""An optimiser of functions in R^d that is learned: a population whose members decide their steps by a network.

Everything the network sees is a scalar that neither translation, rotation nor the order of members changes, in units
of the population itself (its spread s, the spread of its values); every step is a sum of vectors with coefficients
that the network makes. So one network serves every d, and a rotated function is the same function to it (but for the
waves of an FLT mask, whose mean alone is invariant).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scripts.literature.optimisers.memories import Memory, State

N_SCALARS = 15
N_HEADS = 2
OWN_VECTORS = ("gradient", "mean gradient", "last step", "to the best", "to its own best", "noise", "difference")
_TINY = 1e-12


@dataclass
class Swarm:
    """A population on its way, on a batch of functions.

    Attributes:
        x: positions, (batch, n, d).
        values: of the function there, (batch, n).
        gradients: (batch, n, d).
        last_step: (batch, n, d).
        last_values: (batch, n).
        last_direction: the gradient's at the place before, (batch, n, d).
        mean_direction: an average of past ones, (batch, n, d).
        own_best: (batch, n, d), with ``own_value`` (batch, n).
        best_age: steps since the best of all was last improved, (batch, 1).
        first_spread: s at the start, (batch, 1, 1).
        done: share of the budget that is spent.
        memory: the state of the memory.
    """

    x: Tensor
    values: Tensor
    gradients: Tensor
    last_step: Tensor
    last_values: Tensor
    last_direction: Tensor
    mean_direction: Tensor
    own_best: Tensor
    own_value: Tensor
    best_age: Tensor
    first_spread: Tensor
    done: float = 0.0
    memory: State = ()

    @staticmethod
    def begin(x: Tensor, values: Tensor, gradients: Tensor) -> Swarm:
        """A population at its first points."""
        zero = torch.zeros_like(x)
        age = torch.zeros_like(values[..., :1])
        return Swarm(x, values, gradients, zero, values, zero, zero, x, values, age, spread(x))

    def moved(self, step: Tensor, values: Tensor, gradients: Tensor, done: float, memory: State) -> Swarm:
        """The population after a step, at whose end values and gradients are these."""
        better = values < self.own_value
        x = self.x + step
        improved = values.amin(dim=-1, keepdim=True) < self.own_value.amin(dim=-1, keepdim=True)
        direction = unit(self.gradients)
        return replace(
            self,
            x=x,
            values=values,
            gradients=gradients,
            last_step=step,
            last_values=self.values,
            last_direction=direction,
            mean_direction=0.8 * self.mean_direction + 0.2 * direction,
            own_best=torch.where(better[..., None], x, self.own_best),
            own_value=torch.where(better, values, self.own_value),
            best_age=torch.where(improved, 0.0, self.best_age + 1),
            done=done,
            memory=memory,
        )

    def best(self) -> Tensor:
        """The best point so far, (batch, 1, d)."""
        k = self.own_value.argmin(dim=-1)[..., None, None]
        return self.own_best.take_along_dim(k, dim=-2)


class StepNetwork(nn.Module):
    """Scalars of a member → its memory → coefficients of its vectors."""

    def __init__(self, memory: Memory, width: int = 16) -> None:
        super().__init__()
        self.memory = memory
        self.embed = nn.Linear(N_SCALARS, width)
        self.hidden = nn.Linear(width, 2 * width)
        self.coefficients = nn.Linear(2 * width, len(OWN_VECTORS) + 2 * N_HEADS + 1)
        with torch.no_grad():
            self.coefficients.weight.mul_(0.3)
            self.coefficients.bias.zero_()
            # A step against the gradient of a tenth of the spread, towards the best, and some noise.
            self.coefficients.bias[: len(OWN_VECTORS)] = torch.tensor([0.1, 0.0, 0.2, 0.2, 0.1, 0.1, 0.1])

    def forward(self, seen: Tensor, positions: Tensor, epsilon: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Coefficients, weights between members, and the new state of the memory.

        Args:
            seen: :func:`scalars`, (batch, n, N_SCALARS).
            positions: from the centroid, in units of the spread, (batch, n, d).
            epsilon: directions of the mask's waves, (r, d).
            state: of the memory.

        Returns:
            (batch, n, vectors), (batch, heads, n, n), and the state.
        """
        hidden = torch.tanh(self.embed(seen))
        remembered, weights, state = self.memory(hidden, positions, epsilon, state)
        found = self.coefficients(torch.relu(self.hidden(hidden + remembered)))
        return found[..., :-1] * torch.exp(found[..., -1:].clamp(-6.0, 3.0)), weights, state


def step_of(
    swarm: Swarm, s: Tensor, best: Tensor, coefficients: Tensor, weights: Tensor, generator: torch.Generator
) -> Tensor:
    """The sum of a member's vectors, (batch, n, d).

    Args:
        swarm: where it is.
        s: :func:`spread`.
        best: the best point so far, (batch, 1, d).
        coefficients: from :class:`StepNetwork`.
        weights: A, from the same.
        generator: of the noise; places in the batch that share their function share it as well.
    """
    x = swarm.x
    n, dim = x.shape[-2:]
    down = -s * unit(swarm.gradients)
    order = torch.randperm(n, generator=generator)
    other = x[..., order, :]
    own = (
        down,
        -s * swarm.mean_direction,
        swarm.last_step,
        best - x,
        swarm.own_best - x,
        torch.randn(n, dim, generator=generator) * s / dim**0.5,
        other - other.roll(1, dims=-2),
    )
    c = coefficients.split([1] * len(own) + [N_HEADS, N_HEADS], dim=-1)
    # Σ_j A_ij (x_j − x_i) and Σ_j A_ij s ĝ_j: what a member takes from the others.
    to_others = (c[-2].transpose(-1, -2)[..., None] * weights).sum(dim=-3)
    like_others = (c[-1].transpose(-1, -2)[..., None] * weights).sum(dim=-3)
    step = to_others @ x - to_others.sum(dim=-1, keepdim=True) * x + like_others @ down
    for coefficient, vector in zip(c, own, strict=False):
        step = step + coefficient * vector
    # Further than this no step is meant; it keeps a bad network finite.
    length = step.norm(dim=-1, keepdim=True)
    return step * (4 * s / length.clamp(min=_TINY)).clamp(max=1.0)


def spread(x: Tensor) -> Tensor:
    """s, the root mean square distance from the centroid: (batch, n, d) → (batch, 1, 1)."""
    squared = (x - x.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean(dim=-1)
    return squared.sqrt().clamp(min=1e-9)[..., None, None]


def unit(x: Tensor) -> Tensor:
    """x/|x|, zero at zero."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)


def scalars(swarm: Swarm, s: Tensor, best: Tensor) -> Tensor:
    """What a member knows, (batch, n, N_SCALARS), all of order one."""
    x, values, length = swarm.x, swarm.values, s.squeeze(-1)
    n, dim = x.shape[-2:]
    of_values = values.std(dim=-1, keepdim=True).clamp(min=1e-30)
    standard = ((values - values.mean(dim=-1, keepdim=True)) / of_values).clamp(-3, 3)
    rank = values.argsort(dim=-1).argsort(dim=-1).to(x.dtype) * (2 / max(1, n - 1)) - 1
    size = swarm.gradients.norm(dim=-1)
    direction = swarm.gradients / size.clamp(min=1e-30)[..., None]
    slope = torch.log((size * length / of_values).clamp(1e-6, 1e6))
    to_best = best - x
    far = to_best.norm(dim=-1)
    last = swarm.last_step.norm(dim=-1)
    everyone = torch.ones_like(values)
    return torch.stack(
        [
            standard,
            rank,
            slope / 3,
            (direction * swarm.last_direction).sum(dim=-1),
            (direction * swarm.last_step).sum(dim=-1) / last.clamp(min=1e-30),
            torch.log1p(last / length),
            torch.log1p(far / length),
            torch.log1p((swarm.own_best - x).norm(dim=-1) / length),
            -(direction * to_best).sum(dim=-1) / far.clamp(min=1e-30),
            torch.tanh((swarm.last_values - values) / of_values),
            torch.tanh((values - swarm.own_value) / of_values),
            torch.log1p(swarm.best_age) / 3 * everyone,
            torch.log(length / swarm.first_spread.squeeze(-1)) / 5 * everyone,
            (2 * swarm.done - 1) * everyone,
            math.log(dim) / 3 * everyone,
        ],
        dim=-1,
    )
