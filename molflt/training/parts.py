"""A batch that does not fit into memory, computed in parts with the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from molflt.data.batch import collate
from molflt.errors import InputError, does_not_fit, fitting


@dataclass
class StepLoss:
    """What a training step computes for a batch; each is a sum over its structures.

    Attributes:
        loss: scalar.
        logged: scalars without a gradient, by name.
        energy: (n_structures,) eV, without a gradient.
    """

    loss: Tensor
    logged: dict[str, Tensor]
    energy: Tensor


_Computed = tuple[StepLoss, list[Tensor | None]]
"""A loss without a graph, and the gradient for every parameter."""


def loss_in_parts(batch: Batch, evaluate: Callable[[Batch], StepLoss], parameters: Sequence[Tensor]) -> StepLoss:
    """Compute the loss of a batch from its parts, which are halved until each fits into memory.

    The loss that ``evaluate`` gives of a batch must be the sum of those of its parts. ``parameters`` are all that it
    depends on.

    Returns:
        What ``evaluate(batch)`` would give, with gradients for ``parameters`` that are computed already: no graph is
        kept.

    Raises:
        InputError: a single structure does not fit; it is named.
    """

    def differentiated(part: Batch) -> _Computed:
        found = evaluate(part)
        gradients = torch.autograd.grad(found.loss, parameters, allow_unused=True)
        return StepLoss(found.loss.detach(), found.logged, found.energy), list(gradients)

    def compute(part: Batch) -> _Computed:
        found = fitting(lambda: differentiated(part))
        return found[0] if found else _added(*(compute(half) for half in split(part)))

    found, gradients = _added(*(compute(half) for half in split(batch)))
    return StepLoss(_Differentiated.apply(found.loss, gradients, *parameters), found.logged, found.energy)


def split(batch: Batch) -> tuple[Batch, Batch]:
    """Halve a batch that did not fit into memory.

    Raises:
        InputError: it is a single structure.
    """
    if batch.num_graphs == 1:
        raise InputError(does_not_fit(batch.name[0], batch.num_nodes))
    structures = batch.to_data_list()
    middle = len(structures) // 2
    return collate(structures[:middle]), collate(structures[middle:])


def _added(first: _Computed, second: _Computed) -> _Computed:
    (one, some), (other, others) = first, second
    logged = {name: value + other.logged[name] for name, value in one.logged.items()}
    gradients = [a if b is None else b if a is None else a + b for a, b in zip(some, others, strict=True)]
    return StepLoss(one.loss + other.loss, logged, torch.cat([one.energy, other.energy])), gradients


class _Differentiated(torch.autograd.Function):
    """A value whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor | None], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outgoing: Tensor) -> Any:
        scaled = [None if gradient is None else gradient * outgoing[0].to(gradient) for gradient in ctx.gradients]
        return (None, None, *scaled)
