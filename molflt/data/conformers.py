"""Conformers that are the same however a molecule is written: ETKDGv3, then MMFF94 or UFF."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem
from rdkit.Chem import rdDepictor, rdDistGeom, rdForceFieldHelpers
from rdkit.ForceField import rdForceField  # noqa: F401 (older RDKit has no force fields without it)
from scipy.spatial.distance import pdist

from molflt.data.progress import track

_MAX_STEPS = 2000
"""Force-field iterations; a molecule that needs more is taken as far as it got."""
_MAX_EMBEDDINGS = 50
_GAP = 3.0
"""Å between the parts of a structure that is not connected."""
_SMALL, _LARGE = 100, 250
"""Most atoms for all requested conformers (beyond, their number falls as 1/n²), and for ETKDG."""
_BLOCKS, _BLOCK = 6, 50
"""Blocks of force-field iterations for a large molecule, between which progress is shown; iterations of a block."""
_STRIDE = 7919
_STIFF = 1e5
"""kcal/mol/Å², the stiffness of a fixed bond; a hundred times that of a stretching mode."""
_RANDOM = {"useRandomCoords": True, "ignoreSmoothingFailures": True}
_PLAIN = {"useExpTorsionAnglePrefs": False, "useBasicKnowledge": False}
_WAYS: tuple[dict[str, bool], ...] = (
    {},
    # cages, large rings and long chains: random starting coordinates often succeed
    {"useRandomCoords": True},
    _RANDOM,
    # bent chains of multiple bonds, such as N=S=O, which torsions and rings known from crystals make straight
    _RANDOM | _PLAIN,
    _RANDOM | _PLAIN | {"enforceChirality": False},
)
"""Options of ETKDGv3, tried in turn until one finds a conformer."""
TRIED = "ETKDGv3, random coordinates, inconsistent bounds, no known torsions and rings, and stereochemistry by chance"
"""The options in words."""
_PLACE = "place"


def canonical(mol: Chem.Mol) -> tuple[Chem.Mol, list[int], bool]:
    """Write the molecule, or its mirror image, in a way that depends only on the molecule.

    Isotopes and atom maps, which do not affect an energy, are dropped. ``mol`` has all its hydrogens.

    Returns:
        The canonical molecule, with hydrogens; the index in it of every atom of ``mol``; and whether it is the mirror
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
        # The hydrogens of one atom are interchangeable.
        hydrogens = free.get(heavy.get(atom.GetNeighbors()[0].GetIdx(), -1)) if atom.GetDegree() else None
        if not hydrogens:
            return unchanged
        places.append(hydrogens.pop(0))
    return (graph, places, mirrored) if len(places) == graph.GetNumAtoms() else unchanged


def _written(mol: Chem.Mol) -> tuple[str, Chem.Mol, list[int]] | None:
    """Canonical SMILES, its molecule and the atoms' origins; None if RDKit cannot read it."""
    Chem.AssignStereochemistry(mol, cleanIt=True, force=True)
    reading: Any = Chem.SmilesParserParams()
    reading.removeHs = False
    origins = [atom.GetIntProp(_PLACE) for atom in mol.GetAtoms()]
    smiles = ""
    # The molecule read may be written differently again; it settles at once or never.
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


