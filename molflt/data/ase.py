"""Structures from and to ASE's ``Atoms``."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.symbols import Symbols
from torch_geometric.data import Data

from molflt.data.extras import Extra, extra_of, held
from molflt.data.labels import agreed, atom_vectors, one_number
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.record import ENERGIES, TEXTS, make_data
from molflt.data.slabs import refuse_untagged, relaxed_positions, tags_of
from molflt.errors import InputError
from molflt.terminal_text import printable

_RESULTS = ("energy", "forces")
_IONS = ReadOptions(charges=True)
_SHORT = 9
"""Most elements of an array kept in ``info``, enough for a tensor."""


def from_atoms(atoms: Atoms, name: str, options: ReadOptions = DEFAULT) -> Data:
    """Turn ASE's ``Atoms`` into a structure.

    ``energy`` and ``forces`` come from a calculator that already has them (nothing is computed), else from
    ``atoms.info`` and ``atoms.arrays``, as do ``y_relaxed``, ``y_init``, ``sid`` and the texts of ``records.TEXTS``;
    values stored under one name in several of these must agree. Relaxed positions come from an array
    ``positions_relaxed`` or ``pos_relaxed``, ``fixed`` from constraints that hold atoms in all three directions. All
    other data are kept in ``data.info`` (:func:`kept_info`) and ``data.extra`` (:class:`molflt.data.extras.Extra`).

    Tags mean two things. OC20 has 0 sub-surface, 1 surface, 2 adsorbate; ASE's slab builders number the layers
    1, 2, ... from the top and give adsorbates 0. Confusing the two would turn a slab upside down unnoticed, so "auto"
    takes tags 0 to 2 as OC20's but refuses tags that look like layers. "oc20" takes them as they are; with "layers" 0
    becomes adsorbate, 1 surface, all else sub-surface, and a slab without tags gets those of
    :func:`molflt.data.slabs.tags_of_slab`.

    Args:
        atoms: the structure; lengths in Å, energies in eV.
        name: its origin; kept as ``data.name`` and used in messages.
        options: ``tags`` (see above), ``labels``, and whether ions and radicals are accepted.

    Raises:
        InputError: tags that are ambiguous or out of range, a periodic direction without a lattice vector, a
            site shared by several elements, contradictory values of a label, a charge or spin
            (:func:`refuse_charges`), or a failure of ``check_structure``.
    """
    cell, pbc = np.asarray(atoms.cell, dtype=np.float64), np.asarray(atoms.pbc, dtype=bool)
    _refuse_disorder(atoms, name)
    refuse_charges(atoms, name, options)
    options.refuse_slab(name, pbc)
    charge = charge_of(atoms, name, options)
    fixed = np.zeros(len(atoms), dtype=bool)
    constraints = []
    for constraint in atoms.constraints:
        if (indices := held(constraint)) is None:
            constraints.append(constraint)
        else:
            fixed[indices] = True
    taken = {"numbers", "positions", "tags"}
    fields: dict[str, np.ndarray] = {
        "atomic_numbers": atoms.numbers,
        "positions": atoms.positions,
        "cell": cell[None],
        "pbc": pbc[None],
        "tags": tags_of(atoms, fixed, name, options.tags),
        "fixed": fixed,
    }
    if charge:
        fields["charge"] = np.array([charge])
    for key in ("positions_relaxed", "pos_relaxed"):
        if key in atoms.arrays:
            taken.add(key)
            relaxed = atom_vectors(atoms.arrays[key], len(atoms), key, name)
            fields["positions_relaxed"] = relaxed_positions(atoms.numbers, atoms.positions, relaxed, cell, pbc, name)
    results = results_at_hand(atoms)

    places = {"by a calculator": results, "in info": atoms.info, "in arrays": atoms.arrays}
    stored = {key: None for values in places.values() for key in values}

    def find(key: str) -> Any:
        # names match in any case if there is no exact match
        same = [key] if key in stored else [k for k in stored if isinstance(k, str) and k.lower() == key.lower()]
        found = {(place, k): values[k] for k in same for place, values in places.items() if k in values}
        return agreed({place if k == key else f"{place}, as '{k}',": v for (place, k), v in found.items()}, key, name)

    for label in (*ENERGIES, "sid"):
        if (label in results or label in atoms.info) and (value := find(label)) is not None:
            fields[label] = one_number(value, label, name)
            if label == "sid" and fields[label] != fields[label].astype(int):
                raise InputError(f"{name}: 'sid' is {value!r:.40}, expected a whole number")
    if "forces" in results or "forces" in atoms.arrays:
        fields["forces"] = atom_vectors(find("forces"), len(atoms), "forces", name)
        taken.add("forces")
    texts = {key: str(atoms.info[key]) for key in TEXTS if key in atoms.info and key != "name"}
    if options.tags == "auto":
        refuse_untagged(fields, name)
    if options.labels is not None:
        own = ("numbers", "positions", "tags")
        texts |= options.labels.apply(fields, find, (key for key in stored if key not in own), name)
    data = make_data(fields, name, name, texts)
    data.info = kept_info(atoms)
    extra = Extra.of(
        {key: array for key, array in atoms.arrays.items() if key not in taken},
        {key: value for key, value in results.items() if key not in _RESULTS},
        constraints,
        {key: value for key, value in atoms.info.items() if key not in data.info},
    )
    if extra is not None:
        data.extra = extra
    return data


def kept_info(atoms: Atoms) -> dict[str, Any]:
    """Return the numbers, words and short arrays of ``info`` and of a calculator."""
    found = {key: value for key, value in results_at_hand(atoms).items() if np.ndim(value) == 0}
    for key, value in atoms.info.items():
        if isinstance(value, list | tuple) and all(isinstance(item, int | float | np.number) for item in value):
            value = np.asarray(value)
        numbers = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf" and value.size <= _SHORT
        if isinstance(key, str) and (numbers or isinstance(value, str | bool | int | float)):
            found[key] = value
    return found


def to_atoms(data: Data) -> Atoms:
    """Turn a structure into ASE's ``Atoms``; the inverse of ``from_atoms`` with OC20 tags.

    Returns:
        Atoms with tags, ``FixAtoms``, labels in ``info``, relaxed positions as an array, all further data
        and, if there are an energy, forces or other results, a ``SinglePointCalculator`` that holds them.

    Raises:
        InputError: the further data do not fit the structure, in a damaged record.
    """
    atoms = Atoms(
        numbers=data.atomic_numbers.numpy(),
        positions=data.positions.numpy(),
        cell=data.cell[0].numpy(),
        pbc=data.pbc[0].numpy(),
        tags=data.tags.numpy(),
    )
    if bool(data.fixed.any()):
        atoms.set_constraint(FixAtoms(mask=data.fixed.numpy()))
    extra = extra_of(data)
    results = dict(extra.results)
    atoms.info.update(
        {
            key: value
            for key, value in (data.get("info") or {}).items()
            if key not in (*ENERGIES, "sid") and key not in results
        }
    )
    extra.restore(atoms, str(data.get("name", "the structure")))
    if "positions_relaxed" in data:
        atoms.set_array("positions_relaxed", data.positions_relaxed.numpy())
    for label in ("y_init", "y_relaxed"):
        if label in data:
            atoms.info[label] = float(data[label])
    if "sid" in data:
        atoms.info["sid"] = int(data.sid)
    if "charge" in data and charge_of(atoms, data.name, _IONS) != float(data.charge):
        atoms.info["charge"] = float(data.charge)
    for key in TEXTS:
        # The file's own text, if unchanged. ``data.name`` is only the place in a file.
        own = key in atoms.info and (key == "name" or printable(str(atoms.info[key])) == data.get(key))
        if key in data and not own:
            atoms.info[key] = str(data[key])
    if "energy" in data:
        results["energy"] = float(data.energy)
    if "forces" in data:
        results["forces"] = data.forces.numpy()
    if results:
        atoms.calc = SinglePointCalculator(atoms)
        atoms.calc.results.update(results)
    return atoms


def refuse_charges(atoms: Atoms, name: str, options: ReadOptions = DEFAULT) -> None:
    """Refuse ions and open shells.

    These are: a charge or spin in ``atoms.info`` (None is ignored); initial charges that do not add up to zero
    (partial charges of a neutral structure are allowed); and, for an isolated structure, magnetic moments, or an odd
    number of electrons without metals.

    Raises:
        InputError: the structure is one, and ``options`` does not accept them.
    """
    if options.allow_charged:
        return
    options.refuse_stated(name, atoms.info, "atoms.info[{!r}]")
    if "initial_charges" in atoms.arrays:
        options.refuse_state(name, float(np.sum(atoms.arrays["initial_charges"])))
    if not np.any(atoms.pbc):
        for moments in (atoms.arrays.get("initial_magmoms"), getattr(atoms.calc, "results", {}).get("magmoms")):
            if moments is not None:
                options.refuse_moments(name, np.asarray(moments, dtype=np.float64))
        options.refuse_odd(name, atoms.numbers.tolist(), charge_of(atoms, name, options))


def charge_of(atoms: Atoms, name: str, options: ReadOptions) -> float:
    """Total charge in e, from ``info`` or the initial charges; 0 unless ``options`` asks for it.

    Raises:
        InputError: it is not a whole number, or too large.
    """
    if not options.charges:
        return 0.0
    initial = float(np.sum(atoms.arrays.get("initial_charges", 0.0)))
    return options.stated_charge(name, atoms.info, "atoms.info[{!r}]", initial)


def formula_of(atoms: Atoms) -> str:
    """Write a formula, which takes ASE as long as a layer of a small model: a step of dynamics asks thrice."""
    return _formula(atoms.numbers.tobytes())


@lru_cache(maxsize=16)
def _formula(numbers: bytes) -> str:
    return str(Symbols(np.frombuffer(numbers, dtype=int)).get_chemical_formula())


def results_at_hand(atoms: Atoms) -> dict[str, Any]:
    """Results of a calculator by name, if they belong to the atoms as they are now."""
    get = getattr(atoms.calc, "get_property", None)
    if get is None:
        return {}
    if isinstance(atoms.calc, SinglePointCalculator):
        # One comparison of the atoms, instead of one for each property.
        found = dict(atoms.calc.results) if _unchanged(atoms) else {}
    else:
        found = {}
        for name in {"energy", "forces", *getattr(atoms.calc, "results", {})}:
            # A calculator need not support every property.
            with contextlib.suppress(PropertyNotImplementedError):
                found[name] = get(name, atoms, allow_calculation=False)
    return {name: value for name, value in found.items() if value is not None}


def _unchanged(atoms: Atoms) -> bool:
    """True if the atoms are those of their calculator: exactly, as after reading, or to ASE's tolerance."""
    if (held := atoms.calc.atoms) is not None:
        mine, others = ([a.numbers, a.positions, a.cell.array, a.pbc] for a in (atoms, held))
        initial = {"initial_charges", "initial_magmoms"}
        if all(map(np.array_equal, mine, others)) and initial.isdisjoint({*atoms.arrays, *held.arrays}):
            return True
    return not atoms.calc.check_state(atoms)


def _refuse_disorder(atoms: Atoms, name: str) -> None:
    occupancy = atoms.info.get("occupancy")
    if not isinstance(occupancy, dict):
        return
    for site in occupancy.values():
        if isinstance(site, dict) and (len(site) > 1 or any(_is_part(share) for share in site.values())):
            raise InputError(
                f"{name}: a site is partly occupied or shared by elements ({site}); choose an ordered structure"
            )


def _is_part(share: object) -> bool:
    # an unknown occupancy, written ? or ., is 1
    return isinstance(share, int | float) and share < 0.999
