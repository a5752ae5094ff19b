"""Runs of a population optimiser, and the tasks of its meta-training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from scripts.literature.optimisers.evolution import Parameters, ranks
from scripts.literature.optimisers.landscapes import Landscapes, start, training_batch, value_and_gradient
from scripts.literature.optimisers.memories import AttentionMemory, State, build_memory
from scripts.literature.optimisers.population import N_HEADS, StepNetwork, Swarm, scalars, spread, step_of

MEMBERS = 16
STEPS = 50
CALLS_PER_STEP = 2 * MEMBERS
"""A value and a gradient for each member, a call each."""
DIMENSIONS = (2, 3, 5, 8, 12, 20, 30)
WIDTH = 16
MARKS = (0.2, 0.5, 1.0)
"""Shares of the steps at which the best value so far counts in meta-training."""


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


def training_tasks(model: StepNetwork, batch: int) -> Callable[[torch.Generator], Callable[[Parameters], Tensor]]:
    """For :func:`~scripts.literature.optimisers.evolution.evolve`: ``batch`` functions of each family."""

    def tasks(generator: torch.Generator) -> Callable[[Parameters], Tensor]:
        dim = DIMENSIONS[int(torch.randint(len(DIMENSIONS), (1,), generator=generator))]
        functions = training_batch(batch, dim, generator)
        x = start(len(functions) * batch, MEMBERS, dim, generator)
        return lambda variants: ranks(run(model, functions, x, STEPS, generator, variants), MARKS)

    return tasks