def embed(mol: Chem.Mol, name: str, seed: int, wanted: int) -> tuple[dict[int, float], str]:
    """Add conformers to a molecule.

    Returns:
        The force-field energy of each, by its id, and remarks; empty if RDKit finds none.
    """
    n_atoms = mol.GetNumAtoms()
    mmff = _mmff(mol)
    lengths = bond_lengths(mol, mmff)
    if n_atoms > _LARGE and _start_flat(mol):
        force_field = _force_field(mol, 0, mmff, lengths)
        for _ in track(range(_BLOCKS), f"geometry of {name}", _BLOCKS):
            if force_field is None or force_field.Minimize(maxIts=_BLOCK) == 0:
                break
        if _is_drawn(mol):
            return {0: 0.0}, f"{n_atoms:,} atoms: one rough geometry, from a drawing and {_BLOCKS * _BLOCK} steps"
    mol.RemoveAllConformers()
    n = max(1, min(wanted, int(wanted * (_SMALL / n_atoms) ** 2)))
    energies: dict[int, float] = {}
    ways = iter(_WAYS)
    way = next(ways)
    for k in track(range(n), f"conformers of {name}", n):
        # With seed 0 RDKit makes every conformer the same.
        random_seed = (_STRIDE * seed + k + 1) % (1 << 31)
        found = _embedded(mol, way, random_seed)
        while found < 0 and not energies and (another := next(ways, None)):
            way = another
            found = _embedded(mol, way, random_seed)
        if found < 0:
            if not energies:
                break
            continue
        force_field = _force_field(mol, found, mmff, lengths)
        if force_field is not None:
            force_field.Minimize(maxIts=_MAX_STEPS)
        energies[found] = 0.0 if force_field is None else force_field.CalcEnergy()
    remarks = [f"{n_atoms:,} atoms: {n} conformer{'s' * (n > 1)} instead of {wanted}"] if n < wanted else []
    if energies and (rough := lengths.remark(mol, min(energies, key=lambda k: energies[k]))):
        remarks.append(rough)
    return energies, "; ".join(remarks)


def _embedded(mol: Chem.Mol, way: dict[str, bool], seed: int) -> int:
    """Embed a conformer with given options; return its id, or a negative number."""
    parameters: Any = rdDistGeom.ETKDGv3()
    parameters.maxIterations = _MAX_EMBEDDINGS
    parameters.clearConfs = False
    parameters.randomSeed = seed
    for option, value in way.items():
        setattr(parameters, option, value)
    found = int(rdDistGeom.EmbedMolecule(mol, parameters))
    if found >= 0 and not parameters.enforceChirality and not _is_drawn(mol, found):
        mol.RemoveConformer(found)
        return -1
    return found


def _mmff(mol: Chem.Mol) -> Any:
    """MMFF94's properties of a molecule; None if it lacks types for some atom."""
    has_types = rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol)
    return rdForceFieldHelpers.MMFFGetMoleculeProperties(mol) if has_types else None


def _force_field(mol: Chem.Mol, conformer: int, mmff: Any, lengths: BondLengths) -> Any:
    """Prepare MMFF94, or UFF without ``mmff``, with its wrong bonds fixed; None if impossible."""
    if mmff is not None:
        found = rdForceFieldHelpers.MMFFGetMoleculeForceField(mol, mmff, confId=conformer)
    elif rdForceFieldHelpers.UFFHasAllMoleculeParams(mol):
        found = rdForceFieldHelpers.UFFGetMoleculeForceField(mol, confId=conformer)
    else:
        return None
    if found is not None:
        found.Initialize()
        hold = found.UFFAddDistanceConstraint if mmff is None else found.MMFFAddDistanceConstraint
        for pair, length in lengths.held.items():
            hold(*pair, False, length, length, _STIFF)
    return found


def _start_flat(mol: Chem.Mol) -> bool:
    """Place a large molecule as in its drawing, bent out of the plane by its stereocentres.

    Distance geometry takes the square of the number of atoms for each step: minutes beyond some hundred.
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


def _is_drawn(mol: Chem.Mol, conformer: int = -1) -> bool:
    """True if the positions have the graph's stereochemistry, and no two atoms coincide."""
    seen = Chem.Mol(mol)
    Chem.AssignStereochemistryFrom3D(seen, conformer)
    meant, found = (dict(Chem.FindMolChiralCenters(each, useLegacyImplementation=True)) for each in (mol, seen))
    apart = float(pdist(mol.GetConformer(conformer).GetPositions()).min(initial=1.0)) > 0.5
    return apart and all(found.get(atom) == label for atom, label in meant.items())


