"""Changes of energies under the symmetries of space, for structures of up to 20,000 atoms.

An untrained ``small`` model of the default attention is asked, its far field scaled up until removing it would move
the energy of the smallest structure by 30 %: a far field that is zero proves nothing.

    python -m scripts.benchmarks.invariance                    # writes docs/results/invariance.csv, a row at a time
    python -m scripts.tools.tables                             # and the table in docs/design.md
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.attention.registry import attention_config
from molflt.invariance import structures as changes
from molflt.invariance.structures import energies, scaled_until_it_matters
from molflt.model.energy import EnergyModel
from molflt.training.config import preset_config
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


def rows(kind: str, atoms: int, model: EnergyModel) -> list[dict[str, str]]:
    """One row for each precision."""
    (data,) = structures.make(kind, atoms)
    found = []
    for dtype in (torch.float32, torch.float64):
        cast = copy.deepcopy(model).to(dtype).eval()
        reference = energies(cast, [data])
        row = {"contraction": str(reference.contractions[0]), "dtype": str(dtype)[6:]}
        for name, change in CHANGES.items():
            row[name] = "–"
            if name not in ("wrapping", "cell") or changes.is_periodic(data):
                other = energies(cast, [change(data, np.random.default_rng(0))])
                row[name] = f"{float(abs(other.energy - reference.energy)[0] / reference.magnitude[0]):.1e}"
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
    options = results.parser(__doc__, kept=PATH).parse_args()
    model = scaled_model(structures.make("isolated", SIZES[0]))
    sizes = SIZES[:1] if options.quick else SIZES
    points = [{"kind": kind, "atoms": n} for n in sizes for kind in ("isolated", "periodic")]
    results.sweep(options.results, points, partial(rows, model=model), {"draws": 1})


if __name__ == "__main__":
    main()
