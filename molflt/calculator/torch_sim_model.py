"""The former place of :mod:`molflt.simulate.torch_sim`, for one release."""

import warnings

from molflt.simulate.torch_sim import MolFLTModel as MolFLTModel

warnings.warn(
    "molflt.calculator goes away: from molflt.simulate.torch_sim import MolFLTModel", DeprecationWarning, stacklevel=2
)
