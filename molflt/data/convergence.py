"""Calculations that have not converged or were cut short, whose results are no labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ase import Atoms

from molflt.errors import InputError, InputWarning, listed

UNCONVERGED = "unconverged"
"""Key of ``info`` under which a reader says why the results of a frame are not converged."""
_NO = ("false", "f", "no", "n", "0")


class UnfinishedError(InputError):
    """A file of a calculation that ended before its first result."""


def shortfall(atoms: Atoms) -> str:
    """The reason why the results of a frame are no labels; empty where nothing says so.

    Readers of VASP give one; in other files it is an entry ``converged`` of ``info`` that is false.
    """
    if reason := atoms.info.get(UNCONVERGED):
        return str(reason)
    for key, value in atoms.info.items():
        if isinstance(key, str) and key.lower() == "converged" and str(value).strip().lower() in _NO:
            return f"{key} is {value}"
    return ""


def was_cut(atoms: Atoms) -> bool:
    """Whether a frame is of a calculation whose output has no end."""
    return getattr(atoms.calc, "parameters", {}).get("complete") is False


def give_skipped(skipped: Sequence[str], n: int, where: str, what: str = "structures") -> None:
    """Warn of what was left out for its :func:`shortfall`.

    Args:
        skipped: names and reasons.
        n: how many there are in all.
        where: what holds them.
        what: they are.

    Raises:
        InputError: nothing is left.
    """
    if not skipped:
        return
    text = listed(
        f"{where}: {len(skipped)} of {n} {what} skipped: their calculations are not converged or not complete; take "
        "them with --accept-unconverged (in training data.accept_unconverged=true)",
        skipped,
    )
    if len(skipped) == n:
        raise InputError(text)
    warnings.warn(text, InputWarning, stacklevel=3)
