"""What an allocator says when there is no memory left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

_SAID = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "_ALLOC_FAILED",
)
"""In errors of the CPU's allocator, of CUDA and of the libraries on it, none of which has a type of its own."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


def fitting(compute: Callable[[], T]) -> tuple[T] | None:
    """What is computed, in a tuple; None if it does not fit into memory, of which none is held any more."""
    try:
        return (compute(),)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    # Not where the error was caught: as long as it lives, so do the tensors of the attempt.
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return None


def does_not_fit(name: str, n_atoms: int) -> str:
    """What to say of a structure that is too large by itself."""
    return (
        f"{name}: out of memory with this structure alone ({n_atoms:,} atoms); leave it out, use a smaller model or "
        "cutoff, or a device with more memory. In training, where model.n_recycles is above 1, "
        "trainer.checkpoint_recycles=true needs less"
    )
