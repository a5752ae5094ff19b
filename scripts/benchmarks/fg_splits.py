"""Divisions of the FG set by metal, group, molecule and size, its four folds, and the folds within those.

All of slices 1 to 4 that a rule does not hold out is trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from torch_geometric.data import Data

from molflt.data.oc20.lmdb import LmdbDataset
from molflt.files import resolve_path
from molflt.vocabulary import TAG_ADSORBATE

METALS = ("Pt", "Cu", "Zn")
GROUPS = ("amidines", "carbamate_esters")
MOLECULES = (
    "13Y1", "37X3", "3812", "38Z2", "38Z3", "4802", "4803", "4804", "48S2", "49N5",
    "49Y2", "49_1", "4a14", "4aZ4", "4aZ9", "4aZb", "4aZh", "4aZl", "4aZo", "8a03",
)  # fmt: skip
"""The first 20 of the 203 names in their order, permuted by ``numpy.random.default_rng(0)``."""
MOST_ATOMS = {"size": 9, "size7": 7}
"""Of an adsorbate that is trained on, in the divisions by size."""

SLICES = "1234"
PAIRS = {f"slices{first}{second}": first + second for first, second in combinations(SLICES, 2)}
"""Slices that are trained on when the other two are held out, which a nested cross-validation chooses by."""

Rule = Callable[[Data], bool]


def _text(field: str, value: str) -> Rule:
    return lambda data: bool(data[field] == value)


def _larger(most: int) -> Rule:
    return lambda data: int((data.tags == TAG_ADSORBATE).sum()) > most


def _not_in(slices: str) -> Rule:
    return lambda data: data["slice"] not in slices


RULES: dict[str, Rule] = {
    **{metal: _text("metal", metal) for metal in METALS},
    **{group.replace("_", "-"): _text("group", group) for group in GROUPS},
    "molecules": lambda data: data.molecule in MOLECULES,
    **{name: _larger(most) for name, most in MOST_ATOMS.items()},
    **{f"slice{number}": _text("slice", number) for number in SLICES},
    **{pair: _not_in(slices) for pair, slices in PAIRS.items()},
}
"""Rules that say if a structure is held out, by the name of the division."""


def divide(name: str) -> tuple[list[Data], list[Data]]:
    """Structures to train on, and those held out, by one of :data:`RULES`."""
    everything = [data for part in ("train", "val") for data in LmdbDataset(resolve_path(f"bundled:fg/{part}.lmdb"))]
    held_out = RULES[name]
    return [data for data in everything if not held_out(data)], [data for data in everything if held_out(data)]


def judged(name: str, held_out: list[Data]) -> dict[str, list[Data]]:
    """Parts of what a rule holds out that are judged one by one: the slices that are not of a pair, else all."""
    if name not in PAIRS:
        return {"test": held_out}
    return {
        f"slice {number}": [data for data in held_out if data["slice"] == number]
        for number in SLICES
        if number not in PAIRS[name]
    }
