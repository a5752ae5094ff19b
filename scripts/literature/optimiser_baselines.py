"""Adam, CMA-ES and random search on the landscapes of :mod:`scripts.literature.learned_optimiser`.

Each returns the best value so far after every call, so that all are compared at equal calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from scripts.literature.optimisers.landscapes import Landscapes, start, value_and_gradient

RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
STARTS = (1, 4, 16)
SIGMAS = (0.5, 1.5, 3.0)
"""For tuning: rates, numbers of starts, and first steps of CMA-ES."""
HINDSIGHT_RATES, HINDSIGHT_STARTS = (0.01, 0.03, 0.1, 0.3, 1.0), (1, 16)


def adam(
    functions: Sequence[Landscapes], dim: int, calls: int, rate: float, starts: int, decay: bool, seed: int
) -> Tensor:
    """Adam from several points of the box at once, (calls + 1, batch).

    A gradient is a call, and the value that comes with it is free of charge, though the curve is made of it. The
    calls are divided among the starts. With ``decay`` the rate falls to zero over the run, like a cosine.
    """
    n = sum(len(f.shift) for f in functions)
    x = start(n, starts, dim, torch.Generator().manual_seed(seed)).to(functions[0].shift.dtype)
    mean, square, steps, best, curve = torch.zeros_like(x), torch.zeros_like(x), calls // starts, None, []
    for k in range(1, steps + 1):
        value, gradient = value_and_gradient(functions, x)
        lowest = value.amin(dim=1)
        best = lowest if best is None else torch.minimum(best, lowest)
        curve.append(best)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.square()
        now = rate * (0.5 * (1 + np.cos(np.pi * k / steps)) if decay else 1.0)
        x = x - now * mean / (1 - 0.9**k) / ((square / (1 - 0.999**k)).sqrt() + 1e-12)
    return spread_over_calls(torch.stack(curve), starts, calls)


def random_search(functions: Landscapes, dim: int, calls: int, seed: int) -> Tensor:
    """Points uniform in the box, (calls + 1, batch)."""
    generator = torch.Generator().manual_seed(seed)
    x = start(len(functions.shift), calls, dim, generator).to(functions.shift.dtype)
    best = functions(x).transpose(0, 1).cummin(dim=0).values
    return torch.cat([torch.full_like(best[:1], torch.inf), best])


def cma_es(functions: Landscapes, dim: int, calls: int, sigma: float, seed: int) -> Tensor:
    """CMA-ES with its own settings, started anew from another point where it stops early: (calls + 1, batch).

    Raises:
        SystemExit: the package is not installed.
    """
    try:
        import cma  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise SystemExit("error: this needs CMA-ES; pip install -e '.[literature]'") from None
    warnings.filterwarnings("ignore", module="cma")
    curves = []
    for k in range(len(functions.shift)):
        one = only(functions, k)
        random = np.random.default_rng([seed, dim, k])
        found: list[float] = []
        while len(found) < calls:
            begin = random.uniform(-5, 5, dim)
            options = {"seed": int(random.integers(1, 2**31)), "verbose": -9, "maxfevals": calls - len(found)}
            search = cma.CMAEvolutionStrategy(begin, sigma, options)
            while not search.stop() and len(found) < calls:
                points = search.ask()
                values = one(torch.from_numpy(np.array(points))[None])[0].tolist()
                search.tell(points, values)
                found += values
        best = np.minimum.accumulate(found[:calls])
        curves.append(torch.from_numpy(np.concatenate([[np.inf], best])))
    return torch.stack(curves, dim=1)


def spread_over_calls(curve: Tensor, calls_per_step: int, calls: int) -> Tensor:
    """(steps, batch), each step known after its calls, → (calls + 1, batch); infinite before the first."""
    done = torch.arange(calls + 1) // calls_per_step
    known = curve[(done - 1).clamp(min=0, max=len(curve) - 1)]
    return torch.where(done[:, None] > 0, known, torch.inf)


def only(functions: Landscapes, k: int) -> Landscapes:
    """One function of a batch that its shape knows nothing of."""
    one = slice(k, k + 1)
    return replace(
        functions,
        shift=functions.shift[one],
        transform=functions.transform[one],
        factor=functions.factor[one],
    )
