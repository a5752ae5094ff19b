"""Molecules from SMILES and SDF through RDKit."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdDepictor, rdDistGeom, rdForceFieldHelpers
from scipy.spatial.distance import pdist
from torch_geometric.data import Data

from molflt.data.compression import bare_suffix, content
from molflt.data.labels import LabelSpec, one_number
from molflt.data.ligands import mol2_blocks
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, Reading
from molflt.data.records import ENERGIES, make_data
from molflt.data.smiles_tables import read_rows
from molflt.errors import InputError, noting, refuse
from molflt.printable import printable

_MAX_STEPS = 2000
"""Force-field iterations; a molecule that needs more is taken as far as it got."""
_MAX_EMBEDDINGS = 50
_MAX_ATOMS = 2000
"""With hydrogens; the time of an embedding grows with their square or cube."""
_GAP = 3.0
"""Å between the parts of a structure that is not connected."""
_SAME = 0.02
"""Å by which the sorted distances of two conformers that count as one differ at most."""
_SMALL, _LARGE = 100, 250
"""Atoms up to which all conformers wanted are made (then fewer, as their square), and to which ETKDG is the way."""
_BLOCKS, _BLOCK = 6, 50
"""Force-field iterations for a large molecule, in portions between which progress is shown."""
_STRIDE = 7919
_PLACE = "place"


def from_smiles(smiles: str, name: str | None = None, seed: int = 0, how: Reading = DEFAULT) -> Data:
    """Build a molecule: hydrogens added, conformers by ETKDGv3, then MMFF94 (UFF where MMFF has no parameters).

    However a molecule is written, and whichever of its two mirror images it is, its conformers have the same
    distances: they are made of a canonical graph. A force-field geometry is a starting point: bonds of small linear
    molecules can be wrong by 0.2 Å.

    Args:
        smiles: the molecule, or its InChI; the parts of one that is not connected are laid side by side.
        name: kept as ``data.name``; the SMILES by default.
        seed: of the conformers; the same seed gives the same positions.
        how: the number of conformers, and whether ions and radicals are taken.

    Returns:
        A structure without a cell, tags 0, in the conformer with the lowest force-field energy; where there are
        several, all are in ``conformers``.

    Raises:
        InputError: not a SMILES, no atoms, a charge, an open shell, or no conformer found.
    """
    name = smiles if name is None else name
    return _made(parse_smiles(smiles, name), name, seed, how)


def from_any_mol(mol: Chem.Mol, name: str, seed: int = 0, how: Reading = DEFAULT) -> Data:
    """As ``from_mol``, but a molecule without a 3D conformer gets hydrogens and some as in ``from_smiles``."""
    if mol.GetNumConformers() and (mol.GetConformer().Is3D() or mol.GetNumAtoms() == 1):
        return from_mol(mol, name, how=how)
    graph = Chem.Mol(mol)
    graph.RemoveAllConformers()
    with _captured() as said:
        try:
            Chem.SanitizeMol(graph)
        except ValueError as error:
            raise InputError(f"{name}: not a molecule RDKit accepts: {error}{_because(said())}") from error
    if graph.GetNumAtoms() == 0:
        raise InputError(f"{name}: the molecule has no atoms")
    return _made(graph, name, seed, how)


def from_mol(mol: Chem.Mol, name: str, labels: LabelSpec | None = None, how: Reading = DEFAULT) -> Data:
    """Turn an RDKit molecule with 3D conformers and explicit hydrogens into a structure.

    Of several conformers the first gives the positions, and all are in ``conformers``. Properties ``energy``,
    ``y_init`` and ``y_relaxed`` (eV) become labels, or those that ``labels`` names.

    Raises:
        InputError: no atoms, no conformer, a flat drawing, hydrogens that are not explicit, a charge or an open
            shell.
    """
    if mol.GetNumAtoms() == 0:
        raise InputError(f"{name}: the molecule has no atoms")
    if mol.GetNumConformers() == 0:
        raise InputError(f"{name}: the molecule has no positions; embed it first, or give its SMILES")
    if not mol.GetConformer().Is3D() and mol.GetNumAtoms() > 1:
        raise InputError(f"{name}: the positions are a flat drawing, not a 3D geometry; give the SMILES instead")
    # before sanitisation RDKit has not counted them
    mol.UpdatePropertyCache(strict=False)
    _refuse_state(mol, name, how)
    if missing := sum(atom.GetTotalNumHs() for atom in mol.GetAtoms()):
        raise InputError(f"{name}: {missing} hydrogen atoms have no positions; add them, or mark what is a radical")
    n_atoms = mol.GetNumAtoms()
    conformers = np.array([c.GetPositions() for c in mol.GetConformers() if c.Is3D() or n_atoms == 1])
    fields = {
        "atomic_numbers": np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()]),
        "positions": conformers[0],
        "cell": np.zeros((1, 3, 3)),
        "pbc": np.zeros((1, 3), dtype=bool),
        "tags": np.zeros(n_atoms, dtype=np.int64),
        "fixed": np.zeros(n_atoms, dtype=bool),
    }
    if len(conformers) > 1:
        fields["conformers"] = conformers
    try:
        stored = mol.GetPropsAsDict(includePrivate=False, includeComputed=False)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: a property is no text in UTF-8 ({error.reason}); write the file in UTF-8"
        ) from error
    except RuntimeError as error:
        # RDKit keeps notes of its own among the properties, and finds text there.
        raise InputError(
            f"{name}: a property has a name that RDKit keeps for itself, such as __computedProps; rename it"
        ) from error
    for label in ENERGIES:
        if label in stored:
            fields[label] = one_number(stored[label], label, name)
    texts = {} if labels is None else labels.apply(fields, stored.get, stored, name)
    return make_data(fields, name, name, texts)


def read_sdf(
    path: str | os.PathLike[str],
    labels: LabelSpec | None = None,
    bad: dict[int, InputError] | None = None,
    how: Reading = DEFAULT,
) -> list[Data]:
    """Read every molecule of an SDF, MOL or mol2 file, with the positions it has, named ``PATH#INDEX (TITLE)``.

    ``bad`` gets what is wrong with molecules that cannot be used, by their places; None: they are refused.

    Raises:
        InputError: no such file, no molecules, or a molecule that cannot be read.
    """
    file = Path(path)
    structures: list[Data] = []
    found: dict[int, InputError] = {} if bad is None else bad
    with _captured() as said:
        if bare_suffix(file) == ".mol2":
            mols = mol2_blocks(file)
        else:
            mols = Chem.ForwardSDMolSupplier(io.BytesIO(content(file)), sanitize=False, removeHs=False)
        for index, mol in enumerate(mols):
            name = f"{file}#{index}"
            info = {} if mol is None else _properties(mol)
            with noting(found, index, _named(name, info.get("name", "")), info):
                if mol is None:
                    raise InputError(f"{name}: not a readable molecule block{_because(said())}")
                structure = from_mol(mol, name, labels, how)
                structure.name, structure.info = _named(name, info.get("name", "")), info
                structures.append(structure)
    if bad is None:
        refuse(found, len(structures) + len(found), str(file))
    if not structures and not found:
        raise InputError(f"{file}: holds no molecules")
    return structures


def _properties(mol: Chem.Mol) -> dict[str, Any]:
    """The title and the properties of a molecule of an SDF file; those that are no text are passed over."""
    found: dict[str, Any] = {}
    # from_mol says what is wrong with properties.
    with suppress(UnicodeDecodeError, RuntimeError):
        if mol.HasProp("_Name") and (title := mol.GetProp("_Name").strip()):
            found["name"] = title
        found |= mol.GetPropsAsDict(includePrivate=False, includeComputed=False)
    return {key: value for key, value in found.items() if isinstance(value, str | int | float)}


def _named(where: str, own: str) -> str:
    """File and record, with the record's own name."""
    return printable(f"{where} ({own})") if own else where


