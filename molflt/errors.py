"""Errors that a user can fix: bad input, a bad config, a wrong file."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

MOST_REASONS = 10
"""Most bad records that a message names; it counts the others."""


class InputError(ValueError):
    """Error for unusable input from the user.

    The message names the file, the record where there is one, and the remedy. The command line prints it
    without a traceback and exits with status 2; in Python it is an ordinary ``ValueError``.

    Attributes:
        record: name of the record that cannot be used; empty where none is meant.
        info: further data about that record from its file.
    """

    record: str = ""
    info: Mapping[str, Any] = MappingProxyType({})

    def again(self) -> InputError:
        """Return a copy, to be raised once more."""
        error = InputError(str(self))
        error.record, error.info = self.record, self.info
        return error


class DamagedError(InputError):
    """Error for damage to many records at once: leaving out the one that was asked for would be no remedy."""


class InputWarning(UserWarning):
    """Warning about input that was ignored or taken for granted.

    The command line prints it as a warning, also with ``--quiet``; in Python it is an ordinary warning.
    """


_LIBRARIES = ("molflt", "ase", "torch", "torch_sim")
"""Packages whose frames lie between a warning and the line of the user that led to it."""


def warn_caller(text: str, category: type[Warning] = InputWarning) -> None:
    """Warn at the line of the user's code that led to the warning.

    Args:
        text: of the warning.
        category: of the warning.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


class AgreedError(InputError):
    """Error known to all processes of a run: only the first prints it."""


@contextmanager
def naming(path: str | os.PathLike[str], instead_of: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Add a file's name to errors of the system that lack it, as those of a write do.

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
    """Return the path if it is a file, not a pipe: it is read from several places.

    Args:
        path: of the file.
        remedy: advice if there is none.

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
    """Record what is wrong with one structure of many, with its name and its file's data."""
    try:
        yield
    except InputError as error:
        error.record, error.info = error.record or record, error.info or info
        bad[place] = error


def refuse(bad: Mapping[int, InputError], n: int, where: str, what: str = "structures") -> None:
    """Refuse all bad records at once.

    Args:
        bad: the errors, by index.
        n: number of all records.
        where: what holds them.
        what: plural noun for the records.

    Raises:
        InputError: anything is bad; a single reason stands for itself, of several the first ten are given.
    """
    reasons = [str(bad[place]) for place in sorted(bad)]
    if len(reasons) == 1:
        raise next(iter(bad.values()))
    if reasons:
        raise InputError(listed(f"{where}: {len(reasons)} of {n} {what} cannot be used", reasons))


def listed(what: str, reasons: Sequence[str], most: int = MOST_REASONS) -> str:
    """List a heading, the first few reasons, one a line, and the number of the others."""
    more = [f"and {len(reasons) - most:,} more"] if len(reasons) > most else []
    return "\n  ".join([what, *reasons[:most], *more])


def in_line(names: Sequence[str], most: int = 5) -> str:
    """List the first few names in one line, and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


OnBad = Literal["stop", "skip"]
"""Treatment of a structure that cannot be used: stop, or leave it out."""

T = TypeVar("T")
_SAID = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "_ALLOC_FAILED",
)
"""Texts in errors of the CPU's allocator, CUDA and its libraries, none of which has a type of its own."""


def out_of_memory(error: BaseException) -> bool:
    """True if an error says that there is no memory left, on the CPU or on a GPU."""
    of_cuda = type(error).__name__ == "OutOfMemoryError"
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    return isinstance(error, MemoryError) or of_cuda or said


def try_within_memory(compute: Callable[[], T]) -> tuple[T] | None:
    """Compute, and return the result in a tuple; None, with memory freed, if it does not fit."""
    try:
        return (compute(),)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    # Outside the except block: while the error lives, so do the tensors of the attempt.
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        sys.modules["torch"].cuda.empty_cache()
    return None


def does_not_fit(name: str, n_atoms: int) -> str:
    """Message about a structure that is too large by itself."""
    return (
        f"{name}: out of memory with this structure alone ({n_atoms:,} atoms); leave it out, use a smaller model or "
        "cutoff, or a device with more memory. In training, where model.n_recycles is above 1, "
        "trainer.checkpoint_recycles=true needs less"
    )


def renamed(old: str, new: str) -> property:
    """Make an attribute's deprecated name, which reads the one that replaces it."""

    def get(self: Any) -> Any:
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(get)
