"""Meta-training of learned relaxations on Lennard-Jones and EMT clusters and slabs of up to 40 atoms.

A Hessian is taught by true ones (:func:`imitate`): at points on relaxations, the mean over structures of Kaporin's
log-condition number of |H| after preconditioning, log(tr(H₀⁻¹|H|)/n) − log det(H₀⁻¹|H|)/n, which bounds the steps
of conjugate gradients (Kaporin, Numer. Linear Algebra Appl. 1, 179, 1994). Factors of directions have no such
target; they, and the Hessian too, can be taught through windows of relaxations (:func:`train`), by how far forces
fall.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from molflt.simulate.pair_lbfgs import REACH, Direction, History, Structures, batch, begin, learn, shortened
from scripts.literature.relaxation_model import LearnedHessian
from scripts.literature.relaxation_structures import Energy, draw, energy_of, evaluate

FMAX = 0.05
"""eV/Å, at which a relaxation ends."""
KINDS = ("lj", "emt")
LR, BATCH, STEPS, WINDOW = 4e-3, 10, 24, 6
LESSONS, IN_LESSON, HELD_OUT = 80, 6, 10
SOFTEST = 0.03
"""Eigenvalues of |H| count as at least this times their mean: free rotations have none."""


def tasks(seed: int, kind: str, n: int, largest: int = 40) -> tuple[Structures, Energy]:
    """Structures of one potential, of 8 atoms or more, with room in their lists of pairs for moving."""
    random = np.random.default_rng(seed)
    drawn = [draw(random, kind, 8, largest) for _ in range(n)]
    return batch([atoms for atoms, _ in drawn], REACH + 1), energy_of(kind, [constants for _, constants in drawn])


def start(structures: Structures, energy: Energy) -> History:
    """The first calculation."""
    return begin(structures.positions, *evaluate(energy, structures, structures.positions))


@torch.no_grad()
def advance(direction: Direction, structures: Structures, energy: Energy, history: History) -> History:
    """One step and its calculation."""
    x = history.positions + shortened(structures, history, direction(structures, history))
    return learn(history, x, *evaluate(energy, structures, x))


def calls(direction: Direction, structures: Structures, energy: Energy, cap: int = 150) -> Tensor:
    """Force calls to :data:`FMAX`, (B,); ``cap`` where that was not enough."""
    history = start(structures, energy)
    needed = torch.full_like(history.energy, cap)
    for n in range(1, cap):
        done = history.forces.norm(dim=-1).amax(1) < FMAX
        needed = torch.where(done, needed.clamp(max=n), needed)
        if done.all():
            break
        history = advance(direction, structures, energy, history)
    return needed


def validation(direction: Direction) -> list[float]:
    """The geometric mean of calls over 24 structures of each kind that are not trained on."""
    found = [calls(direction, *tasks(1_000_000 + k, kind, 24)) for k, kind in enumerate(KINDS)]
    return [each.log().mean().exp().item() for each in found]


def absolute_hessian(structures: Structures, energy: Energy, positions: Tensor) -> tuple[Tensor, Tensor]:
    """|H| with its softest modes lifted, (B, 3n, 3n) eV/Å², the identity on what is not free; which are free."""
    x = positions.detach().requires_grad_()
    forces = evaluate(energy, structures, x, differentiable=True)[1].flatten(1)
    columns = range(forces.shape[1])
    rows = [torch.autograd.grad(forces[:, k].sum(), x, retain_graph=True)[0].flatten(1) for k in columns]
    free = structures.free.repeat_interleave(3, 1).double()
    both, rest = free[:, :, None] * free[:, None, :], torch.diag_embed(1 - free)
    h = -torch.stack(rows, 1) * both
    values, vectors = torch.linalg.eigh(0.5 * (h + h.mT) + rest)
    size = values.abs()
    size = torch.maximum(size, SOFTEST * size.mean(1, keepdim=True))
    return (vectors * size[:, None, :]) @ vectors.mT * both + rest, free


def kaporin(h0: Tensor, h: Tensor, free: Tensor) -> Tensor:
    """The log-condition number of H after H₀, (B,), per free coordinate: 0 if they differ by a factor only."""
    factor, n = torch.linalg.cholesky(h0), free.sum(1)
    trace = (torch.cholesky_solve(h, factor).diagonal(dim1=1, dim2=2) * free).sum(1)
    return (trace / n).log() + (2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) - torch.linalg.slogdet(h)[1]) / n


def imitate(model: LearnedHessian, seconds: float) -> LearnedHessian:
    """Teach a Hessian by true ones, after 0 to 11 steps of the untrained model."""
    lessons = []
    for k in range(LESSONS):
        structures, energy = tasks(100 + k, KINDS[k % 2], IN_LESSON, largest=26)
        history = start(structures, energy)
        for _ in range(k * 5 % 12):
            history = advance(model, structures, energy, history)
        lessons.append((structures, history, *absolute_hessian(structures, energy, history.positions)))
    held_out, lessons = lessons[:HELD_OUT], lessons[HELD_OUT:]

    @torch.no_grad()
    def report() -> None:
        found = np.mean(
            [kaporin(model.hessian(s, history), h, free).mean().item() for s, history, h, free in held_out]
        )
        print(f"log-condition number {found:.4f}, calls {validation(model)}", flush=True)

    report()
    optimiser, random = torch.optim.Adam(model.parameters(), lr=LR), np.random.default_rng(0)
    begun = time.process_time()
    while (spent := time.process_time() - begun) < seconds:
        optimiser.param_groups[0]["lr"] = LR * (1 - spent / seconds)
        structures, history, h, free = lessons[random.integers(len(lessons))]
        _update(model, optimiser, kaporin(model.hessian(structures, history), h, free).mean())
    report()
    return model


def train(model: nn.Module, seconds: float) -> nn.Module:
    """Teach through windows of relaxations: how far the logarithm of the root mean square force falls in a step."""
    optimiser, random = torch.optim.Adam(model.parameters(), lr=LR), np.random.default_rng(0)
    print(f"calls {validation(model)}", flush=True)
    begun, n = time.process_time(), 0
    while (spent := time.process_time() - begun) < seconds:
        optimiser.param_groups[0]["lr"] = LR * (1 - spent / seconds)
        structures, energy = tasks(int(random.integers(1_000_000)), KINDS[n % 2], BATCH)
        _relax(model, structures, energy, optimiser)
        n += 1
    print(f"{n} batches, calls {validation(model)}", flush=True)
    return model


def _relax(model: nn.Module, structures: Structures, energy: Energy, optimiser: torch.optim.Optimizer) -> None:
    """A relaxation with an update after every window."""
    history = start(structures, energy)
    for _ in range(STEPS // WINDOW):
        losses = []
        for _ in range(WINDOW):
            before = history.forces.detach()
            x = history.positions + shortened(structures, history, model(structures, history))
            e, f = evaluate(energy, structures, x, differentiable=True)
            # Below a third of the limit nothing more is gained.
            floor = structures.free.sum(1) * (FMAX / 3) ** 2
            fall = 0.5 * ((f.square().sum((1, 2)) + floor) / (before.square().sum((1, 2)) + floor)).log()
            active = before.norm(dim=-1).amax(1) > FMAX
            losses.append(torch.where(active, fall.clamp(max=3), 0.0).mean())
            history = learn(history, x, e, f)
        if not active.any():
            break
        _update(model, optimiser, torch.stack(losses).mean())
        history = replace(
            history,
            **{key: getattr(history, key).detach() for key in ("positions", "energy", "forces", "radius")},
            **{key: [v.detach() for v in getattr(history, key)] for key in ("steps", "changes")},
        )


def _update(model: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
