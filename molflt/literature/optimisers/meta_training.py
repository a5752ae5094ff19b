"""Runs of a population optimiser, and its meta-training by evolution strategies (Salimans et al. 2017, 1703.03864).

Derivatives through fifty steps on a rugged function explode; differences between whole runs do not, and they measure
what is wanted, the best value that was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from molflt.literature.optimisers.landscapes import Landscapes, start, training_batch, value_and_gradient
from molflt.literature.optimisers.memories import AttentionMemory, State, build_memory
from molflt.literature.optimisers.population import N_HEADS, StepNetwork, Swarm, scalars, spread, step_of

MEMBERS = 16
STEPS = 50
CALLS_PER_STEP = 2 * MEMBERS
"""A value and a gradient for each member, a call each."""
DIMENSIONS = (2, 3, 5, 8, 12, 20, 30)
WIDTH = 16
Parameters = dict[str, Tensor]


def build(name: str, seed: int = 0) -> StepNetwork:
    """An untrained optimiser with one kind of memory."""
    torch.manual_seed(seed)
    return StepNetwork(build_memory(name, WIDTH, N_HEADS, torch.Generator().manual_seed(seed)), WIDTH)


def directions(model: StepNetwork, dim: int, generator: torch.Generator) -> Tensor:
    """ε of the mask's waves in this dimension; nothing for a memory without a mask."""
    memory = model.memory
    if isinstance(memory, AttentionMemory) and memory.mask is not None:
        return memory.mask.draw(dim, generator)
    return torch.empty(0, dim)


@torch.no_grad()
def run(
    model: StepNetwork,
    functions: Sequence[Landscapes],
    x: Tensor,
    steps: int,
    generator: torch.Generator,
    variants: Parameters | None = None,
) -> Tensor:
    """The best value so far after every step of the population, (steps + 1, batch), from x.

    Args:
        model: the optimiser.
        functions: of the batch.
        x: first points, (batch, n, d).
        steps: of the population.
        generator: of noise and waves.
        variants: parameters of several networks, stacked; the result is then (steps + 1, variants, batch), and all
            of them meet the same functions, first points, noise and waves.
    """
    epsilon = directions(model, x.shape[-1], generator)
    count = 1 if variants is None else len(next(iter(variants.values())))
    x = x.expand(count, *x.shape)

    def measure(x: Tensor) -> tuple[Tensor, Tensor]:
        # (variants, batch, n, d) has its functions in the second place, the functions want theirs in the first.
        flat = x.transpose(0, 1).flatten(1, 2)
        values, gradients = value_and_gradient(functions, flat)
        shape = (1, (count, x.shape[-2]))
        return values.unflatten(*shape).transpose(0, 1), gradients.unflatten(*shape).transpose(0, 1)

    def decide(own: Parameters, seen: Tensor, positions: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        return functional_call(model, own, (seen, positions, epsilon, state))

    own = {name: p[None] for name, p in model.named_parameters()} if variants is None else variants
    swarm = Swarm.begin(x, *measure(x))
    curve = [swarm.own_value.amin(dim=-1)]
    for k in range(steps):
        s = spread(swarm.x)
        best = swarm.best()
        positions = (swarm.x - swarm.x.mean(dim=-2, keepdim=True)) / s
        seen = scalars(swarm, s, best)
        found, weights, state = vmap(decide)(own, seen, positions, swarm.memory)
        step = step_of(swarm, s, best, found, weights, generator)
        swarm = swarm.moved(step, *measure(swarm.x + step), (k + 1) / steps, state)
        curve.append(swarm.own_value.amin(dim=-1))
    found = torch.stack(curve)
    return found[:, 0] if variants is None else found


def ranks(curves: Tensor, marks: Sequence[float] = (0.2, 0.5, 1.0)) -> Tensor:
    """How good each variant is, from −½ (worst) to ½: the mean rank over all functions and marks.

    Ranks within a function know neither its scale nor its minimum, and no single run outweighs the rest.

    Args:
        curves: from :func:`run`, (steps + 1, variants, batch).
        marks: shares of the steps at which the best value counts.
    """
    at = [round(mark * (len(curves) - 1)) for mark in marks]
    values = torch.nan_to_num(curves[at], nan=torch.inf)
    worse = values.argsort(dim=1).argsort(dim=1).to(curves.dtype)
    return 0.5 - worse.mean(dim=(0, 2)) / (curves.shape[1] - 1)


def train(
    model: StepNetwork,
    iterations: int,
    seed: int,
    pairs: int = 10,
    batch: int = 5,
    sigma: float = 0.05,
    lr: float = 0.02,
) -> None:
    """Antithetic perturbations of all parameters, compared on functions, dimension, waves and noise drawn anew.

    Args:
        model: its parameters are changed.
        iterations: of Adam on the estimated gradient, its rate falling like a cosine.
        seed: of everything random.
        pairs: of perturbations in an iteration.
        batch: functions of each family.
        sigma: size of the perturbations.
        lr: rate at the start.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    optimiser = torch.optim.Adam(parameters.values(), lr=lr, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 0.5 * (1 + math.cos(math.pi * k / iterations)))
    for _ in range(iterations):
        dim = DIMENSIONS[int(torch.randint(len(DIMENSIONS), (1,), generator=generator))]
        functions = training_batch(batch, dim, generator)
        x = start(3 * batch, MEMBERS, dim, generator)
        noise = {name: torch.randn(pairs, *p.shape, generator=generator) for name, p in parameters.items()}
        both = {name: p.detach() + sigma * torch.cat([noise[name], -noise[name]]) for name, p in parameters.items()}
        utility = ranks(run(model, functions, x, STEPS, generator, both))
        gain = utility[:pairs] - utility[pairs:]
        for name, p in parameters.items():
            p.grad = -torch.einsum("p,p...->...", gain, noise[name]) / (2 * pairs * sigma)
        optimiser.step()
        schedule.step()
