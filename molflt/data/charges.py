"""Charges and spins, which the models do not know: a structure that declares one is refused."""

from __future__ import annotations

import numpy as np
from ase import Atoms

from molflt.errors import InputError

KNOWN_VALUES: dict[str, tuple[float, ...]] = {
    "charge": (0,),
    "total_charge": (0,),
    "net_charge": (0,),
    # Some programs write the number of unpaired electrons, others the multiplicity.
    "spin": (0, 1),
    "total_spin": (0,),
    "multiplicity": (1,),
    "spin_multiplicity": (1,),
}
"""Entries of ``atoms.info``, in any case of letters, and the values that mean neutral and closed-shell."""

_ROUNDING = 0.05
"""Elementary charges by which written partial charges of a neutral structure may miss zero in sum."""


def refuse_charges(atoms: Atoms, name: str) -> None:
    """Refuse a charge or spin in ``atoms.info``; an entry that is None says nothing.

    Args:
        atoms: the structure.
        name: where it came from, for the message.

    Raises:
        InputError: an entry of ``KNOWN_VALUES`` is anything but neutral and closed-shell.
    """
    for key, value in atoms.info.items():
        allowed = KNOWN_VALUES.get(key.lower()) if isinstance(key, str) else None
        if allowed is not None and value is not None and not _is_one_of(value, allowed):
            neutral = " or ".join(map(str, allowed))
            raise InputError(
                f"{name}: atoms.info[{key!r}] is {value!r:.40}, but molflt's models know no charge and no spin; "
                f"where it is wrong, remove it or set it to {neutral}, else leave the structure out"
            )


def refuse_initial_charges(atoms: Atoms, name: str) -> None:
    """Refuse initial charges that make the structure an ion; partial charges of a neutral one change nothing.

    Initial magnetic moments are no such thing: they are where a self-consistent calculation starts, not the state it
    ends in, and ASE's own builders set them (``bulk("Ni")``, ``molecule("O2")``).

    Args:
        atoms: the structure.
        name: where it came from, for the message.

    Raises:
        InputError: they do not add up to zero, in elementary charges.
    """
    if "initial_charges" not in atoms.arrays:
        return
    total = float(np.sum(atoms.arrays["initial_charges"]))
    if not abs(total) <= _ROUNDING:
        raise InputError(
            f"{name}: its initial charges add up to {total:g}, but molflt's models know no charge; where they are "
            "wrong, call atoms.set_initial_charges(None), else leave the structure out"
        )


def _is_one_of(value: object, allowed: tuple[float, ...]) -> bool:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return bool(np.isin(numbers, allowed).all())
