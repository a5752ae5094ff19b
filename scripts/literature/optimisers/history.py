"""An optimiser of single parameters that is learned, with the past gradients of a parameter as a causal sequence.

The past is read through FLT's Fourier RPE over steps. As features of the step at which a gradient came, it needs no
window: Σ_{j≤t} f̂(t − j) k_j v_j = Σ_a N₁(t)_a Σ_{j≤t} N₂(j)_a k_j v_j, and the inner sum is kept up to date (the
causal sum of :mod:`scripts.literature.sequence.prefix_sums`, a step at a time). So step 2,000 costs what step 2 does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from scripts.literature.optimisers.evolution import Parameters, ranks
from scripts.literature.optimisers.networks import Draw, Shape, training_tasks
from scripts.literature.sequence.fourier_rpe import GaussianMixtureRpe

HistoryName = Literal["flt", "no-rpe", "gru", "none"]
HISTORIES: tuple[HistoryName, ...] = get_args(HistoryName)
N_SCALARS = 6
N_HEADS = 2
HEAD_DIM = 4
N_FREQUENCIES = 16
UNIT = 64.0
"""Steps per unit of length of the RPE: Gaussians that start from 10 to 100 steps wide."""
DECAY = 0.99
"""Of the mean square of past gradients, by which a gradient is divided."""
GUARD = 0.03
"""A parameter whose gradients are this share of the mean moves half as far as the network says.

