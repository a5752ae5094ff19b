"""Conversion of OC20-layout records to ``Data`` under the vocabulary, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from ase import Atoms
from torch_geometric.data import Data

from molflt import vocabulary
from molflt.data.extras import Extra, decode, encode
from molflt.data.labels import agreed, any_array, atom_vectors, one_number
from molflt.data.neighbours import check_geometry
from molflt.data.reading import DEFAULT, KNOWN_VALUES, ReadOptions
from molflt.data.slabs import refuse_untagged, relaxed_positions, tags_of_slab
from molflt.errors import InputError
from molflt.terminal_text import printable

ENERGIES = ("y_init", "y_relaxed", "energy")
TEXTS = ("name", "adsorbate", "metal", "molecule", "group", "slice")
OWN = ("pos_conformers", "remark", "info_json", "extra_json")
"""Fields of molflt alone: (n_conformers, n_atoms, 3) positions, a doubt about the geometry, further data."""
RECORD_KEYS = frozenset(
    ("pos", "pos_relaxed", "cell", "pbc", "atomic_numbers", "tags", "fixed", "natoms", "sid", "forces", "force")
) | {*ENERGIES, *TEXTS, *OWN}
"""Fields to read; stored graphs are not read. OC20's S2EF records have ``force``."""
STATES = frozenset(spelt for key in KNOWN_VALUES for spelt in (key, key.capitalize(), key.upper()))
"""Further fields to read: the charge, and signs of ions and open shells."""


def to_data(record: Mapping[str, Any], where: str, options: ReadOptions = DEFAULT) -> Data:
    """Turn an OC20-layout record into a structure.

    Stored edges are ignored: neighbour lists are built for the cutoff in use. Without ``pbc``, directions with a
    nonzero lattice vector are periodic, as in OC20, where all three are. Missing ``tags`` are 0, and refused with a
    relaxation; missing ``fixed`` is False. Relaxed positions may be stored in another periodic image:
    ``positions_relaxed`` is the image nearest to ``positions``.

    Args:
        record: arrays, numbers and text by OC20 key (``RECORD_KEYS``); lengths in Å, energies in eV. Integer fields
            may be stored as floats, ``cell`` as (3, 3) or (1, 3, 3).
        where: file and record: the name of the structure when the record has none, and the start of messages.
        options: used here are ``labels``, whether ions and open shells are accepted, and ``tags``, for a record
            without any: "layers" finds them, see :func:`molflt.data.slabs.tags_of_slab`, and "oc20" takes zeros as
            they are.

    Raises:
        InputError: a field is missing, malformed or out of range, or states that the structure is charged or has an
            open shell.
    """
    options.refuse_stated(where, record, "field {!r}")
    positions = _numbers(record, "pos", where)
    if positions.size == 0:
        raise InputError(f"{where}: the structure has no atoms")
    if positions.ndim != 2 or positions.shape[1] != 3:
        raise InputError(f"{where}: 'pos' has shape {positions.shape}, expected (n_atoms, 3)")
    n_atoms = len(positions)
    if "natoms" in record and (natoms := int(_integers(record, "natoms", where, 1)[0])) != n_atoms:
        raise InputError(f"{where}: 'natoms' says {natoms}, but there are {n_atoms} positions")
    cell = _numbers(record, "cell", where) if "cell" in record else np.zeros((3, 3))
    if cell.size != 9:
        raise InputError(f"{where}: 'cell' has shape {cell.shape}, expected (3, 3) or (1, 3, 3)")
    cell = cell.reshape(3, 3)
    if "pbc" in record:
        pbc = _integers(record, "pbc", where, 3, low=0, high=1).astype(bool)
    else:
        pbc = np.any(cell != 0, axis=1)
    fields: dict[str, np.ndarray] = {
        "atomic_numbers": _integers(record, "atomic_numbers", where, n_atoms),
        "positions": positions,
        "cell": cell[None],
        "pbc": pbc[None],
        "tags": _integers(record, "tags", where, n_atoms) if "tags" in record else np.zeros(n_atoms, dtype=np.int64),
        "fixed": _integers(record, "fixed", where, n_atoms, low=0, high=1).astype(bool)
        if "fixed" in record
        else np.zeros(n_atoms, dtype=bool),
    }
    if options.tags == "layers" and not fields["tags"].any():
        atoms = Atoms(numbers=fields["atomic_numbers"], positions=positions, cell=cell, pbc=pbc)
        fields["tags"] = tags_of_slab(atoms, fields["fixed"], where)
    if "pos_relaxed" in record:
        relaxed = atom_vectors(_numbers(record, "pos_relaxed", where), n_atoms, "pos_relaxed", where)
        fields["positions_relaxed"] = relaxed_positions(
            fields["atomic_numbers"], positions, relaxed, cell, pbc, where
        )
    for label in ENERGIES:
        if label in record:
            fields[label] = one_number(_numbers(record, label, where), label, where)
    if forces := {label: _numbers(record, label, where) for label in ("forces", "force") if label in record}:
        fields["forces"] = atom_vectors(agreed(forces, "forces", where), n_atoms, next(iter(forces)), where)
    if options.tags == "auto" and "tags" not in record:
        refuse_untagged(fields, where)
    options.refuse_slab(where, pbc)
    if options.charges and (charge := options.stated_charge(where, record, "field {!r}")):
        fields["charge"] = np.array([charge])
    if "sid" in record:
        fields["sid"] = _integers(record, "sid", where, 1)
    if "pos_conformers" in record:
        fields["conformers"] = _numbers(record, "pos_conformers", where)
    texts = {key: _text(record[key], key, where) for key in (*TEXTS, "remark") if key in record}
    info = _columns(record, where)
    extra = _text(record["extra_json"], "extra_json", where) if "extra_json" in record else ""
    if options.labels is not None:

        def find(key: str) -> Any:
            if key in record:
                return _numbers(record, key, where)
            if key in info or not extra:
                return info.get(key)
            carried = Extra.decoded(extra, where)
            return {**carried.arrays, **carried.results, **carried.info}.get(key)

        texts |= options.labels.apply(fields, find, (record.keys() | info.keys()) - set(OWN), where)
    data = make_data(fields, texts.pop("name", where), where, texts)
    if info:
        data.info = info
    if extra:
        data.extra = extra
    return data


