"""Deprecated location of :mod:`molflt.simulate`, for one release."""

import sys
import warnings

from molflt.simulate import torch_sim
from molflt.simulate.ase import MolFLTCalculator

__all__ = ["MolFLTCalculator"]

warnings.warn(
    "molflt.calculator goes away: from molflt import MolFLTCalculator, "
    "from molflt.simulate.torch_sim import MolFLTModel",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules[f"{__name__}.torch_sim_model"] = torch_sim
