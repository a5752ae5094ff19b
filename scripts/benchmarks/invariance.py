"""How far energies change when structures of up to 20,000 atoms are turned, mirrored, shifted, renumbered or wrapped.

An untrained ``small`` model of the default attention is asked, its far field scaled up until removing it would move
the energy of the smallest structure by 30 %: a far field that is zero proves nothing.

    python -m scripts.benchmarks.invariance                    # writes docs/results/invariance.csv, a row at a time
    python -m scripts.tools.tables                             # and the table in docs/design.md
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.attention.registry import attention_config
from molflt.invariance import structures as changes
from molflt.invariance.structures import energies, scaled_until_it_matters
from molflt.model.energy_model import EnergyModel
from molflt.training.presets import preset_config
from scripts import results
from scripts.benchmarks import structures

PATH = results.DOCS / "results" / "invariance.csv"
SIZES = (20, 200, 2_000, 20_000)
CHANGES = {
    "rotation": changes.rotation,
    "reflection": changes.reflection,
    "translation": changes.translation,
    "atom order": changes.permutation,
    "wrapping": changes.wrapping,
    "cell": changes.cell_change,
}


def rows(model: EnergyModel, kind: str, n: int) -> list[dict[str, str]]:
    """One row for each precision."""
    (data,) = structures.make(kind, n)
    found = []
    for dtype in (torch.float32, torch.float64):
        cast = copy.deepcopy(model).to(dtype).eval()
        reference = energies(cast, [data])
        row = {"kind": kind, "atoms": str(n), "contraction": str(reference.contractions[0]), "dtype": str(dtype)[6:]}
        for name, change in CHANGES.items():
            if name in ("wrapping", "cell") and not changes.is_periodic(data):
                row[name] = "–"
                continue
            other = energies(cast, [change(data, np.random.default_rng(0))])
            relative = abs(other.energy - reference.energy) / reference.magnitude
            row[name] = f"{float(relative[0]):.1e}"
        found.append(row)
    return found


def scaled_model(examples: Sequence[Data]) -> EnergyModel:
    """An untrained model whose far field matters."""
    config = preset_config("small").model.model_copy(update={"attention": attention_config("flt")})
    model = scaled_until_it_matters(EnergyModel(config, seed=0).eval(), examples)
    assert model is not None
    return model


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PATH, help="CSV to write")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="atoms")
    options = parser.parse_args()
    model = scaled_model(structures.make("isolated", SIZES[0]))
    for n in options.sizes:
        for kind in ("isolated", "periodic"):
            if results.find(results.read(options.out), kind=kind, atoms=n):
                continue
            results.extend(options.out, rows(model, kind, n), {"draws": 1})
            print(f"{kind}, {n:,} atoms: done", flush=True)


if __name__ == "__main__":
    main()
