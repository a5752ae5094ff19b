"""What the far field costs: how much work of each kind a method has to do, and the seconds that one of each takes.

Methods count their work (:class:`Work`) and know no seconds. The seconds are measured:
``python -m scripts.benchmarks.method_choice --fit FILE`` writes them to a file. The file beside this module was made
with it on a server with two x86 cores. It serves GPUs as well. The environment variable ``MOLFLT_COSTS`` names
another file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from molflt.errors import InputError

VARIABLE = "MOLFLT_COSTS"
"""The environment variable that names a file of costs."""

SHIPPED = Path(__file__).with_name("costs.json")

Threads = Literal["one thread", "more threads"]
Direction = Literal["forward", "train"]
THREADS: tuple[Threads, ...] = ("one thread", "more threads")
DIRECTIONS: tuple[Direction, ...] = ("forward", "train")

_MOST_SECONDS = 1.0
"""Of one unit. The dearest of them take milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """How often each kind of work is done; or, as rates, the seconds that one of each kind takes.

    n atoms, T members of f, K waves, R applications, c channels of the far field; a structure and a step of it.

    Attributes:
        exact_calls, image_calls, lattice_calls, mesh_calls: preparations by each method, whatever the size.
        pair_members: Gaussians on pairs.
        pair_waves: sinc on pairs.
        image_candidates: displacements of pairs and images from which the near ones are taken.
        image_members, image_waves: as for pairs, of pairs and images.
        wave_phases: features of atoms, among them cosines and sines: n · 2K.
        wave_spectra: transforms on the reciprocal lattice, K · T.
        wave_products: multiply-adds that make pairs out of waves.
        mesh_bands: bands of a mesh.
        mesh_entries: grid points that atoms are assigned to, n · NODES³.
        mesh_spectra: transforms on the waves of a mesh.
        pair_layers: layers contracted on pairs.
        pair_factors: local factors and f̂ of a layer, n² · heads.
        pair_mixed: multiply-adds from members to heads.
        pair_applications: R, if contracted on pairs.
        pair_contents: R · n² · heads, what is done to every pair and head.
        pair_products: multiply-adds on pairs.
        pair_spilled: values on pairs that layers read and write, of blocks too large for the memory at hand.
        edge_applications: R, if contracted along the neighbour list.
        edge_products: multiply-adds along the neighbour list.
        edge_heads: R · edges · heads.
        feature_applications: R, if f̂ is a sum of products of features.
        feature_products: multiply-adds with features.
        feature_weights: multiply-adds from members to features.
        grid_passes: R times the parts in which channels are carried.
        grid_bands: the same times the bands.
        grid_spread: values spread and read off, R · 2c · n · NODES³.
        grid_points: R · c · grid points.
        grid_first, grid_others: multiply-adds of the transforms along the first axis and the others.
        grid_values: R · c · waves.
        grid_filters: multiply-adds from members to the filters of heads.
    """

    exact_calls: float = 0.0
    image_calls: float = 0.0
    lattice_calls: float = 0.0
    mesh_calls: float = 0.0
    pair_members: float = 0.0
    pair_waves: float = 0.0
    image_candidates: float = 0.0
    image_members: float = 0.0
    image_waves: float = 0.0
    wave_phases: float = 0.0
    wave_spectra: float = 0.0
    wave_products: float = 0.0
    mesh_bands: float = 0.0
    mesh_entries: float = 0.0
    mesh_spectra: float = 0.0
    pair_layers: float = 0.0
    pair_factors: float = 0.0
    pair_mixed: float = 0.0
    pair_applications: float = 0.0
    pair_contents: float = 0.0
    pair_products: float = 0.0
    pair_spilled: float = 0.0
    edge_applications: float = 0.0
    edge_products: float = 0.0
    edge_heads: float = 0.0
    feature_applications: float = 0.0
    feature_products: float = 0.0
    feature_weights: float = 0.0
    grid_passes: float = 0.0
    grid_bands: float = 0.0
    grid_spread: float = 0.0
    grid_points: float = 0.0
    grid_first: float = 0.0
    grid_others: float = 0.0
    grid_values: float = 0.0
    grid_filters: float = 0.0

    def __add__(self, other: Work) -> Work:
        others = vars(other)
        return Work(**{name: amount + others[name] for name, amount in vars(self).items()})

    def times(self, factor: float) -> Work:
        """Of every kind so many times as much."""
        return Work(**{name: factor * amount for name, amount in self.amounts().items()})

    def amounts(self) -> dict[str, float]:
        """By name."""
        return dict(vars(self))

    def seconds(self, rates: Work) -> float:
        """How long it takes."""
        each = vars(rates)
        return sum(amount * each[name] for name, amount in vars(self).items() if amount)