def read_smiles_file(
    path: str | os.PathLike[str],
    labels: LabelSpec | None = None,
    seed: int = 0,
    bad: dict[int, InputError] | None = None,
    how: Reading = DEFAULT,
) -> list[Data]:
    """Read a list or a table of SMILES or InChI, see :func:`molflt.data.smiles_tables.read_rows`.

    Columns ``energy``, ``y_init`` and ``y_relaxed`` of a CSV (eV) become labels, or the one that ``labels`` names.
    Structures are named ``PATH#INDEX (NAME)``, after their SMILES where they have no name. ``bad`` gets what is wrong
    with molecules that cannot be used, by their places; None: they are refused.

    Raises:
        InputError: no such file, no such column, no molecules, or a line that is not a SMILES.
    """
    file = Path(path)
    rows = read_rows(file)
    structures = []
    found: dict[int, InputError] = {} if bad is None else bad
    mols: dict[int, Chem.Mol] = {}
    for index, row in enumerate(rows):
        name = f"{file}#{index}"
        with noting(found, index, _named(name, row.own_name), row.columns):
            if row.problem:
                raise InputError(f"{name}: {row.problem}")
            mols[index] = parse_smiles(row.molecule, name)
            _refuse_state(mols[index], name, how)
    if bad is None:
        # Before the time that conformers take.
        refuse(found, len(rows), str(file))
    for index, mol in track(mols.items(), f"conformers of {file.name}", total=len(mols)):
        name, row = f"{file}#{index}", rows[index]
        with noting(found, index, _named(name, row.own_name), row.columns):
            for column, text in row.labels.items():
                mol.SetProp(column, text)
            structure = _made(mol, name, seed, how, labels)
            structure.name, structure.info = _named(name, row.own_name), row.columns
            structures.append(structure)
    if bad is None:
        refuse(found, len(rows), str(file))
    return structures


