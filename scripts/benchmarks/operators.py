"""Operators that a step dispatches, and waits for a number: the same on a CPU and a GPU.

    python -m scripts.benchmarks.operators

Views are not counted, nor is memory that is taken; a ``_foreach`` or fused operator counts once. A wait is whatever
needs a number in the processor's memory: ``.item()``, ``.tolist()``, a condition, a boolean index, ``nonzero``,
``unique``, an inverse that is checked. On a GPU each would stop Python until all that was sent is done.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from molflt.attention.sparse import SparsePattern
from molflt.model.derivatives import derivatives
from molflt.model.energy import EnergyModel
from molflt.training.config import preset_config
from scripts import results
from scripts.benchmarks import structures

_FREE = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "alias")
_WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "equal",
    "_linalg_check_errors",
)
_READING = ("tolist", "numpy", "cpu", "__array__", "tensor", "as_tensor")
"""Functions that copy between host and device, and dispatch nothing where both are the same."""
_ON_CPUS = SparsePattern.__dict__["transposed"].func.__code__
"""Its counting sort in NumPy is for CPUs only; on a GPU it sorts there."""


@dataclass
class Count:
    """Operators and waits of a step.

    Attributes:
        operators: by name.
        waits: by name.
    """

    operators: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)


class _Dispatched(TorchDispatchMode):
    def __init__(self, count: Count) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if not func.is_view and name not in _FREE:
            self.count.operators[name] += 1
        by_mask = name in ("index", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in _WAITING or by_mask or (name == "repeat_interleave" and not (kwargs or {}).get("output_size")):
            self.count.waits[name] += 1
        return func(*args, **(kwargs or {}))


class _Read(TorchFunctionMode):
    def __init__(self, count: Count) -> None:
        super().__init__()
        self.count = count

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READING and sys._getframe(1).f_code is not _ON_CPUS:
            self.count.waits[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counting(found: Count) -> Iterator[None]:
    """Count what is dispatched."""
    with _Read(found), _Dispatched(found):
        yield


def count(step: Callable[[], object]) -> Count:
    """Count what a step dispatches, after one that sets everything up."""
    step()
    found = Count()
    with counting(found):
        step()
    return found


def energy_step(n_structures: int, preset: str = "small") -> Callable[[], None]:
    """Forward and backward of a preset on energies of slabs like OC20's larger ones."""
    torch.manual_seed(0)
    model = EnergyModel(preset_config(preset).model).train()
    batch = structures.batch_for(model, structures.large_slabs(n_structures))

    def step() -> None:
        model.zero_grad()
        output = model(batch)
        loss = output.energy.square().mean()
        if output.displacement is not None:
            loss = loss + output.displacement.abs().mean()
        loss.backward()

    return step


def force_step(n_structures: int = 6) -> Callable[[], None]:
    """The same of the preset ``forces`` on energies and forces of small molecules."""
    torch.manual_seed(0)
    model = EnergyModel(preset_config("forces").model).train()
    batch = structures.batch_for(model, [structures.ball(15, seed) for seed in range(n_structures)])

    def step() -> None:
        model.zero_grad()
        found = derivatives(model, batch, create_graph=True)
        (found.output.energy.square().mean() + found.forces.square().mean()).backward()

    return step


def dynamics_step(n_atoms: int = 1000) -> Callable[[], None]:
    """Forces of ``small`` on a periodic cube."""
    torch.manual_seed(0)
    model = EnergyModel(preset_config("small").model).eval()
    batch = structures.batch_for(model, [structures.cube(n_atoms)])
    return lambda: _ignored(derivatives(model, batch))


def _ignored(_: object) -> None:
    return None


STEPS: dict[str, Callable[[], Callable[[], None]]] = {
    **{f"training on energies, {n} slabs": (lambda n=n: energy_step(n)) for n in (2, 16, 32)},
    "training on forces, 6 molecules": force_step,
    "training on forces, 2 molecules": lambda: force_step(2),
    "dynamics, 1,000 atoms": dynamics_step,
}


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--names", action="store_true", help="the operators and waits by name, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| step | operators | waits |\n|---|---|---|")
    for name, make in list(STEPS.items())[: 1 if options.quick else None]:
        found = count(make())
        print(f"| {name} | {found.operators.total():,} | {found.waits.total()} |", flush=True)
        if options.names:
            print(found.operators.most_common(), found.waits.most_common())


if __name__ == "__main__":
    main()
