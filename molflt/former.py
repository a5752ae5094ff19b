"""Deprecated names of documented modules, which work for one release, with a warning."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "molflt.attention.kernels.kernel": "molflt.attention.kernels.base",
    "molflt.bundled": "molflt.files",
    "molflt.calculator": "molflt.simulate.ase",
    "molflt.calculator.torch_sim_model": "molflt.simulate.torch_sim",
    "molflt.data.ase_io": "molflt.data.ase",
    "molflt.data.batching": "molflt.data.batch",
    "molflt.data.lmdb_writer": "molflt.data.oc20.writer",
    "molflt.data.records": "molflt.data.record",
    "molflt.data.sources": "molflt.data.open",
    "molflt.invariance.energies": "molflt.invariance.harness",
    "molflt.literature.relaxation": "molflt.simulate.pair_lbfgs",
    "molflt.prediction.evaluation": "molflt.prediction.evaluate",
}
"""Former and present names of modules, since 0.1; an entry is removed one release after the move."""


class Former(MetaPathFinder, Loader):
    """Finder of :data:`MOVED`, asked after all others."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module in :data:`MOVED`, as :class:`MetaPathFinder` does."""
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the creation to Python, as :class:`Loader` allows."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with the names of its successor, and warn."""
        place = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {place}", DeprecationWarning, stacklevel=2)
        found = vars(import_module(place))
        vars(module).update({name: value for name, value in found.items() if not name.startswith("__")})


def find_former_places() -> None:
    """Register the finder, after all others."""
    if not any(isinstance(finder, Former) for finder in sys.meta_path):
        sys.meta_path.append(Former())