def parse_smiles(smiles: str, name: str) -> Chem.Mol:
    """A molecule as a graph from its SMILES or InChI, without positions; ``name`` is for messages.

    Raises:
        InputError: neither, or no atoms.
    """
    kind = "InChI" if smiles.startswith("InChI=") else "SMILES"
    with _captured() as said:
        try:
            mol = (Chem.MolFromInchi if kind == "InChI" else Chem.MolFromSmiles)(smiles)
        except UnicodeEncodeError:
            # half of a surrogate pair, as Python makes of file names that are no text
            mol = None
        messages = said()
    if mol is None:
        raise InputError(f"{name}: '{smiles:.200}' is not a valid {kind}{_because(messages)}")
    if mol.GetNumAtoms() == 0:
        raise InputError(f"{name}: the SMILES is empty")
    return mol


def _refuse_state(mol: Chem.Mol, name: str, how: Reading) -> None:
    unpaired = sum(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms())
    if unpaired and sorted(atom.GetAtomicNum() for atom in mol.GetAtoms()) == [6, 8] and mol.GetNumBonds():
        name = f"{name} (carbon monoxide is [C-]#[O+])"
    how.refuse_state(name, Chem.GetFormalCharge(mol), unpaired)


def _made(mol: Chem.Mol, name: str, seed: int, how: Reading, labels: LabelSpec | None = None) -> Data:
    """The structure of a sanitised graph, with conformers made here."""
    _refuse_state(mol, name, how)
    mol = Chem.AddHs(mol)
    if mol.GetNumAtoms() > _MAX_ATOMS:
        raise InputError(
            f"{name}: {mol.GetNumAtoms():,} atoms are too many to find a geometry for "
            f"(at most {_MAX_ATOMS:,}); give one"
        )
    with _captured() as said:
        try:
            canonical, places, mirrored = _canonical(mol)
            energies, remark = _embed(canonical, name, seed, how.conformers)
            if not energies:
                raise InputError(f"{name}: RDKit found no conformer{_because(said())}")
        except (RuntimeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{name}: RDKit could not build a geometry: {error}") from error
    kept: list[np.ndarray] = []
    shapes: list[np.ndarray] = []
    for k in sorted(energies, key=lambda k: energies[k]):
        positions = _side_by_side(canonical, canonical.GetConformer(k).GetPositions())[places]
        if mirrored:
            positions[:, 0] *= -1
        shape = np.sort(pdist(positions))
        if all(np.abs(shape - other).max(initial=0.0) > _SAME for other in shapes):
            kept.append(positions)
            shapes.append(shape)
    mol.RemoveAllConformers()
    for positions in kept:
        conformer = Chem.Conformer(len(positions))
        conformer.SetPositions(np.ascontiguousarray(positions))
        mol.AddConformer(conformer, assignId=True)
    data = from_mol(mol, name, labels, how)
    if remark:
        data.remark = remark
    return data


def _canonical(mol: Chem.Mol) -> tuple[Chem.Mol, list[int], bool]:
    """The same molecule, or its mirror image, written in the one way that depends on nothing but the molecule.

    Isotopes and atom maps, which are no part of an energy, are left out.

    Args:
        mol: with all hydrogens.

    Returns:
        The canonical molecule, with hydrogens; the place in it of every atom of ``mol``; whether it is the mirror
        image.
    """
    unchanged = Chem.Mol(mol), list(range(mol.GetNumAtoms())), False
    bare = Chem.Mol(mol)
    for atom in bare.GetAtoms():
        atom.SetIntProp(_PLACE, atom.GetIdx())
        atom.SetIsotope(0)
        atom.SetAtomMapNum(0)
    bare = Chem.RemoveHs(bare)
    image = Chem.Mol(bare)
    for atom in image.GetAtoms():
        atom.InvertChirality()
    own, mirror = _written(bare), _written(image)
    if own is None or mirror is None:
        return unchanged
    mirrored = mirror[0] < own[0]
    _, graph, origins = mirror if mirrored else own
    heavy = {origin: place for place, origin in enumerate(origins)}
    graph = Chem.AddHs(graph)
    free = {
        k: [h.GetIdx() for h in graph.GetAtomWithIdx(k).GetNeighbors() if h.GetIdx() >= len(origins)]
        for k in range(len(origins))
    }
    places = []
    for atom in mol.GetAtoms():
        if atom.GetIdx() in heavy:
            places.append(heavy[atom.GetIdx()])
            continue
        # Which of the hydrogens of one atom is which makes no difference.
        hydrogens = free.get(heavy.get(atom.GetNeighbors()[0].GetIdx(), -1)) if atom.GetDegree() else None
        if not hydrogens:
            return unchanged
        places.append(hydrogens.pop(0))
    return (graph, places, mirrored) if len(places) == graph.GetNumAtoms() else unchanged


def _written(mol: Chem.Mol) -> tuple[str, Chem.Mol, list[int]] | None:
    """The canonical SMILES, the molecule read from it, and where its atoms were; None: RDKit cannot read it."""
    Chem.AssignStereochemistry(mol, cleanIt=True, force=True)
    reading: Any = Chem.SmilesParserParams()
    reading.removeHs = False
    origins = [atom.GetIntProp(_PLACE) for atom in mol.GetAtoms()]
    smiles = ""
    # What is read may be written in another way still; it settles at once or never.
    for _ in range(4):
        before, smiles = smiles, Chem.MolToSmiles(mol)
        if smiles == before:
            break
        order = mol.GetPropsAsDict(includePrivate=True, includeComputed=True)["_smilesAtomOutputOrder"]
        origins = [origins[k] for k in order]
        mol = Chem.MolFromSmiles(smiles, reading)
        if mol is None or mol.GetNumAtoms() != len(origins):
            return None
    return smiles, mol, origins


def _embed(mol: Chem.Mol, name: str, seed: int, wanted: int) -> tuple[dict[int, float], str]:
    """Give a molecule conformers.

    Returns:
        The force-field energy of each, by its id, and what to say of them; none: RDKit finds none.
    """
    n_atoms = mol.GetNumAtoms()
    if n_atoms > _LARGE and _start_flat(mol):
        force_field = _force_field(mol, 0)
        for _ in track(range(_BLOCKS), f"geometry of {name}", _BLOCKS):
            if force_field is None or force_field.Minimize(maxIts=_BLOCK) == 0:
                break
        if _is_drawn(mol):
            return {0: 0.0}, f"{n_atoms:,} atoms: one rough geometry, from a drawing and {_BLOCKS * _BLOCK} steps"
    mol.RemoveAllConformers()
    n = max(1, min(wanted, int(wanted * (_SMALL / n_atoms) ** 2)))
    parameters: Any = rdDistGeom.ETKDGv3()
    parameters.maxIterations = _MAX_EMBEDDINGS
    parameters.clearConfs = False
    energies: dict[int, float] = {}
    for k in track(range(n), f"conformers of {name}", n):
        # With seed 0 RDKit makes every conformer the same.
        parameters.randomSeed = (_STRIDE * seed + k + 1) % (1 << 31)
        found = rdDistGeom.EmbedMolecule(mol, parameters)
        if found < 0 and not parameters.useRandomCoords:
            # cages, large rings and long chains: starting from random coordinates often succeeds
            parameters.useRandomCoords = True
            found = rdDistGeom.EmbedMolecule(mol, parameters)
        if found < 0:
            if not energies:
                break
            continue
        force_field = _force_field(mol, found)
        if force_field is not None:
            force_field.Minimize(maxIts=_MAX_STEPS)
        energies[found] = 0.0 if force_field is None else force_field.CalcEnergy()
    return energies, f"{n_atoms:,} atoms: {n} conformer{'s' * (n > 1)} instead of {wanted}" if n < wanted else ""


def _force_field(mol: Chem.Mol, conformer: int) -> Any:
    """MMFF94's, UFF's where that has no parameters, or None; ready to minimise."""
    if rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
        properties = rdForceFieldHelpers.MMFFGetMoleculeProperties(mol)
        found = rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, properties, confId=conformer)
    elif rdForceFieldHelpers.UFFHasAllMoleculeParams(mol):
        found = rdForceFieldHelpers.UFFGetMoleculeForceField(mol, confId=conformer)
    else:
        return None
    if found is not None:
        found.Initialize()
    return found


