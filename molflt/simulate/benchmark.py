"""Errors of any ASE calculator on labelled structures."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import CalculatorError, PropertyNotImplementedError

from molflt.errors import InputError

_IMPORTABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MOLECULE = "smiles"
"""Entry of ``info`` that names the molecule of a structure."""


@dataclass(frozen=True)
class Score:
    """Errors of a calculator on one set; NaN where labels or the calculator lack the quantity.

    Attributes:
        n: structures computed.
        n_relative: those among them of molecules that have several.
        relative_mae: mean absolute error of the energies of these, each less the mean of its molecule's, eV. Two
            structures are of one molecule if their ``info["smiles"]`` agrees, or where there is none, their formula.
        force_mae: mean absolute error of components, eV/Å.
        dipole_mae: mean length of the error, D.
        seconds: median time of a structure.
        failures: of the structures that the calculator could not compute, name and reason.
    """

    n: int
    n_relative: int
    relative_mae: float
    force_mae: float
    dipole_mae: float
    seconds: float
    failures: list[str] = field(default_factory=list)


def named_calculator(name: str) -> Any:
    """Return the ASE calculator of a name.

    Args:
        name: ``gfn2``, which is GFN2-xTB of tblite; ``package.module:name`` of something importable, which is called
            without arguments and returns a calculator; or a model of molflt.

    Raises:
        InputError: it cannot be imported, or is no calculator or model.
    """
    if name == "gfn2":
        try:
            from tblite.ase import TBLite
        except ModuleNotFoundError as error:
            raise InputError("gfn2: tblite is not installed; pip install tblite") from error
        return TBLite(method="GFN2-xTB", verbosity=0)
    if _IMPORTABLE.fullmatch(name) and not name.startswith("pretrained:"):
        module, _, attribute = name.partition(":")
        try:
            made = getattr(import_module(module), attribute)()
        except (ImportError, AttributeError, TypeError) as error:
            raise InputError(f"{name}: makes no calculator ({error}); give package.module:name") from error
        if not hasattr(made, "get_property"):
            raise InputError(f"{name}: is no calculator of ASE, but a {type(made).__name__}")
        return made
    from molflt.simulate.ase import MolFLTCalculator

    return MolFLTCalculator(name)


def score(structures: Sequence[Atoms], calculator: Any) -> Score:
    """Compare a calculator with the labels that structures carry, as ``atoms.calc``.

    Args:
        structures: with the results of a calculator: energy, and forces and dipole where there are any.
        calculator: any of ASE; None: the labels themselves, whose errors are zero.

    Raises:
        InputError: no structure can be computed, the first reason of which is named.
    """
    energies: dict[str, list[float]] = defaultdict(list)
    forces, dipoles, seconds, failures = [], [], [], []
    for k, atoms in enumerate(structures):
        # Nothing else that comes with a structure, such as its labels, reaches the calculator.
        again = atoms if calculator is None else bare(atoms, calculator)
        begun = time.perf_counter()
        try:
            wrong = {name: _wrong(again, atoms, name) for name in ("forces", "energy", "dipole")}
        except (CalculatorError, InputError) as error:
            failures.append(f"{atoms.info.get('name', f'structure {k}')}: {error}")
            continue
        seconds.append(time.perf_counter() - begun)
        energies[str(atoms.info.get(MOLECULE, atoms.symbols.formula.format("hill")))] += [*wrong["energy"]]
        forces.append(abs(wrong["forces"]).ravel())
        dipoles += [float(np.linalg.norm(wrong["dipole"])) / units.Debye] if len(wrong["dipole"]) else []
    if not seconds:
        raise InputError(f"no structure can be computed; the first: {failures[0] if failures else 'there is none'}")
    relative = [np.array(some) - np.mean(some) for some in energies.values() if len(some) > 1]
    each = np.abs(np.concatenate([*relative, []]))
    return Score(
        len(seconds),
        len(each),
        _mean(each),
        _mean(np.concatenate(forces)),
        _mean(np.array(dipoles)),
        float(np.median(seconds)),
        failures,
    )


def bare(atoms: Atoms, calculator: Any) -> Atoms:
    """Return positions, numbers and cell alone, neutral, with a calculator."""
    info = {"charge": 0.0}
    return Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc, calculator=calculator, info=info)


def _wrong(again: Atoms, labelled: Atoms, name: str) -> np.ndarray:
    """Computed minus labelled, in one dimension or more; empty where either is missing."""
    known = labelled.calc.results.get(name) if labelled.calc is not None else None
    if known is None:
        return np.empty(0)
    try:
        return np.atleast_1d(np.asarray(again.calc.get_property(name, again)) - known)
    except PropertyNotImplementedError:
        return np.empty(0)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
