"""Structures from and to ASE, and from the files ASE reads."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import warnings
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import count, pairwise
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import ase.db
import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.io.formats import get_ioformat
from torch_geometric.data import Data

from molflt import vocabulary
from molflt.choices import TagConvention
from molflt.data.charges import refuse_charges
from molflt.data.labels import LabelSpec, force_array, one_number
from molflt.data.progress import track
from molflt.data.records import ENERGIES, TEXTS, make_data, nearest_image
from molflt.data.strangers_text import COMPRESSED, refuse_columns, refuse_counts, unpacked
from molflt.errors import InputError, noting

_PATTERNS: dict[str, str] = {
    "*.extxyz": "extxyz",
    "*.xyz": "xyz",
    "*.traj": "traj",
    "*.db": "db",
    "*.json": "json",
    "*.cif": "cif",
    "*.vasp": "vasp",
    "*.poscar": "vasp",
    "*poscar*": "vasp",
    "*contcar*": "vasp",
    "*outcar*": "vasp-out",
    "*vasprun*.xml": "vasp-xml",
    "*.pdb": "proteindatabank",
    "*.gen": "gen",
    "*.xsf": "xsf",
    "*.cube": "cube",
    "*.pwi": "espresso-in",
}
"""Formats by lower-case file name. Only readers that parse and nothing else: others of ASE's unpickle, run
Python, or (``aims``: parametric constraints) evaluate expressions from the file."""
_BINARY = ("traj", "db")


def from_atoms(atoms: Atoms, name: str, tags: TagConvention = "auto", labels: LabelSpec | None = None) -> Data:
    """Turn ASE's ``Atoms`` into a structure.

    ``energy`` and ``forces`` come from a calculator that has them at hand (nothing is computed) or from
    ``atoms.info`` and ``atoms.arrays``, as do ``y_relaxed``, ``y_init``, ``sid``, ``adsorbate`` and ``metals``;
    relaxed positions from an array ``positions_relaxed`` or ``pos_relaxed``; ``fixed`` from ``FixAtoms``.

    Tags mean two things. OC20 has 0 sub-surface, 1 surface, 2 adsorbate; ASE's slab builders number the layers
    1, 2, ... from the top and give adsorbates 0. Reading one as the other would turn a slab upside down
    unnoticed, so "auto" takes tags 0 to 2 as OC20's but refuses tags that look like layers.

    Args:
        atoms: the structure; lengths in Å, energies in eV.
        name: where it came from; kept as ``data.name`` and used in messages.
        tags: "oc20": as they are; "layers": 0 becomes adsorbate, 1 surface, all else sub-surface; "auto".
        labels: which label to read and its unit; None: labels as they are, in eV and eV/Å.

    Raises:
        InputError: tags that are ambiguous or out of range, a periodic direction without a lattice vector, a
            site shared by several elements, a charge or spin, or what ``vocabulary.check`` refuses.
    """
    cell, pbc = np.asarray(atoms.cell, dtype=np.float64), np.asarray(atoms.pbc, dtype=bool)
    if np.any(pbc & ~np.any(cell != 0, axis=1)):
        raise InputError(f"{name}: periodic along a lattice vector that is zero; correct the cell or pbc")
    _refuse_disorder(atoms, name)
    refuse_charges(atoms, name)
    fixed = np.zeros(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        if isinstance(constraint, FixAtoms):
            fixed[constraint.get_indices()] = True
    fields: dict[str, np.ndarray] = {
        "atomic_numbers": atoms.numbers,
        "positions": atoms.positions,
        "cell": cell[None],
        "pbc": pbc[None],
        "tags": _tags(atoms, name, tags),
        "fixed": fixed,
    }
    for key in ("positions_relaxed", "pos_relaxed"):
        if key in atoms.arrays:
            relaxed = np.asarray(atoms.arrays[key], dtype=np.float64)
            fields["positions_relaxed"] = nearest_image(atoms.positions, relaxed, cell, pbc, name)
    results = _at_hand(atoms)
    for label in (*ENERGIES, "sid"):
        value = results.get("energy") if label == "energy" and "energy" in results else atoms.info.get(label)
        if value is not None:
            fields[label] = one_number(value, label, name)
            if label == "sid" and fields[label] != fields[label].astype(int):
                raise InputError(f"{name}: 'sid' is {value!r:.40}, expected a whole number")
    if (forces := results.get("forces", atoms.arrays.get("forces"))) is not None:
        fields["forces"] = force_array(forces, len(atoms), "forces", name)
    texts = {key: str(atoms.info[key]) for key in TEXTS if key in atoms.info and key != "name"}
    if labels is not None:
        stored = {**atoms.arrays, **results, **atoms.info}
        own = ("numbers", "positions", "tags")
        texts |= labels.apply(fields, stored.get, (key for key in stored if key not in own), name)
    return make_data(fields, name, name, texts)


def to_atoms(data: Data) -> Atoms:
    """Turn a structure into ASE's ``Atoms``; the inverse of ``from_atoms`` with OC20 tags.

    Args:
        data: a structure under the vocabulary. Its neighbour list is left out.

    Returns:
        Atoms with tags, ``FixAtoms``, labels in ``info``, relaxed positions as an array and, if there are an
        energy or forces, a ``SinglePointCalculator`` that holds them.
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
    if "positions_relaxed" in data:
        atoms.set_array("positions_relaxed", data.positions_relaxed.numpy())
    for label in ("y_init", "y_relaxed"):
        if label in data:
            atoms.info[label] = float(data[label])
    if "sid" in data:
        atoms.info["sid"] = int(data.sid)
    for key in TEXTS:
        if key in data:
            atoms.info[key] = str(data[key])
    results: dict[str, Any] = {}
    if "energy" in data:
        results["energy"] = float(data.energy)
    if "forces" in data:
        results["forces"] = data.forces.numpy()
    if results:
        atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def ase_format(path: Path) -> str | None:
    """The ASE format of a file by its name, or None where molflt does not read it through ASE."""
    file_name = path.name.lower()
    for ending in COMPRESSED:
        if file_name.endswith(ending):
            found = _match(file_name.removesuffix(ending))
            return None if found in _BINARY else found
    return _match(file_name)