def _start_flat(mol: Chem.Mol) -> bool:
    """Give a large molecule the positions of its drawing, bent a little out of the plane where its stereo wants it.

    Distance geometry takes the square of the number of atoms for each step: minutes from some hundred on.
    """
    flat = Chem.RemoveHs(mol)
    if any(atom.GetAtomicNum() == 1 for atom in flat.GetAtoms()):
        return False
    rdDepictor.Compute2DCoords(flat)
    conformer = flat.GetConformer()
    Chem.WedgeMolBonds(flat, conformer)
    positions = conformer.GetPositions()
    positions[:, 2] += np.random.default_rng(0).normal(scale=0.05, size=len(positions))
    for bond in flat.GetBonds():
        direction = {Chem.BondDir.BEGINWEDGE: 0.7, Chem.BondDir.BEGINDASH: -0.7}.get(bond.GetBondDir(), 0.0)
        positions[bond.GetEndAtomIdx(), 2] += direction
    conformer.Set3D(True)
    conformer.SetPositions(positions)
    full = Chem.AddHs(flat, addCoords=True)
    if [atom.GetAtomicNum() for atom in full.GetAtoms()] != [atom.GetAtomicNum() for atom in mol.GetAtoms()]:
        return False
    mol.RemoveAllConformers()
    mol.AddConformer(full.GetConformer(), assignId=True)
    return True


