"""The error a user can mend: bad input, a bad config, a wrong file; and the names of files in those of the system."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

MOST_REASONS = 10
"""Bad records that a message names; it counts the others."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the file, the record where there is one, and the remedy. The command line prints it
    without a traceback and exits with status 2; in Python it is an ordinary ``ValueError``.

    Attributes:
        record: name of the record that cannot be used; empty where none is meant.
        info: what the file says of that record.
    """

    record: str = ""
    info: Mapping[str, Any] = MappingProxyType({})

    def again(self) -> InputError:
        """The same, to be raised once more."""
        error = InputError(str(self))
        error.record, error.info = self.record, self.info
        return error


class InputWarning(UserWarning):
    """Something in the input was passed over or taken for granted.

    The command line prints it as a warning, also with ``--quiet``; in Python it is an ordinary warning.
    """


class AgreedError(InputError):
    """What all processes of a run know of, whichever met it: the first says it, and the others keep quiet."""


@contextmanager
def naming(path: str | os.PathLike[str], instead_of: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Name a file in errors of the system that name none, as those of a write do.

    Args:
        path: of the file.
        instead_of: the path of a temporary file, which says nothing to a user.

    Raises:
        OSError: with the file's name.
    """
    try:
        yield
    except OSError as error:
        known = None if instead_of is None else os.fspath(instead_of)
        if error.errno is None or error.filename not in (None, known):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def ordinary_file(path: Path, remedy: str = "") -> Path:
    """The path, where a file is; its size is asked for and it is read from several places, as a pipe cannot be.

    Args:
        path: of the file.
        remedy: what to do where there is none.

    Raises:
        InputError: nothing there, a folder, a pipe or a device.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file" + (remedy and f"; {remedy}"))
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file")
    if not path.is_file():
        raise InputError(f"{path}: is a pipe or a device; write what comes from it to a file, and give that")
    return path


@contextmanager
def noting(bad: dict[int, InputError], place: int, record: str, info: Mapping[str, Any]) -> Iterator[None]:
    """Write down what is wrong with one structure of many, with its name and what the file says of it."""
    try:
        yield
    except InputError as error:
        error.record, error.info = error.record or record, error.info or info
        bad[place] = error


def refuse(bad: Mapping[int, InputError], n: int, where: str, what: str = "structures") -> None:
    """Refuse what was found to be bad, all at once.

    Args:
        bad: what is wrong, by the places among all.
        n: how many there are in all.
        where: what holds them.
        what: they are.

    Raises:
        InputError: anything is bad; one reason stands for itself, of more the first ten are given.
    """
    reasons = [str(bad[place]) for place in sorted(bad)]
    if len(reasons) == 1:
        raise next(iter(bad.values()))
    if reasons:
        raise InputError(listed(f"{where}: {len(reasons)} of {n} {what} cannot be used", reasons))


def listed(what: str, reasons: Sequence[str], most: int = MOST_REASONS) -> str:
    """What is wrong, then the first few reasons, one to a line, and how many there are more."""
    more = [f"and {len(reasons) - most:,} more"] if len(reasons) > most else []
    return "\n  ".join([what, *reasons[:most], *more])


def in_line(names: Sequence[str], most: int = 5) -> str:
    """The first few names in one line, and how many there are more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


OnBad = Literal["stop", "skip"]
"""Whether a structure that cannot be used stops what is being done, or is left out of it."""

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
    of_cuda = type(error).__name__ == "OutOfMemoryError"
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    return isinstance(error, MemoryError) or of_cuda or said


def fitting(compute: Callable[[], T]) -> tuple[T] | None:
    """What is computed, in a tuple; None if it does not fit into memory, of which none is held any more."""
    try:
        return (compute(),)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    # Not where the error was caught: as long as it lives, so do the tensors of the attempt.
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        sys.modules["torch"].cuda.empty_cache()
    return None


def does_not_fit(name: str, n_atoms: int) -> str:
    """What to say of a structure that is too large by itself."""
    return (
        f"{name}: out of memory with this structure alone ({n_atoms:,} atoms); leave it out, use a smaller model or "
        "cutoff, or a device with more memory. In training, where model.n_recycles is above 1, "
        "trainer.checkpoint_recycles=true needs less"
    )
