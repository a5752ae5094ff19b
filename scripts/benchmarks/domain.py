"""Shares of structures that a domain calls outside, where they are and where they are not.

    MOLFLT_DATA=DATA python -m scripts.benchmarks.domain

No model is trained: the rule (molflt/data/quality/domain.py) looks at structures alone. It is learnt from a part of
a set, and asked about others: structures held out, whose share outside is that of false alarms, and structures that
a model of that part should not be trusted with, whose share is that of catches. ``geometry only`` is the share that
is outside by its geometry: distances, neighbours and gaps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.data.open import open_dataset
from molflt.data.quality.domain import GEOMETRIC, Domain, DomainFit
from molflt.data.quality.domain import outside as outside_of
from molflt.vocabulary import TAG_ADSORBATE
from scripts import results
from scripts.benchmarks import fg_splits
from scripts.benchmarks.accuracy_data import shared

_LEFT_OUT = {name: name for name in fg_splits.METALS}
_LEFT_OUT |= {
    "amidines": "amidines",
    "carbamate-esters": "carbamate esters",
    "molecules": "20 molecules",
    "size": f"adsorbates above {fg_splits.MOST_ATOMS['size']} atoms",
}
_LARGEST_MOLECULE, _HELD_OUT = 15, 5
Rows = list[results.Row]


def learnt(structures: Sequence[Data], forces: bool = False, by_element: bool = True) -> Domain:
    """Domain of a training set; ``by_element`` as for ``DomainFit``."""
    fit = DomainFit(len(structures), forces, by_element)
    for index, structure in enumerate(structures):
        fit.add(fit.look(index, structure))
    return fit.domain()


def row(data: str, training: Sequence[Data], what: str, asked: Sequence[Data]) -> results.Row:
    """Ask a rule that is learnt from some structures about others."""
    domain = learnt(training, by_element=data != "FG")
    elements = {z for s in training for z in s.atomic_numbers.tolist()}
    outside = rest = 0
    for structure in asked:
        rules = {reason.rule for reason in outside_of(domain, elements, structure)}
        outside += bool(rules)
        rest += not rules.isdisjoint(GEOMETRIC)
    n = len(asked)
    found = {"outside": f"{outside / n:.1%}", "geometry only": f"{rest / n:.1%}"}
    return {"set": data, "training": str(len(training)), "asked": what, "n": str(n), **found}


def bare(structure: Data) -> Data:
    """The surface alone."""
    chosen = structure.tags != TAG_ADSORBATE
    part = _of(structure, chosen)
    part.cell, part.pbc = structure.cell, structure.pbc
    return part


def in_vacuum(structure: Data) -> Data:
    """The adsorbate alone, as a molecule."""
    return _of(structure, structure.tags == TAG_ADSORBATE)


def _of(structure: Data, chosen: torch.Tensor) -> Data:
    zero = torch.zeros_like
    return Data(
        atomic_numbers=structure.atomic_numbers[chosen],
        positions=structure.positions[chosen],
        tags=zero(structure.tags[chosen]),
        fixed=structure.fixed[chosen],
        cell=zero(structure.cell),
        pbc=zero(structure.pbc),
        num_nodes=int(chosen.sum()),
    )


def scrambled(noise: float) -> Callable[[Data], Data]:
    """Structures with Gaussian noise of so many Å on every coordinate."""
    random = np.random.default_rng(0)

    def move(structure: Data) -> Data:
        moved = copy.copy(structure)
        shape = tuple(structure.positions.shape)
        moved.positions = structure.positions + torch.from_numpy(random.normal(scale=noise, size=shape))
        return moved

    return move


def lifted(structure: Data) -> Data:
    """The adsorbate 3 Å further from the surface."""
    moved = copy.copy(structure)
    up = 3.0 * (structure.tags == TAG_ADSORBATE)
    moved.positions = structure.positions + up[:, None] * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    return moved


def read(file: Path) -> list[Data]:
    """All structures of a file."""
    found = open_dataset(file)
    return [found[k] for k in range(len(found))]


def of_fg() -> Rows:
    """Rows of the FG set: learnt from slices 2 to 4, asked about slice 1; and what a rule leaves out."""
    training, held_out = fg_splits.divide("slice1")
    rows = [row("FG", training, "held out (slice 1)", held_out)]
    for noise in (0.02, 0.05, 0.1, 0.2):
        rows.append(row("FG", training, f"noise of {noise} Å", list(map(scrambled(noise), held_out))))
    rows.append(row("FG", training, "adsorbate lifted by 3 Å", list(map(lifted, held_out))))
    rows.append(row("FG", training, "surface without a molecule", list(map(bare, held_out))))
    rows.append(row("FG", training, "molecule in vacuum", list(map(in_vacuum, held_out))))
    for rule, what in _LEFT_OUT.items():
        known, others = fg_splits.divide(rule)
        rows.append(row("FG", known, f"{what}, left out", others))
    return rows


def of_qm7(file: Path) -> Rows:
    """Rows of QM7: learnt from molecules of up to 15 atoms, asked about others and larger ones."""
    small, large = _parts(read(file), lambda s: int(s.num_nodes) > _LARGEST_MOLECULE)
    training = [s for k, s in enumerate(small) if k % _HELD_OUT]
    held_out = small[::_HELD_OUT]
    rows = [row("QM7", training, f"held out (up to {_LARGEST_MOLECULE} atoms)", held_out)]
    for noise in (0.02, 0.05, 0.1, 0.2):
        rows.append(row("QM7", training, f"noise of {noise} Å", list(map(scrambled(noise), held_out))))
    rows.append(row("QM7", training, f"more than {_LARGEST_MOLECULE} atoms", large))
    return rows


def of_acac(folder: Path, qm7: Path) -> Rows:
    """Rows of acetylacetone at 300 K: other geometries of it, and molecules of its elements."""
    training, elements = read(folder / "train_300K.xyz.gz"), {1, 6, 8}
    others = [s for s in read(qm7) if elements.issuperset(s.atomic_numbers.tolist())]
    asked = {"held out (300 K)": read(folder / "test_MD_300K.xyz.gz"), "QM7 of C, H and O": others}
    return [row("acetylacetone", training, what, structures) for what, structures in asked.items()]


def _parts(structures: Sequence[Data], chosen: Callable[[Data], bool]) -> tuple[list[Data], list[Data]]:
    return [s for s in structures if not chosen(s)], [s for s in structures if chosen(s)]


def main() -> None:
    """Ask, and write the CSV; quickly of one set."""
    parser = results.parser(__doc__, kept=results.DOCS / "results" / "domain.csv")
    options = parser.parse_args()
    with results.input_errors(parser):
        qm7 = shared("qm7/qm7_train.extxyz.gz")
        rows = of_acac(shared("acac"), qm7)
        if not options.quick:
            rows = of_fg() + of_qm7(qm7) + rows
        results.record(options.results, rows)


if __name__ == "__main__":
    main()
