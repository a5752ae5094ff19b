"""Kernels of a step of dynamics on a GPU, launched all at once.

A step of a small structure launches about a thousand kernels, and Python takes longer to launch them than the GPU to
compute them. While the layout of a batch is kept, the sequence of kernels is the same: it is captured once as a CUDA
graph and replayed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

LARGEST = 20_000
"""Atoms beyond which a step is not captured: the GPU is busy all the time, and a graph takes memory of its own."""

Computation = Callable[..., dict[str, Tensor]]


class Replay:
    """A computation on a batch, replayed on a GPU as long as the layout and the options are those of the last call.

    The first call with a layout is made as it is, the second is captured. The first replay at other positions is
    compared with the computation itself. Results of a replayed call are overwritten by the next one. On a CPU, and if
    a computation cannot be captured or its replay differs, every call is made as it is.

    Args:
        compute: a function of a batch and of options; it takes from the batch only positions that change.
    """

    def __init__(self, compute: Computation) -> None:
        self._compute = compute
        self._can, self._proven = True, False
        self._key: tuple[Any, ...] | None = None
        self._captured: tuple[torch.cuda.CUDAGraph, Batch, dict[str, Tensor]] | None = None

    def __call__(self, batch: Batch, *options: bool) -> dict[str, Tensor]:
        """Return the results for a batch with a layout."""
        if not (self._can and batch.positions.is_cuda and len(batch.positions) <= LARGEST):
            return self._compute(batch, *options)
        # The layout is kept here, so that no other can come to lie where it was.
        key = batch.layout, *options
        same = self._key is not None and self._key[0] is key[0] and self._key[1:] == key[1:]
        if not same:
            self._key, self._captured = key, None
            return self._compute(batch, *options)
        if self._captured is None:
            try:
                self._captured = self._capture(batch, *options)
            except RuntimeError:
                self._can = False
                return self._compute(batch, *options)
            if not self._proven:
                return self._compute(batch, *options)
        found = self._replayed(batch)
        if not self._proven:
            expected = self._compute(batch, *options)
            self._proven = self._can = all(map(_close, found.values(), expected.values()))
            return expected
        return found

    def _replayed(self, batch: Batch) -> dict[str, Tensor]:
        assert self._captured is not None
        graph, still, found = self._captured
        still.positions.copy_(batch.positions, non_blocking=True)
        graph.replay()
        return found

    def _capture(self, batch: Batch, *options: bool) -> tuple[torch.cuda.CUDAGraph, Batch, dict[str, Tensor]]:
        still = copy.copy(batch)
        still.positions = batch.positions.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self._compute(still, *options)
        # The graph reads the memory of the batch, which therefore has to stay.
        return graph, still, found


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to the rounding of sums in another order."""
    return bool((a - b).abs().max() <= 1e-4 * b.abs().max().clamp(min=1.0))