def side_by_side(mol: Chem.Mol, positions: np.ndarray) -> np.ndarray:
    """Positions with unconnected parts, such as ions of a salt, moved apart."""
    positions = positions.copy()
    parts = Chem.GetMolFrags(mol)
    edge = 0.0
    for part in map(list, parts if len(parts) > 1 else ()):
        positions[part, 0] += edge - positions[part, 0].min()
        positions[part, 1:] -= positions[part, 1:].mean(axis=0)
        edge = positions[part, 0].max() + _GAP
    return positions


Pair = tuple[int, int]
_TABLE = Path(__file__).with_name("bond_lengths.tsv")
_ORGANIC = frozenset((1, 6, 7, 8))
_STRAINED = 0.1
"""Å by which a bond may deviate from its usual length."""
_MOST = 10_000
"""Most matches of one pattern; no embedded molecule has more bonds of one of these kinds."""


@dataclass(frozen=True)
class BondLengths:
    """Lengths of the bonds of a molecule, Å, by the bonds' atoms in rising order.

    Attributes:
        usual: usual lengths, of bonds that have one.
        held: lengths of bonds that the force field gets wrong.
        guessed: bonds without known lengths: they can be wrong by 0.05 Å and more.
    """

    usual: dict[Pair, float]
    held: dict[Pair, float]
    guessed: set[Pair]

    def remark(self, mol: Chem.Mol, conformer: int) -> str:
        """Name bonds of a conformer that are guesses, or strained; empty if there are none."""
        positions = mol.GetConformer(conformer).GetPositions()
        found = set()
        for pair in {*self.usual, *self.guessed}:
            length = float(np.linalg.norm(np.subtract(*positions[list(pair)])))
            text = f"{'–'.join(sorted(mol.GetAtomWithIdx(k).GetSymbol() for k in pair))} {length:.2f} Å"
            if abs(length - (usual := self.usual.get(pair, length))) > _STRAINED:
                found.add(f"{text} where {usual:.2f} Å is usual")
            elif pair in self.guessed:
                found.add(f"{text} is a guess")
        return f"rough geometry: {', '.join(sorted(found))}" if found else ""


def bond_lengths(mol: Chem.Mol, mmff: Any) -> BondLengths:
    """Find the length of every bond in the table, from the force field, or by UFF's rule.

    Args:
        mol: with its hydrogens.
        mmff: MMFF94's properties of it; None: it lacks types for some atom, and the force field is UFF, whose
            bonds to C and H among H, C, N and O are good.
    """
    held: dict[Pair, float] = {}
    for pattern, length in _patterns():
        for first, second, *_ in mol.GetSubstructMatches(pattern, uniquify=False, maxMatches=_MOST):
            held.setdefault((min(first, second), max(first, second)), length)
    usual, guessed = dict(held), set()
    for bond in mol.GetBonds():
        first, second = sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
        if (first, second) in held:
            continue
        if mmff is not None:
            _, stiffness, length = mmff.GetMMFFBondStretchParams(mol, first, second)
            # MMFF94's own force constants have three decimals, those by RDKit's rule have more. The rule is good for
            # plain single bonds.
            plain = bond.GetBondType() == Chem.BondType.SINGLE and not bond.GetIsConjugated()
            if plain or round(stiffness, 3) == stiffness:
                # the usual length in an aromatic ring is between those of its two Lewis structures
                usual |= {} if bond.GetIsAromatic() else {(first, second): length}
                continue
        if uff := rdForceFieldHelpers.GetUFFBondStretchParams(mol, first, second):
            usual[first, second] = uff[1]
            if mmff is not None:
                held[first, second] = uff[1]
        numbers = {bond.GetBeginAtom().GetAtomicNum(), bond.GetEndAtom().GetAtomicNum()}
        if not (uff and numbers <= _ORGANIC and numbers & {1, 6}):
            guessed.add((first, second))
    return BondLengths(usual, held, guessed)


@cache
def _patterns() -> tuple[tuple[Chem.Mol, float], ...]:
    rows = (line.split("\t") for line in _TABLE.read_text("utf-8").splitlines() if not line.startswith("# "))
    return tuple((Chem.MolFromSmarts(text), float(length)) for text, length in rows)
