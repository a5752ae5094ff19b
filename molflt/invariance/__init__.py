"""Tests of the invariances of a model's energy, as the model is and with its far field scaled up."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.attention.config import MethodKeys
from molflt.data.progress import track
from molflt.invariance.structures import (
    Energies,
    Transformation,
    cell_change,
    doubled,
    energies,
    has_far_field,
    is_periodic,
    permutation,
    reflection,
    rotation,
    scaled_until_it_matters,
    translation,
    wrapping,
)
from molflt.model.energy import EnergyModel, set_frequencies
from molflt.model.file import LoadedModel, load_model, save_model

DtypeName = Literal["float32", "float64"]

EXACT = "rounding"
PADDING = 7


@dataclass(frozen=True)
class Result:
    """Result for one property of one model in one precision.

    Attributes:
        name: of the property.
        dtype: precision of the model.
        far_scaled: True if the far weights had been scaled up.
        worst, median: |ΔE| in eV over structures and draws; NaN when not applicable.
        used: largest ratio of |ΔE| to the bound of its structure; at most one in a pass.
        bound: origin of the bound: ``rounding`` or the ε of a numerical method.
        n: comparisons made; zero if the property applies to no structure.
    """

    name: str
    dtype: DtypeName
    far_scaled: bool
    worst: float
    median: float
    used: float
    bound: str
    n: int

    @property
    def verdict(self) -> Literal["pass", "fail", "not applicable"]:
        """The result in a word."""
        if self.n == 0:
            return "not applicable"
        return "pass" if self.used <= 1 else "fail"


@dataclass(frozen=True)
class Comparison:
    """Energies that should be equal, for some of the structures.

    Attributes:
        chosen: indices of the structures, (n,).
        found: (n,) eV.
        expected: (n,) eV.
    """

    chosen: np.ndarray
    found: np.ndarray
    expected: np.ndarray


@dataclass(frozen=True)
class Subject:
    """Model in one precision, with test structures and their energies."""

    loaded: LoadedModel
    structures: Sequence[Data]
    reference: Energies

    @property
    def model(self) -> EnergyModel:
        """The model."""
        return self.loaded.model


Check = Callable[[Subject, np.random.Generator], Comparison]

_GEOMETRIC: dict[str, Transformation] = {
    "rotation": rotation,
    "reflection": reflection,
    "translation": translation,
    "permutation": permutation,
    "image wrapping": wrapping,
    "change of cell": cell_change,
}
_PERIODIC_ONLY = ("image wrapping", "change of cell")
_MOVES_A_GRID = ("rotation", "reflection", "translation", "image wrapping", "change of cell", "supercell")


def _transformed(change: Transformation, periodic_only: bool = False, times: int = 1) -> Check:
    """Compare after a change that multiplies the structure, and its energy, ``times`` times."""

    def check(subject: Subject, random: np.random.Generator) -> Comparison:
        chosen = [k for k, data in enumerate(subject.structures) if is_periodic(data) or not periodic_only]
        if not chosen:
            return Comparison(np.zeros(0, dtype=int), np.zeros(0), np.zeros(0))
        found = energies(subject.model, [change(subject.structures[k], random) for k in chosen]).energy
        # The scale_shift mean belongs to the structure, not to its atoms.
        mean = float(subject.model.standardiser.mean) * (1 - 1 / times)
        return Comparison(np.array(chosen), found / times + mean, subject.reference.energy[chosen])

    return check


def _against_exact(subject: Subject, random: np.random.Generator) -> Comparison:
    """Measure the error in energy of waves or mesh; an estimator has no exact form."""
    attention = subject.model.config.attention
    if not isinstance(attention, MethodKeys) or attention.frequencies == "exact":
        return Comparison(np.zeros(0, dtype=int), np.zeros(0), np.zeros(0))
    exact = copy.deepcopy(subject.model)
    set_frequencies(exact, "exact")
    return _all(subject, energies(exact, subject.structures).energy)


def _save_and_load(subject: Subject, random: np.random.Generator) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        metadata = subject.loaded.metadata.model_copy(update={"config": subject.model.config})
        save_model(path, subject.model, metadata)
        again = load_model(path).model.to(subject.model.device).requires_grad_(False)
    return _all(subject, energies(again, subject.structures).energy)


CHECKS: dict[str, Check] = {
    **{name: _transformed(change, name in _PERIODIC_ONLY) for name, change in _GEOMETRIC.items()},
    "supercell": _transformed(doubled, periodic_only=True, times=2),
    "padding": lambda s, _: _all(s, energies(s.model, s.structures, padding=PADDING).energy),
    "batch-mates": lambda s, _: _all(s, np.concatenate([energies(s.model, [one]).energy for one in s.structures])),
    "against exact": _against_exact,
    "determinism": lambda s, _: _all(s, energies(s.model, s.structures).energy),
    "save and load": _save_and_load,
}
BITWISE = ("determinism", "save and load")
RANDOM = (*_GEOMETRIC, "supercell")
SUPERCELL_BOUND = 1e-6
"""Relative: a supercell may take another numerical method, or another artificial cell, than its unit cell."""


def run_suite(
    loaded: LoadedModel,
    structures: Sequence[Data],
    dtypes: Sequence[DtypeName] = ("float32", "float64"),
    n_draws: int = 3,
    checks: dict[str, Check] = CHECKS,
) -> list[Result]:
    """Run every check in every precision, as the model is and with its far field scaled up.

    The far field is scaled up where that can be done.

    Args:
        loaded: the model; it is not changed.
        structures: without neighbour lists.
        dtypes: precisions to compute in.
        n_draws: random transformations of each kind.
        checks: the properties.
    """
    tasks = list(_tasks(loaded, structures, dtypes))
    results = []
    for subject, dtype, scaled in track(tasks, "checking", total=len(tasks)):
        for name, check in checks.items():
            random = np.random.default_rng(0)
            found = [check(subject, random) for _ in range(n_draws if name in RANDOM else 1)]
            results.append(_judge(name, dtype, scaled, subject, found))
    if len(dtypes) > 1:
        for scaled in sorted({scaled for _, _, scaled in tasks}):
            results.append(_precision([s for s, _, far in tasks if far == scaled], scaled))
    return results


def _tasks(
    loaded: LoadedModel, structures: Sequence[Data], dtypes: Sequence[DtypeName]
) -> Iterator[tuple[Subject, DtypeName, bool]]:
    models = [(loaded.model, False)]
    if has_far_field(loaded.model):
        scaled_model = scaled_until_it_matters(copy.deepcopy(loaded.model).double(), structures)
        if scaled_model is not None:
            models.append((scaled_model, True))
    for model, scaled in models:
        for dtype in dtypes:
            cast = copy.deepcopy(model).to(getattr(torch, dtype)).train(mode=False).requires_grad_(False)
            reference = energies(cast, structures)
            yield Subject(LoadedModel(cast, loaded.metadata, loaded.path), structures, reference), dtype, scaled


def bounds(subject: Subject, name: str, dtype: DtypeName) -> tuple[np.ndarray, str]:
    """Bounds on each structure's change in energy, eV, and why: rounding, or its method's ε."""
    magnitude = subject.reference.magnitude
    if name in BITWISE:
        return np.zeros_like(magnitude), "bitwise"
    rounding = np.maximum(1e-5, 1e-6 * magnitude) if dtype == "float32" else 1e-10 * np.maximum(magnitude, 1e-3)
    why = EXACT
    approximate = np.array(
        [
            (name in _MOVES_A_GRID and _has_a_grid(way, data)) or (name == "against exact" and way != "pairs")
            for way, data in zip(subject.reference.contractions, subject.structures, strict=True)
        ]
        if subject.reference.contractions
        else [False] * len(magnitude)
    )
    attention = subject.model.config.attention
    tolerance = getattr(attention, "tolerance", 0.0)
    if name == "supercell":
        rounding = np.maximum(rounding, SUPERCELL_BOUND * magnitude)
        why = f"{SUPERCELL_BOUND:g} relative"
    bound = np.where(approximate, np.maximum(rounding, tolerance * magnitude), rounding)
    return bound, f"ε = {tolerance:g}" if approximate.any() else why


def _has_a_grid(way: str, data: Data) -> bool:
    """True if a change of the structure may move it through a grid.

    Along a lattice it does. If nothing repeats, the grid rotates with the structure, but equal principal axes leave
    its orientation open.
    """
    return way == "mesh" or (way == "waves" and int(data.pbc.sum()) < 2)


def _judge(name: str, dtype: DtypeName, scaled: bool, subject: Subject, found: Sequence[Comparison]) -> Result:
    bound, why = bounds(subject, name, dtype)
    chosen = np.concatenate([c.chosen for c in found])
    if not len(chosen):
        return Result(name, dtype, scaled, np.nan, np.nan, np.nan, why, 0)
    change = np.abs(np.concatenate([c.found - c.expected for c in found]))
    # A NaN is a failure, not a comparison that is False.
    change = np.where(np.isfinite(change), change, np.inf)
    used = np.where(change == 0, 0.0, change / np.maximum(bound[chosen], 1e-300))
    return Result(name, dtype, scaled, change.max(), float(np.median(change)), used.max(), why, len(chosen))


def _precision(subjects: Sequence[Subject], scaled: bool) -> Result:
    """Compare single with double precision: the effect of rounding on the energy itself."""
    single, double = (s.reference for s in subjects)
    change = np.abs(single.energy - double.energy)
    bound = np.maximum(1e-4, 1e-5 * double.magnitude)
    used = float((change / bound).max())
    return Result("dtype", "float32", scaled, change.max(), float(np.median(change)), used, EXACT, len(change))


def _all(subject: Subject, found: np.ndarray) -> Comparison:
    return Comparison(np.arange(len(found)), found, subject.reference.energy)