@dataclass(frozen=True)
class LayerSizes:
    """What the layers will do with f̂.

    Attributes:
        n_applications: number of layers times number of recycles.
        n_heads: number of heads.
        dim: width of the near values, all heads together.
        far_dim: width of the values that the far field carries, all heads together.
        rank: rank of the content factor, 1 or m.
        n_layers: number of layers.
    """

    n_applications: int
    n_heads: int
    dim: int
    far_dim: int
    rank: int
    n_layers: int

    @property
    def n_channels(self) -> int:
        """Values per atom that an operator carries, all heads together."""
        return self.far_dim * self.rank


@dataclass(frozen=True)
class Costs:
    """Seconds per unit of work.

    Attributes:
        rates: by number of threads, and by whether there is a backward pass.
    """

    rates: Mapping[tuple[Threads, Direction], Work]

    def of(self, n_threads: int, backward: bool) -> Work:
        """The rates for a number of threads, with the backward pass or without it."""
        return self.rates["one thread" if n_threads == 1 else "more threads", "train" if backward else "forward"]

    def table(self) -> dict[str, dict[str, dict[str, float]]]:
        """As it stands in a file."""
        return {t: {d: _rounded(self.rates[t, d]) for d in DIRECTIONS} for t in THREADS}


def costs() -> Costs:
    """Those of the file that ``MOLFLT_COSTS`` names, else the shipped ones.

    Raises:
        InputError: the file cannot be used.
    """
    return read_costs(os.environ.get(VARIABLE) or str(SHIPPED))


@cache
def read_costs(path: str) -> Costs:
    """Costs from a file, read once in a process.

    Raises:
        InputError: there is no such file, or it does not hold a sensible number for every kind of work.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            table = json.load(handle)["seconds"]
        rates = {
            (threads, direction): _rates(table[threads][direction]) for threads in THREADS for direction in DIRECTIONS
        }
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from error
    except KeyError as error:
        raise _refusal(path, f"{error} is missing") from error
    except (TypeError, ValueError) as error:
        raise _refusal(path, str(error).partition("\n")[0]) from error
    return Costs(rates)


def _rounded(rates: Work) -> dict[str, float]:
    return {name: float(f"{seconds:.4g}") for name, seconds in rates.amounts().items()}


def _rates(table: Any) -> Work:
    names = {field.name for field in fields(Work)}
    if not isinstance(table, dict):
        raise TypeError(f"{type(table).__name__} instead of numbers by name")
    if odd := sorted(names ^ set(table)):
        raise ValueError(f"{odd[0]} is {'missing' if odd[0] in names else 'not known'}")
    for name, value in table.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 <= value <= _MOST_SECONDS:
            raise ValueError(f"{name} = {value!r} is no number of seconds between 0 and {_MOST_SECONDS:g}")
    if not any(table.values()):
        raise ValueError("all numbers are zero")
    return Work(**cast(dict[str, float], table))


def _refusal(path: str, reason: str) -> InputError:
    return InputError(
        f"{path}: no costs of the far field ({reason}); write them with python -m scripts.benchmarks.method_choice "
        f"--fit {path}, or unset {VARIABLE}"
    )
