"""Deprecated names of documented modules, which work for one release, with a warning."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "molflt.attention.kernels.base": "molflt.attention.kernels",
    "molflt.attention.kernels.kernel": "molflt.attention.kernels",
    "molflt.bundled": "molflt.files",
    "molflt.calculator": "molflt.simulate.ase",
    "molflt.calculator.torch_sim_model": "molflt.simulate.torch_sim",
    "molflt.data.ase_io": "molflt.data.ase",
    "molflt.data.batching": "molflt.data.batch",
    "molflt.data.lmdb_writer": "molflt.data.oc20.writer",
    "molflt.data.records": "molflt.data.record",
    "molflt.data.sources": "molflt.data.open",
    "molflt.invariance.energies": "molflt.invariance",
    "molflt.invariance.harness": "molflt.invariance",
    "molflt.literature.relaxation": "molflt.simulate.pair_lbfgs",
    "molflt.model.energy_model": "molflt.model.energy",
    "molflt.model.model_file": "molflt.model.file",
    "molflt.prediction.evaluation": "molflt.prediction.evaluate",
}
"""Former and present names of modules, since 0.1; an entry is removed one release after the move."""


class Former(Loader):
    """Loader of :data:`MOVED`."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python, see :class:`Loader`."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with the names of the one that stands in its place, and warn."""
        place = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {place}", DeprecationWarning, stacklevel=2)
        found = vars(import_module(place))
        vars(module).update({name: value for name, value in found.items() if not name.startswith("__")})


def spec_of(name: str) -> ModuleSpec | None:
    """Return how a module at a former place is loaded, or None for any other name."""
    return ModuleSpec(name, Former(), is_package=True) if name in MOVED else None
