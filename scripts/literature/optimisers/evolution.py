"""Meta-training by evolution strategies (Salimans et al. 2017, arXiv 1703.03864).

Derivatives through a long run of an optimiser explode; differences between whole runs do not, and they measure what
is wanted. Ranks within a task know neither its scale nor its minimum, and no single run outweighs the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

Parameters = dict[str, Tensor]


def ranks(curves: Tensor, marks: Sequence[float]) -> Tensor:
    """How good each variant is, from −½ (worst) to ½: the mean of its rank over all tasks and marks.

    Args:
        curves: what should be small, (steps + 1, variants, tasks).
        marks: shares of the steps at which it counts.
    """
    at = [round(mark * (len(curves) - 1)) for mark in marks]
    values = torch.nan_to_num(curves[at], nan=torch.inf)
    worse = values.argsort(dim=1).argsort(dim=1).to(curves.dtype)
    return 0.5 - worse.mean(dim=(0, 2)) / (curves.shape[1] - 1)


def evolve(
    model: nn.Module,
    tasks: Callable[[torch.Generator], Callable[[Parameters], Tensor]],
    iterations: int,
    seed: int,
    pairs: int = 8,
    sigma: float = 0.05,
    lr: float = 0.02,
) -> Iterator[int]:
    """Antithetic perturbations of all parameters, compared on the same tasks; Adam on the estimated gradient.

    Args:
        model: its parameters are changed.
        tasks: draws tasks, and returns what says how good variants of the parameters, stacked, are on them:
            (variants,).
        iterations: the rate falls over them like a cosine.
        seed: of everything random.
        pairs: of perturbations in an iteration.
        sigma: their size.
        lr: rate at the start.

    Yields:
        The iterations that are done.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    optimiser = torch.optim.Adam(parameters.values(), lr=lr, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: 0.5 * (1 + math.cos(math.pi * k / iterations)))
    for k in range(iterations):
        utility = tasks(generator)
        noise = {name: torch.randn(pairs, *p.shape, generator=generator) for name, p in parameters.items()}
        both = {name: p.detach() + sigma * torch.cat([noise[name], -noise[name]]) for name, p in parameters.items()}
        found = utility(both)
        gain = found[:pairs] - found[pairs:]
        for name, p in parameters.items():
            p.grad = -torch.einsum("p,p...->...", gain, noise[name]) / (2 * pairs * sigma)
        optimiser.step()
        schedule.step()
        yield k + 1
