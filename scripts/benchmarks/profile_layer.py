"""Where the time of one attention layer goes, stage by stage: preparation, and one forward pass.

Balls of atoms at 0.1 per Å³. The functions of each stage are timed as they are called; what one calls of another is
counted there only, so that the stages add up to the whole.

    python -m scripts.benchmarks.profile_layer --atoms 64 1024 --threads 1
    python -m scripts.benchmarks.profile_layer --kind periodic --row "flt, both"
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from molflt.attention import geometry, layer, layout, near
from molflt.attention.far import field, mesh, mesh_operator, pairs, waves
from scripts import results
from scripts.benchmarks import layers, measuring, structures
from scripts.benchmarks.layer_worker import Calls
from scripts.benchmarks.layers import ROWS, MolfltLayer
from scripts.benchmarks.measuring import duration

ATOMS = (64, 1024, 16384, 131072)
LIST, REST = "neighbour list", "the rest"


def _spread_or_read(pattern: Any, *_: Any) -> str:
    """The pattern from grid points to atoms was made from the one from atoms to grid points."""
    return "mesh: spread" if pattern._origin is not None else "mesh: read off"


STAGES: dict[str, list[tuple[Any, str]]] = {
    LIST: [(structures, "attach_neighbours")],
    "layout": [(layout.Plan, "__call__")],
    "geometry": [(layers, "geometry_of_batch"), (geometry.Geometry, "displacements")],
    "radial features": [
        (layers, "local_neighbourhood"),
        (near.GaussianDistanceBasis, "forward"),
        (near.LocalRPE, "on_entries"),
    ],
    "f̂ on pairs": [(field, "sum_over_pairs")],
    "mesh: grid": [(mesh.Mesh, "operator")],
    "waves": [(field, "on_waves")],
    "mesh: waves": [(mesh_operator, "along_first"), (mesh_operator, "along_others"), (mesh_operator, "exchange")],
    "mesh: filters": [(mesh_operator.Band, "filters"), (mesh_operator.MeshOperator, "_convolve")],
    "mesh: order of the atoms": [(mesh_operator.MeshOperator, "__call__")],
    "sums over waves": [(waves.OnWaves, "__call__")],
    "sums over pairs": [(pairs.OnPairs, "__call__")],
    "near sums": [(layer.FourierAttention, "_near_sum")],
    "projections": [(layer, "together"), (layer.FourierAttention, "_content"), (layer.FourierAttention, "forward")],
}
"""What is timed under which name; the sums over the mesh's entries are told apart in :func:`_spread_or_read`."""


class Watch:
    """Seconds by stage; a stage that calls another stops while that one runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside under a name."""
        self._count()
        self._running.append(name)
        try:
            yield
        finally:
            self._count()
            self._running.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        if self._running:
            name = self._running[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def wrapped(self, function: Callable[..., Any], name: str | Callable[..., str]) -> Callable[..., Any]:
        """The function, counted under a name, which may depend on its arguments."""

        @functools.wraps(function)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            with self.stage(name if isinstance(name, str) else name(*arguments)):
                return function(*arguments, **keywords)

        return counted


@contextmanager
def watched() -> Iterator[Watch]:
    """A watch on the functions of :data:`STAGES`, which are themselves again afterwards."""
    watch = Watch()
    places = [(owner, name, stage) for stage, functions in STAGES.items() for owner, name in functions]
    places.append((mesh_operator, "weighted_sum", _spread_or_read))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, stage in places:
            setattr(owner, name, watch.wrapped(getattr(owner, name), stage))
        yield watch
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def profile(kind: str, n: int, row: str, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of every stage: medians over the repeats, of the neighbour list once."""
    layer_ = MolfltLayer(row)
    found = structures.make(kind, n)
    times: dict[str, list[float]] = {}
    with watched() as watch, watch.stage(REST):
        batch = structures.batch_with_neighbours(found, layers.CUTOFF)
    times[LIST] = [watch.seconds[LIST]]
    calls = Calls(layer_, batch, train=False)
    # Everything that is made when a first layer asks for it counts where it is asked for.
    calls.prepare()
    calls.layer()
    for k in range(repeats):
        with watched() as watch, watch.stage(REST):
            calls.prepare()
            calls.layer()
        for name in {*times, *watch.seconds} - {LIST}:
            # A stage that an earlier repeat did not see took no time there.
            times.setdefault(name, [0.0] * k).append(watch.seconds.get(name, 0.0))
    order = [*STAGES, "mesh: spread", "mesh: read off", REST]
    return [
        {
            "kind": kind,
            "atoms": n,
            "row": row,
            "stage": name,
            "ms": 1e3 * median(times.get(name, [0.0])),
            "how": layer_.how(calls.prepared),
        }
        for name in order
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, nargs="+", default=list(ATOMS))
    parser.add_argument("--kind", choices=structures.KINDS, default="isolated")
    parser.add_argument("--row", choices=[name for name in ROWS if name != "softmax"], default="flt, both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="answer as a measurement that speed.py asks for")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    def everything() -> list[dict[str, Any]]:
        return [row for n in options.atoms for row in profile(options.kind, n, options.row, options.repeats)]

    if options.json:
        measuring.answer(lambda: {"rows": everything()})
    else:
        print(table(everything()))


def table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds and shares: a row for each stage that took time, a column for each number of atoms or slabs."""
    sizes = sorted({int(row["atoms"]) for row in rows})
    seconds = {(row["stage"], int(row["atoms"])): 1e-3 * float(row["ms"]) for row in rows}
    stages = [stage for stage in dict.fromkeys(row["stage"] for row in rows) if stage != LIST]
    total = {n: sum(seconds[stage, n] for stage in stages) for n in sizes}
    cells = [
        [stage, *(f"{duration(seconds[stage, n])} ({100 * seconds[stage, n] / total[n]:.0f} %)" for n in sizes)]
        for stage in stages
        if any(seconds[stage, n] > 0 for n in sizes)
    ]
    how = [next(row["how"] for row in rows if int(row["atoms"]) == n) for n in sizes]
    whole = ["all of these", *(duration(total[n]) for n in sizes)]
    apart = [LIST, *(duration(seconds[LIST, n]) for n in sizes)]
    return results.markdown(["stage", *(f"{n:,}" for n in sizes)], [["method", *how], *cells, whole, apart])


if __name__ == "__main__":
    main()