def read_ase(
    path: str | os.PathLike[str],
    tags: TagConvention = "auto",
    labels: LabelSpec | None = None,
    bad: dict[int, InputError] | None = None,
) -> list[Data]:
    """Read every frame of a file.

    Args:
        path: extxyz, xyz, cif, VASP, pdb, gen, xsf, cube or Quantum ESPRESSO input (also .gz, .bz2, .xz), ASE
            traj, db or json.
        tags: see ``from_atoms``.
        labels: see ``from_atoms``.
        bad: gets what is wrong with frames that cannot be used, by their places; None: they are refused.

    Returns:
        The structures, named ``PATH#FRAME``.

    Raises:
        InputError: a format that is not on the list, a file that cannot be read, or a frame that cannot be used.
    """
    file = Path(path)
    form = ase_format(file)
    if form is None:
        known = ", ".join(sorted(_PATTERNS))
        raise InputError(
            f"{file}: no safe reader for this kind of file; known are {known}. Convert it, for instance to "
            "extxyz with 'ase convert'"
        )
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    if file.stat().st_size == 0:
        raise InputError(f"{file}: the file is empty")
    structures: list[Data] = []
    frames = track(_frames(file, form), f"reading {file.name}")
    for index in count():
        name = f"{file}#{index}"
        try:
            with warnings.catch_warnings():
                # remarks on details of a format; what matters here is checked below
                warnings.simplefilter("ignore")
                atoms = next(frames, None)
        except InputError:
            raise
        # a damaged file makes ASE raise almost anything
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{name}: cannot be read as {form}: {reason[:400]}") from error
        if atoms is None:
            break
        with noting(bad, index):
            structures.append(from_atoms(atoms, name, tags, labels))
    if not structures and not bad:
        raise InputError(f"{file}: holds no structures")
    return structures


def _match(file_name: str) -> str | None:
    return next((form for pattern, form in _PATTERNS.items() if fnmatch(file_name, pattern)), None)


