"""Time and error of the far field on pairs and on the mesh, against the number of atoms at fixed density.

Random atoms in a periodic cube at 0.1 atoms/Å³, 8 heads of 8 channels, one forward pass of one layer.
On pairs it is what the model would do: image sum or lattice sum, whichever it counts as cheaper.

    python scripts/bench_mesh.py --atoms 250 500 1000 2000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from torch import Tensor

from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.lattice import LatticeMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.far.mesh import MeshMethod
from molflt.attention.geometry import Geometry, build_geometry
from molflt.data.ase_io import from_atoms
from molflt.files import atomic_file

HEADS, CHANNELS, DENSITY = 8, 8, 0.1


def box(n: int) -> Geometry:
    """N random atoms in a cube, without a neighbour list."""
    side = (n / DENSITY) ** (1 / 3)
    positions = np.random.default_rng(0).uniform(0, side, size=(n, 3))
    data = from_atoms(Atoms(f"O{n}", positions, cell=[side] * 3, pbc=True), "box")
    none = torch.zeros((2, 0), dtype=torch.int64)
    structure = torch.zeros(n, dtype=torch.int64)
    offsets = torch.zeros((0, 3), dtype=torch.int64)
    numbers = data.atomic_numbers
    return build_geometry(data.positions, numbers, structure, data.cell, data.pbc, none, offsets, torch.float32)


def seconds(call: Callable[[], Tensor], repeats: int) -> float:
    """Median after one call to warm up."""
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return float(np.median(found))


def measure(n: int, tolerance: float, repeats: int) -> dict[str, float | int | str]:
    """One row of the table."""
    geometry, basis = box(n), GaussianRPE(16, 2.0, 12.0)()
    weights, values = torch.randn(len(basis), HEADS), torch.randn(n, HEADS, CHANNELS)
    mesh, candidates = MeshMethod(tolerance), [ExactMethod(), LatticeMethod(tolerance)]
    pairs = min(candidates, key=lambda method: method.pair_cost(geometry, 0, basis))

    def on_pairs() -> Tensor:
        mask = (pairs.pair_basis(geometry, basis)[0] @ weights).permute(2, 0, 1)
        return (mask @ values.transpose(0, 1)).transpose(0, 1)

    def on_mesh() -> Tensor:
        return mesh.operator(geometry, 0, basis)(weights, values)

    with torch.no_grad():
        slow, fast = seconds(on_pairs, repeats), seconds(on_mesh, repeats)
    return {
        "atoms": n,
        "pairs": pairs.name,
        "pairs_s": slow,
        "mesh_s": fast,
        "ratio": slow / fast,
        "error": mesh.achieved_error(geometry, 0, basis, n_sample=20),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file for the table")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, ε = {options.tolerance:g}")
    print(f"{'atoms':>8}{'pairs by':>10}{'pairs / s':>12}{'mesh / s':>12}{'ratio':>8}{'mesh error':>12}")
    rows = []
    for n in options.atoms:
        row = measure(n, options.tolerance, options.repeats)
        rows.append(row)
        cells = f"{row['pairs_s']:>12.3f}{row['mesh_s']:>12.3f}{row['ratio']:>8.2f}{row['error']:>12.1e}"
        print(f"{n:>8}{row['pairs']:>10}{cells}", flush=True)
    if options.out is not None:
        with atomic_file(options.out) as temporary:
            temporary.write_text(json.dumps({"tolerance": options.tolerance, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
