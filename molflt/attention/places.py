"""Places of atoms in padded layouts, and dataclasses that move their tensors to a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


class Kept(Generic[T]):
    """Property that is computed once.

    Before Python 3.12 the standard one has a lock, which breaks compilation.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        self.func, self.__doc__ = func, func.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> Self | T:
        if owner is None:
            return self
        value = self.func(owner)
        # From now on the attribute of the object takes precedence.
        owner.__dict__[self.func.__name__] = value
        return value


class Movable:
    """Dataclass that moves to a device with all its tensors, like a PyTorch Geometric batch."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the same on another device."""
        return self._mapped(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self, *args: Any) -> Self:
        """Return the same in pinned memory, which can be copied during other computations."""
        return self._mapped(lambda tensor: tensor.pin_memory(*args))

    def _mapped(self, change: Any) -> Self:
        def mapped(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, Movable):
                return value._mapped(change)
            return tuple(mapped(one) for one in value) if isinstance(value, tuple) else value

        assert dataclasses.is_dataclass(self)
        return dataclasses.replace(self, **{f.name: mapped(getattr(self, f.name)) for f in dataclasses.fields(self)})


@dataclass(frozen=True)
class Places(Movable):
    """Structures in a padded layout, with places for at least the atoms of the largest.

    Attributes:
        n_structures, n_max: of the padded layout, (n_structures, n_max).
        slot: (n_atoms,) the place of each atom, ascending.
    """

    n_structures: int
    n_max: int
    slot: Tensor

    @property
    def is_full(self) -> bool:
        """True if there are no empty places, so that the padded layout is the packed one."""
        return self.n_structures * self.n_max == len(self.slot)

    def pad(self, packed: Tensor) -> Tensor:
        """(n_atoms, ...) → (n_structures, n_max, ...), zeros where there is no atom."""
        if self.is_full:
            return packed.reshape(self.n_structures, self.n_max, *packed.shape[1:])
        flat: Tensor = _Pad.apply(packed, self.slot, self.n_structures * self.n_max)
        return flat.view(self.n_structures, self.n_max, *packed.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        """(n_structures, n_max, ...) → (n_atoms, ...)."""
        flat = padded.reshape(self.n_structures * self.n_max, *padded.shape[2:])
        return flat if self.is_full else select_rows(flat, self.slot)


def places_of(sizes: Sequence[int], n_max: int | None = None) -> Places:
    """Return places for structures of the given sizes.

    Raises:
        ValueError: ``n_max`` is smaller than the largest structure.
    """
    largest = max(sizes, default=0)
    width = largest if n_max is None else n_max
    if width < largest:
        raise ValueError(f"n_max={width} cannot hold a structure of {largest} atoms")
    slot = np.concatenate([k * width + np.arange(size) for k, size in enumerate(sizes)] or [np.zeros(0, dtype=int)])
    return Places(len(sizes), width, torch.from_numpy(slot.astype(np.int64)))


def select_rows(rows: Tensor, index: Tensor) -> Tensor:
    """``rows[index]`` for an index without repetitions.

    Its derivative is a copy, whereas that of indexing is a sum.
    """
    selected: Tensor = _Pack.apply(rows, index)
    return selected


def place_rows(rows: Tensor, slot: Tensor, n_slots: int) -> Tensor:
    """Put each row at its own place, zeros elsewhere: (n, ...) → (n_slots, ...).

    This is the inverse of :func:`select_rows`.
    """
    placed: Tensor = _Pad.apply(rows, slot, n_slots)
    return placed


class _Pad(torch.autograd.Function):
    """Rows put at their own places.

    Its derivative is :class:`_Pack` and vice versa, so that nothing has to be added.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, slot: Tensor, n_slots: int) -> Tensor:
        ctx.slot = slot
        return rows.new_zeros((n_slots, *rows.shape[1:])).index_copy_(0, slot, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Pack.apply(gradient, ctx.slot), None, None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, places: Tensor, slot: Tensor) -> Tensor:
        ctx.slot, ctx.n_slots = slot, len(places)
        return places.index_select(0, slot)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Pad.apply(gradient, ctx.slot, ctx.n_slots), None