def _frames(file: Path, form: str) -> Iterator[Atoms]:
    if form == "db":
        yield from _database_rows(file)
        return
    content: str | IO[str] | IO[bytes] = str(file.absolute())
    text: IO[str] | None = None
    if file.name.lower().endswith(COMPRESSED):
        # readers go back a little at every frame, and in a compressed stream that means from its start
        content = io.BytesIO(unpacked(file))
        if not get_ioformat(form).isbinary:
            content = text = io.TextIOWrapper(content)
    if form in ("xyz", "extxyz"):
        with file.open() if text is None else contextlib.nullcontext(text) as lines:
            if form == "xyz" and _has_keys(lines):
                form = "extxyz"
            if form == "extxyz":
                lines.seek(0)
                refuse_columns(lines, str(file))
                lines.seek(0)
                refuse_counts(iter(lines), str(file))
            lines.seek(0)
    yield from ase.io.iread(content, index=":", format=form, do_not_split_by_at_sign=True)


def _has_keys(lines: IO[str]) -> bool:
    """Whether an xyz file is extended xyz: key=value in the comment line of its first frame."""
    lines.readline()
    return "=" in lines.readline()


def _database_rows(file: Path) -> Iterator[Atoms]:
    # connecting ASE to a database that is not its own would create tables in it
    with sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type='table' AND name='systems'"
        if connection.execute(query).fetchone() is None:
            raise InputError(f"{file}: not an ASE database")
    connection.close()
    with ase.db.connect(str(file.absolute()), type="db", serial=True, use_lock_file=False) as database:
        for row in database.select():
            atoms = row.toatoms()
            atoms.info.update(row.key_value_pairs)
            yield atoms


def _at_hand(atoms: Atoms) -> dict[str, Any]:
    """Results of a calculator that are those of the atoms as they are now."""
    get = getattr(atoms.calc, "get_property", None)
    if get is None:
        return {}
    names = {"energy", "forces", *getattr(atoms.calc, "results", {})}
    found = {}
    for name in names:
        # A calculator need not know every property.
        with contextlib.suppress(PropertyNotImplementedError):
            found[name] = get(name, atoms, allow_calculation=False)
    return {name: value for name, value in found.items() if value is not None}


def _refuse_disorder(atoms: Atoms, name: str) -> None:
    occupancy = atoms.info.get("occupancy")
    if not isinstance(occupancy, dict):
        return
    for site in occupancy.values():
        if isinstance(site, dict) and (len(site) > 1 or any(share < 0.999 for share in site.values())):
            raise InputError(
                f"{name}: a site is partly occupied or shared by elements ({site}); choose an ordered structure"
            )


def _tags(atoms: Atoms, name: str, convention: TagConvention) -> np.ndarray:
    tags = np.asarray(atoms.arrays.get("tags", np.zeros(len(atoms))))
    if tags.dtype.kind not in "iuf" or not np.array_equal(tags, tags.astype(np.int64)):
        raise InputError(f"{name}: tags must be whole numbers")
    tags = tags.astype(np.int64)
    if convention == "layers":
        table = {0: vocabulary.TAG_ADSORBATE, 1: vocabulary.TAG_SURFACE}
        return np.array([table.get(tag, vocabulary.TAG_SUBSURFACE) for tag in tags.tolist()], dtype=np.int64)
    out_of_range = len(tags) > 0 and (tags.min() < 0 or tags.max() >= vocabulary.N_TAGS)
    if out_of_range or (convention == "auto" and _look_like_layers(atoms, tags)):
        found = ", ".join(map(str, np.unique(tags)))
        raise InputError(
            f"{name}: tags {found} look like ASE's layer numbers (1 the top layer, 0 the adsorbate), but molflt "
            "uses OC20's: 0 sub-surface, 1 surface, 2 adsorbate. Read with tags='layers' (--tags layers) to "
            "translate them, with tags='oc20' to take them as they are, or set the tags in the file"
        )
    return tags


def _look_like_layers(atoms: Atoms, tags: np.ndarray) -> bool:
    """Whether tag 2 lies wholly below tag 1, and tag 1 below tag 0, along the surface normal.

    In OC20's convention the order is the reverse.
    """
    first, second = np.asarray(atoms.cell[0]), np.asarray(atoms.cell[1])
    normal = np.cross(first, second) if np.any(np.cross(first, second)) else np.array([0.0, 0.0, 1.0])
    if not (np.isfinite(atoms.positions).all() and np.isfinite(normal).all()):
        return False
    heights = [atoms.positions[tags == tag] @ normal for tag in (2, 1, 0)]
    present = [h for h in heights if len(h)]
    if len(heights[1]) == 0 or len(present) < 2:
        return False
    return all(low.max() < high.min() for low, high in pairwise(present))
