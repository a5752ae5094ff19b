"""Every name of a charge or spin, and each value that means neutral and closed-shell."""

from __future__ import annotations

import pytest
from ase.build import molecule

from molflt.data.charges import KNOWN_VALUES, refuse_charges
from molflt.errors import InputError

NEUTRAL = {
    "charge": {0},
    "total_charge": {0},
    "net_charge": {0},
    "spin": {0, 1},
    "total_spin": {0},
    "multiplicity": {1},
    "spin_multiplicity": {1},
}


@pytest.mark.parametrize("key", [*NEUTRAL, "Charge", "MULTIPLICITY"])
@pytest.mark.parametrize("value", [-2, -1, 0, 0.5, 1, 2, 3])
def test_only_what_is_neutral_and_closed_shell(key: str, value: float) -> None:
    atoms = molecule("H2O")
    atoms.info[key] = value
    if value in NEUTRAL[key.lower()]:
        refuse_charges(atoms, "water")
    else:
        with pytest.raises(InputError, match=rf"water: atoms.info\['{key}'\] is {value}"):
            refuse_charges(atoms, "water")


def test_no_other_name() -> None:
    assert set(KNOWN_VALUES) == set(NEUTRAL)
    atoms = molecule("H2O")
    atoms.info.update({"charges": 3, 7: 3})
    refuse_charges(atoms, "water")
