"""The former place of :mod:`molflt.simulate`, for one release."""

import warnings
from typing import Any

from molflt.simulate import ase


def __getattr__(name: str) -> Any:
    if name != "MolFLTCalculator":
        raise AttributeError(f"module 'molflt.calculator' has no attribute '{name}'")
    warnings.warn(
        "molflt.calculator goes away: from molflt import MolFLTCalculator", DeprecationWarning, stacklevel=2
    )
    return ase.MolFLTCalculator