def make_data(
    fields: Mapping[str, np.ndarray], name: str, where: str, texts: Mapping[str, str] | None = None
) -> Data:
    """Make a checked structure from arrays with the vocabulary's names and shapes.

    Args:
        fields: arrays by name in the vocabulary; dtypes of the right kind are widened to the vocabulary's.
        name: origin of the structure; kept as ``data.name``.
        where: file and record, for messages.
        texts: further text attributes.

    Raises:
        InputError: from ``check_structure``.
    """
    tensors = {
        # a copy: the structure must not share memory with its source
        key: torch.from_numpy(np.array(value, dtype=vocabulary.FIELDS[key].dtype, order="C"))
        for key, value in fields.items()
    }
    check_structure(tensors, where)
    data = Data(**tensors)
    data.num_nodes = int(tensors["atomic_numbers"].shape[0])
    data.name = printable(name)
    for key, text in (texts or {}).items():
        data[key] = printable(text)
    return data


def check_structure(fields: dict[str, torch.Tensor], where: str) -> None:
    """Check tensors against the vocabulary, and for an impossible structure.

    Raises:
        InputError: from ``vocabulary.check`` and ``neighbours.check_contacts``.
    """
    vocabulary.check(fields, where)
    check_geometry(fields, where)


def to_record(data: Data, *, compact: bool = False) -> dict[str, Any]:
    """Turn a structure into an OC20-layout record: the inverse of ``to_data``.

    The neighbour list is left out, and further data (``info`` and ``extra``) become text. ``compact`` stores lengths
    in float32 and small integers in one byte, about a third of the size; otherwise nothing is rounded.

    Returns:
        NumPy arrays, ints, floats and text by OC20 key.
    """
    length = np.float32 if compact else np.float64
    small = np.uint8 if compact else np.int64
    record: dict[str, Any] = {
        "pos": data.positions.numpy().astype(length),
        "cell": data.cell.numpy().astype(length),
        "pbc": data.pbc.numpy().reshape(3).copy(),
        "atomic_numbers": data.atomic_numbers.numpy().astype(small),
        "tags": data.tags.numpy().astype(small),
        "fixed": data.fixed.numpy().copy(),
        "natoms": int(data.num_nodes),
    }
    if "positions_relaxed" in data:
        record["pos_relaxed"] = data.positions_relaxed.numpy().astype(length)
    for label in ENERGIES:
        if label in data:
            record[label] = float(data[label])
    if "forces" in data:
        record["forces"] = data.forces.numpy().astype(length)
    if "charge" in data:
        record["charge"] = float(data.charge)
    if "sid" in data:
        record["sid"] = int(data.sid)
    for key in (*TEXTS, "remark"):
        if key in data:
            record[key] = str(data[key])
    if "conformers" in data:
        record["pos_conformers"] = data.conformers.numpy().astype(length)
    if data.get("info"):
        record["info_json"] = encode(data.info)
    if isinstance(extra := data.get("extra"), Extra):
        extra = extra.encoded()
    if extra:
        record["extra_json"] = extra
    return record


def _columns(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Columns of a structure in a table: charge and spin as stated, and further data."""
    stated = {key: value for key, value in record.items() if key in STATES and isinstance(value, str | int | float)}
    carried = decode(record["info_json"], where) if "info_json" in record else {}
    if any(isinstance(value, list | dict) for value in carried.values()):
        raise InputError(f"{where}: field 'info_json' holds more than numbers, text and arrays")
    return stated | carried


def _text(value: object, key: str, where: str) -> str:
    try:
        return str(value)
    # an integer of thousands of digits; text by NumPy that is not Unicode
    except (ValueError, SystemError) as error:
        raise InputError(f"{where}: field '{key}' is not text: {error}") from error


def _numbers(record: Mapping[str, Any], key: str, where: str) -> np.ndarray:
    if key not in record:
        raise InputError(f"{where}: field '{key}' is missing")
    value = any_array(record[key], f"field '{key}'", where)
    if value.dtype.kind not in "biuf":
        raise InputError(f"{where}: field '{key}' holds {value.dtype}, expected numbers")
    return value.astype(np.float64)


def _integers(
    record: Mapping[str, Any], key: str, where: str, size: int, low: int = -(1 << 62), high: int = 1 << 62
) -> np.ndarray:
    """Read a field of whole numbers, (size,) int64; OC20 stores several of them as floats."""
    if key not in record:
        raise InputError(f"{where}: field '{key}' is missing")
    value = any_array(record[key], f"field '{key}'", where)
    if value.dtype.kind not in "biuf":
        raise InputError(f"{where}: field '{key}' holds {value.dtype}, expected whole numbers")
    if value.size != size:
        raise InputError(f"{where}: field '{key}' has shape {value.shape}, expected ({size},)")
    value = value.reshape(size)
    with np.errstate(invalid="ignore"):
        whole = value.astype(np.int64)
    if not np.array_equal(whole, value) or (size and (whole.min() < low or whole.max() > high)):
        limits = f" from {low} to {high}" if high < 1 << 62 else ""
        raise InputError(f"{where}: field '{key}' must hold whole numbers{limits}")
    return whole