def _is_drawn(mol: Chem.Mol) -> bool:
    """Whether the positions have the stereochemistry of the graph, and no atoms in the same place."""
    seen = Chem.Mol(mol)
    Chem.AssignStereochemistryFrom3D(seen)
    meant, found = (dict(Chem.FindMolChiralCenters(each, useLegacyImplementation=True)) for each in (mol, seen))
    apart = float(pdist(mol.GetConformer().GetPositions()).min()) > 0.5
    return apart and all(found.get(atom) == label for atom, label in meant.items())


def _side_by_side(mol: Chem.Mol, positions: np.ndarray) -> np.ndarray:
    """Positions in which the parts of a structure such as a salt, which RDKit centres on one point, are apart."""
    positions = positions.copy()
    parts = Chem.GetMolFrags(mol)
    edge = 0.0
    for part in map(list, parts if len(parts) > 1 else ()):
        positions[part, 0] += edge - positions[part, 0].min()
        positions[part, 1:] -= positions[part, 1:].mean(axis=0)
        edge = positions[part, 0].max() + _GAP
    return positions


class _Said:
    """What RDKit has said so far, in one line."""

    def __init__(self, capture: object) -> None:
        self._capture = capture

    def __call__(self) -> str:
        try:
            messages = str(getattr(self._capture, "messages", "") or "")
        except UnicodeDecodeError:
            # RDKit quotes the offending line, whatever its bytes are.
            return "the file holds bytes that are no text"
        # "[12:00:00] text", one per line
        return "; ".join(line.split("] ", 1)[-1].strip() for line in messages.splitlines() if line.strip())


_LOG = threading.RLock()
"""RDKit has one log for all threads: it is redirected, written to and given back by one of them at a time."""


@contextmanager
def _captured() -> Iterator[_Said]:
    """Keep RDKit from writing to standard error. All of its functions that may have something to say run in here."""
    with _LOG, rdBase.BlockLogs():
        # older RDKit has no capture: then errors come without its reasons
        capture = getattr(rdBase, "CaptureErrorLog", None)
        if capture is None:
            yield _Said(None)
            return
        with capture() as log:
            yield _Said(log)


def _because(messages: str) -> str:
    return f" ({messages[:300]})" if messages else ""
