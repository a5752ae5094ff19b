"""Batches on request, and their way from the process that makes them to the device."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torch_geometric.data import Batch

from molflt.attention.layout import Plan
from molflt.data.batch import AtomBudgetSampler, collate
from molflt.training.training_structures import Prepared

_ALIGNED = 16
"""Bytes, a multiple of the size of any number."""


class Request(NamedTuple):
    """A batch to make: its structures, in which epoch, and laid out by which plan."""

    indices: list[int]
    epoch: int
    plan: Plan | None


class Requests(Sampler[Request]):
    """Requests for the batches of a sampler; ``plan`` is that of the epoch."""

    def __init__(self, batches: AtomBudgetSampler, plan: Plan | None = None) -> None:
        self.batches, self.plan, self.epoch = batches, plan, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Request]:
        return (Request(indices, self.epoch, self.plan) for indices in self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next."""
        self.epoch = epoch
        self.batches.set_epoch(epoch)


@dataclass(frozen=True)
class Packed:
    """A batch whose tensors share one piece of memory.

    Another process, pinned memory and a device get it in one copy, where each of thirty tensors takes half a
    millisecond of its own. Integers are 32 bits wide on the way.

    Attributes:
        content: everything but the tensors.
        memory: bytes of the tensors, shared between processes.
    """

    content: bytes
    memory: Tensor

    @classmethod
    def of(cls, batch: Batch) -> Packed:
        """Pack a batch."""
        content, tensors, places = io.BytesIO(), [], [0]

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return None
                kept, dtype = value.contiguous(), value.dtype
                if dtype == torch.int64 and kept.numel() and max(map(abs, kept.aminmax())) < 1 << 31:
                    kept = kept.to(torch.int32)
                tensors.append(kept)
                places.append(places[-1] + -(-kept.nbytes // _ALIGNED) * _ALIGNED)
                return places[-2], kept.nbytes, kept.dtype, dtype, tuple(kept.shape)

        Pickler(content, protocol=pickle.HIGHEST_PROTOCOL).dump(batch)
        memory = torch.empty(places[-1], dtype=torch.uint8).share_memory_()
        for place, kept in zip(places, tensors, strict=False):
            memory[place : place + kept.nbytes].view(kept.dtype).copy_(kept.flatten())
        return cls(content.getvalue(), memory)

    def pin_memory(self) -> Packed:
        """Return the same in memory that is copied while a device computes."""
        return Packed(self.content, self.memory.pin_memory())

    def unpacked(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        memory = self.memory.to(device, non_blocking=True)

        # Its own processes made it.
        class Unpickler(pickle.Unpickler):  # noqa: S301
            def persistent_load(self, pid: Any) -> Tensor:
                place, size, kept, dtype, shape = pid
                tensor = memory[place : place + size].view(kept).view(shape)
                return tensor.to(dtype)

        return Unpickler(io.BytesIO(self.content)).load()


class Batches(Dataset[Any]):
    """Batches on request.

    Args:
        structures: of which they are made.
        reach: Å, beyond which there is nothing in their neighbour lists.
        packed: whether batches are sent to another process.
    """

    def __init__(self, structures: Prepared, reach: float, packed: bool = False) -> None:
        self.structures, self.reach, self.packed = structures, reach, packed

    def __getitem__(self, wanted: Request) -> Batch | Packed:
        self.structures.epoch = wanted.epoch
        found = [self.structures[index] for index in wanted.indices]
        structures = [data for each in found for data in (each if isinstance(each, list) else [each])]
        batch = collate(structures, wanted.plan, self.reach)
        return Packed.of(batch) if self.packed else batch


def as_is(batch: Batch | Packed) -> Batch | Packed:
    """Return a batch that is complete."""
    return batch
