"""molflt: linear, exactly invariant Fourier-RPE transformers for molecules and materials."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from molflt.errors import InputError

if TYPE_CHECKING:
    from molflt.adsorption import adsorb
    from molflt.prediction.evaluate import Evaluation, evaluate
    from molflt.prediction.model import Model, load
    from molflt.prediction.output import Prediction
    from molflt.simulate.ase import MolFLTCalculator
    from molflt.simulate.pair_lbfgs import PairLBFGS
    from molflt.training.ensemble import train
    from molflt.training.run import Run

__version__ = "0.1.0"
__all__ = [
    "Evaluation",
    "InputError",
    "Model",
    "MolFLTCalculator",
    "PairLBFGS",
    "Prediction",
    "Run",
    "__version__",
    "adsorb",
    "evaluate",
    "load",
    "train",
]

# torch takes seconds to import, and the command line's help needs none of it.
_LAZY = {
    "Evaluation": "prediction.evaluate",
    "Model": "prediction.model",
    "MolFLTCalculator": "simulate.ase",
    "PairLBFGS": "simulate.pair_lbfgs",
    "Prediction": "prediction.output",
    "Run": "training.run",
    "adsorb": "adsorption",
    "evaluate": "prediction.evaluate",
    "load": "prediction.model",
    "train": "training.ensemble",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"molflt.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'molflt' has no attribute '{name}'")


class _Former:
    """Finder of modules at their former places, asked when nothing else has found one."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("molflt."):
            return None
        from molflt.former import spec_of

        return spec_of(name)


if _Former not in sys.meta_path:
    sys.meta_path.append(_Former)


def __dir__() -> list[str]:
    return sorted(__all__)