One that never had a gradient (the weight of a pixel that is never lit) would otherwise drift with the network's bias,
without bound, until the pixel is lit once.
"""


class HistoryOptimiser(nn.Module):
    """Scalars of a parameter → what it remembers of its past → a step.

    Args:
        name: "flt"; "no-rpe", the same with f = 1; "gru"; or "none", a feed-forward layer.
        seed: of the start.
        width: of the hidden layers.
    """

    def __init__(self, name: str, seed: int = 0, width: int = 12) -> None:
        super().__init__()
        assert name in HISTORIES
        torch.manual_seed(seed)
        self.name = name
        inner = N_HEADS * HEAD_DIM
        self.embed = nn.Linear(N_SCALARS, width)
        self.rpe = None
        if name == "flt":
            self.rpe = GaussianMixtureRpe(
                N_HEADS, 3, N_FREQUENCIES, torch.Generator().manual_seed(seed), dim=1, unit=UNIT
            )
            with torch.no_grad():
                # A sum of windows on the past; no wave.
                self.rpe.means.zero_()
                self.rpe.weights.abs_()
                # Quantiles of the same proposal: among few random draws f̂ does not decay within 2,000 steps.
                place = (torch.arange(N_FREQUENCIES) + 0.5) / N_FREQUENCIES
                self.rpe.xi.copy_((2**0.5 * torch.erfinv(place))[:, None])
        if name == "gru":
            self.gates = nn.Linear(width + inner, 2 * inner)
            self.candidate = nn.Linear(width + inner, inner)
        elif name == "none":
            self.layer = nn.Linear(width, inner)
        else:
            self.content = nn.Linear(width, inner + 2 * N_HEADS)
        self.hidden = nn.Linear(width + inner, width)
        self.output = nn.Linear(width, 2)
        self.log_rate = nn.Parameter(torch.tensor(math.log(0.05)))
        with torch.no_grad():
            self.output.weight.mul_(0.1)
            self.output.bias.zero_()

    def begin(self, shape: tuple[int, ...]) -> Tensor:
        """The state before the first step, (..., parameters, what is remembered)."""
        each = {"flt": (N_HEADS, 2 * N_FREQUENCIES, HEAD_DIM), "no-rpe": (N_HEADS, 1, HEAD_DIM)}
        return torch.zeros(*shape, *each.get(self.name, (N_HEADS * HEAD_DIM,)))

    def forward(self, seen: Tensor, past: Tensor, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """A step of every parameter, and the new state.

        Args:
            seen: :func:`scalars`, (..., parameters, N_SCALARS).
            past: the state.
            now: N₁, N₂ and the normaliser at this step, from :func:`position_features`.
        """
        hidden = torch.tanh(self.embed(seen))
        remembered, past = self.remember(hidden, past, now)
        hidden = torch.relu(self.hidden(torch.cat([hidden, torch.tanh(remembered)], dim=-1)))
        direction, gate = self.output(hidden).unbind(-1)
        # Where nothing is learnt yet it divides the gradient by its root mean square.
        return -torch.exp(self.log_rate + gate.clamp(-4, 4)) * (direction + 0.3 * torch.tanh(seen[..., 0])), past

    def remember(self, hidden: Tensor, past: Tensor, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """What a parameter gets from its past, (..., parameters, inner), and the new state."""
        if self.name == "none":
            return self.layer(hidden), past
        if self.name == "gru":
            together = torch.cat([hidden, past], dim=-1)
            update, reset = torch.sigmoid(self.gates(together)).chunk(2, dim=-1)
            new = torch.tanh(self.candidate(torch.cat([hidden, reset * past], dim=-1)))
            past = past + update * (new - past)
            return past, past
        query, key, normaliser = now
        value, gate = self.content(hidden).split([N_HEADS * HEAD_DIM, 2 * N_HEADS], dim=-1)
        of_query, of_key = (2 * torch.sigmoid(gate)).unflatten(-1, (2, N_HEADS)).unbind(-2)
        value = value.unflatten(-1, (N_HEADS, HEAD_DIM)) * of_key[..., None]
        past = past + key[..., None] * value[..., None, :]
        read = (query[..., None] * past).sum(dim=-2) / normaliser[..., None]
        return (read * of_query[..., None]).flatten(-2), past


def position_features(rpe: GaussianMixtureRpe | None, own: Parameters, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """N₁ and N₂ of all steps, (steps, heads, 2r), and √Σ_{s≤t} f̂(s)², (steps, heads).

    Values of unit variance that know nothing of each other are then read with unit variance, however long the past;
    the sum of f̂, which may be negative, would not do.

    Without an RPE both features are one; ``own`` are parameters to take instead of the module's.
    """
    if rpe is None:
        ones = torch.ones(steps, N_HEADS, 1)
        return ones, ones, torch.arange(1, steps + 1).sqrt()[:, None].expand(-1, N_HEADS)
    query, key = functional_call(rpe, own, (torch.arange(steps)[:, None].to(torch.float64),))
    function = (query * key[:, :1]).sum(dim=-1)
    normaliser = function.square().cumsum(dim=-1).sqrt() + 1e-3 * function[:, :1].abs() + 1e-9
    return query.transpose(0, 1), key.transpose(0, 1), normaliser.transpose(0, 1)


def scalars(gradient: Tensor, square: Tensor, theta: Tensor, t: int) -> Tensor:
    """What an optimiser sees of a parameter at step t (from zero), (..., N_SCALARS)."""
    scaled = gradient / (square / (1 - DECAY ** (t + 1))).sqrt().clamp(min=1e-12)
    typical = theta.square().mean(dim=-1, keepdim=True).sqrt()
    everyone = torch.ones_like(theta)
    return torch.stack(
        [
            scaled.clamp(-5, 5),
            torch.tanh(scaled),
            torch.log(scaled.abs().clamp(min=1e-3)) / 3,
            (theta / typical).clamp(-3, 3) / 3,
            math.log1p(t) / 8 * everyone,
            torch.log(typical) / 3 * everyone,
        ],
        dim=-1,
    )


@torch.no_grad()
def run(
    model: HistoryOptimiser,
    shape: Shape,
    draw: Draw,
    theta: Tensor,
    steps: int,
    generator: torch.Generator,
    variants: Parameters | None = None,
) -> tuple[Tensor, Tensor]:
    """Train networks by a learned optimiser.

    Args:
        model: the optimiser.
        shape: of the networks.
        draw: batches.
        theta: their parameters at the start, (tasks, parameters).
        steps: of the optimiser.
        generator: of the batches.
        variants: parameters of several optimisers, stacked, which all meet the same batches.

    Returns:
        The loss on each batch before the step, (steps, variants, tasks), and the trained parameters, (variants,
        tasks, parameters); without variants there is one.
    """
    own = {name: p.detach()[None] for name, p in model.named_parameters()} if variants is None else variants
    count = len(own["log_rate"])
    theta = theta.expand(count, *theta.shape).clone()
    square, past = torch.zeros_like(theta), model.begin(tuple(theta.shape))
    of_rpe = {name.removeprefix("rpe."): p for name, p in own.items() if name.startswith("rpe.")}
    waves = [position_features(model.rpe, {n: p[k] for n, p in of_rpe.items()}, steps) for k in range(count)]
    query, key, normaliser = (torch.stack(parts) for parts in zip(*waves, strict=True))

    def decide(mine: Parameters, *seen: Any) -> tuple[Tensor, Tensor]:
        return functional_call(model, mine, seen)

    losses = []
    for t in range(steps):
        loss, gradient = shape.loss_and_gradient(theta, *draw(generator))
        square = DECAY * square + (1 - DECAY) * gradient.square()
        seen = scalars(gradient, square, theta, t)
        step, past = vmap(decide)(own, seen, past, (query[:, t], key[:, t], normaliser[:, t]))
        size = square.sqrt()
        theta = theta + step * size / (size + GUARD * size.mean(dim=-1, keepdim=True)).clamp(min=1e-30)
        losses.append(loss)
    return torch.stack(losses), theta


def adam(
    shape: Shape, draw: Draw, theta: Tensor, steps: int, generator: torch.Generator, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """The same with Adam at several rates (rates,), in the place of the variants."""
    rate = rates[:, None, None]
    theta = theta.expand(len(rates), *theta.shape).clone()
    mean, square, losses = torch.zeros_like(theta), torch.zeros_like(theta), []
    for t in range(1, steps + 1):
        loss, gradient = shape.loss_and_gradient(theta, *draw(generator))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.square()
        theta = theta - rate * mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
        losses.append(loss)
    return torch.stack(losses), theta


def training_runs(
    model: HistoryOptimiser, tasks: int, steps: Sequence[int]
) -> Callable[[torch.Generator], Callable[[Parameters], Tensor]]:
    """For :func:`~scripts.literature.optimisers.evolution.evolve`: ``tasks`` networks.

    They are trained for one of the numbers of steps. What counts is their loss, averaged over twentieths of the run,
    at a tenth, three tenths and the end.
    """

    def draw_tasks(generator: torch.Generator) -> Callable[[Parameters], Tensor]:
        length = steps[int(torch.randint(len(steps), (1,), generator=generator))]
        shape, draw = training_tasks(tasks, generator)
        theta = shape.start(tasks, generator)

        def utility(variants: Parameters) -> Tensor:
            losses, _ = run(model, shape, draw, theta, length, generator, variants)
            window = max(1, length // 20)
            return ranks(losses.unfold(0, window, window).mean(dim=-1), (0.1, 0.3, 1.0))

        return utility

    return draw_tasks
