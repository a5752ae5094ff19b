"""Lengths of bonds that force fields get wrong, by the atoms around them.

RDKit gives a bond for which MMFF94 has no parameters the length of a single one, whatever its order: 1.405 Å in CO2,
1.46 Å in N2. That concerns small molecules most, whose bonds occur in nothing larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from rdkit import Chem
from rdkit.Chem import rdForceFieldHelpers
from rdkit.ForceField import rdForceField  # noqa: F401 (older RDKit has no force fields without it)

Pair = tuple[int, int]

_LENGTHS = (
    ("[H][F]", 0.917),
    ("[H][Cl]", 1.275),
    ("[H][Br]", 1.414),
    ("[H][I]", 1.609),
    ("[F][F]", 1.412),
    ("[F][I]", 1.910),
    # at carbon with two neighbours
    ("[OX1]=[CX2]=[OX1]", 1.162),
    ("[SX1]~[CX2]", 1.560),
    ("[SX1]~[CX1]", 1.535),
    ("[CX2]#[NX2+][OX1]", 1.162),
    ("[CX2]=[NX2]", 1.215),
    ("[CX2]=[CX2]", 1.270),
    ("[CX2]-[CX2]", 1.380),
    ("[CX2]-[F]", 1.275),
    ("[CX2]-[Cl]", 1.634),
    ("[CX2]-[Br]", 1.790),
    ("[CX2]-[I]", 1.995),
    ("[CX2]-[NX2]=[OX1]", 1.401),
    ("[NX2+]-[CX2]", 1.315),
    ("[NX3]-[CX2]#[CX2]", 1.355),
    # at other carbon
    ("[SX1]=[CX3;!$(C~[#7])]", 1.610),
    ("[CX3]=[SX2,SX4]", 1.610),
    ("[CX3]=[SX3]", 1.650),
    ("[CX3-]-[SX3+]", 1.650),
    ("[CX3]=[PX4]", 1.670),
    ("[CX3-]-[PX4+]", 1.670),
    ("[Cl][CX3](=O)[#6]", 1.790),
    ("[OX1]=[CX3][F,Cl,Br]", 1.182),
    # in rings of three and four
    ("[CX4;r3]-[CX3;r3]=[CX3;r3]", 1.509),
    ("[CX4;r3]-[CX3;r3]=[C,N,O,S;!r3]", 1.462),
    ("[CX3;r3;$(C=[C;!r3])]-[CX3;r3]=[CX3;r3]", 1.441),
    ("[CX3;r4;$(C=[C;r4])]-[CX3;r4]=[CX3;r4]", 1.565),
    ("[OX2,NX3;r3]-[CX3;r3]=[CX3;r3]", 1.495),
    ("[#6;r3]-[SX2;r3]", 1.815),
    ("[NX3;r3]-[OX2;r3]", 1.505),
    ("[OX2;r3]-[OX2;r3]", 1.514),
    ("[SX2;r4]-[SX2;r4]", 2.090),
    # chains of nitrogen, however their charges are written
    ("[NX1]#[NX1]", 1.098),
    ("[NX1]~[NX2]", 1.132),
    ("[NX2]~[NX2+]~[NX1]", 1.240),
    ("[CX3]~[NX2+]~[NX1]", 1.300),
    ("[OX1]~[NX2+]~[NX1]", 1.185),
    ("[OX1]~[NX2+]~[CX2]", 1.210),
    # nitrogen with oxygen and halogens
    ("[OX1]=[NX2][F,Cl,Br,I]", 1.140),
    ("[OX1]=[NX2][OX2]", 1.175),
    ("[OX1]=[NX2][SX2]", 1.195),
    ("[OX2]-[NX2]=[OX1]", 1.415),
    ("[SX2]-[NX2]=[OX1]", 1.835),
    ("[OX2]-[NX2+]#[CX1]", 1.340),
    ("[OX1]~[NX3+](~[OX1])[F,Cl,Br]", 1.195),
    ("[F][NX2]=[OX1]", 1.512),
    ("[Cl][NX2]=[OX1]", 1.975),
    ("[Br][NX2]=[OX1]", 2.140),
    ("[I][NX2]=[OX1]", 2.320),
    ("[F][NX3](~[OX1])~[OX1]", 1.467),
    ("[Cl][NX3](~[OX1])~[OX1]", 1.840),
    ("[Br][NX3](~[OX1])~[OX1]", 2.012),
    ("[F][NX3;H2]", 1.433),
    ("[F][NX2]~[NX2+,CX2]", 1.444),
    ("[NX3]-[NX3+](~[OX1])~[OX1]", 1.385),
    # oxygen
    ("[OX1]~[OX2+]~[OX1]", 1.272),
    ("[OX2;$(OF)]-[OX2;$(OF)]", 1.222),
    ("[F][OX2][OX2]F", 1.555),
    ("[I][OX2]", 1.991),
    # sulfur
    ("[OX1]~[SX1]", 1.481),
    ("[OX1]~[SX2]", 1.440),
    ("[OX1]~[SX3](~[OX1])~[OX1]", 1.420),
    ("[OX1]~[SX3][F,Cl,Br]", 1.430),
    ("[Cl][SX3]~[OX1]", 2.076),
    ("[Br][SX3]~[OX1]", 2.250),
    ("[SX1]~[SX1,SX2]", 1.889),
    ("[SX1]~[SX3]", 1.870),
    ("[SX2;$(SF)]-[SX2]", 1.888),
    ("[SX2;$(S[Cl,Br])]-[SX2]", 1.940),
    ("[Br][SX2]", 2.240),
    ("[NX1]~[SX2]", 1.449),
    ("[NX2]~[SX1]", 1.570),
    ("[NX2]=[SX2]", 1.520),
    ("[Cl][SX2]#[NX1]", 2.161),
    ("[F][SX2]#[NX1]", 1.643),
    ("[NX3;H2]-[SX2]", 1.715),
    # phosphorus
    ("[OX1]=[PX2,PX3]", 1.455),
    ("[SX1]=[PX2]", 1.900),
    ("[NX2]=[PX2]", 1.580),
    ("[PX2]=[PX2]", 2.034),
    ("[Cl][PX2]=[OX1]", 2.050),
    ("[F][PX2]=[OX1]", 1.572),
    ("[OX2]-[PX2]=[OX1]", 1.630),
    ("[Cl][PX3]", 2.045),
    ("[Br][PX3]", 2.220),
    ("[PX3]-[PX3]", 2.215),
    ("[CX2]#[PX1]", 1.541),
    ("[NX1]#[PX1]", 1.491),
    ("[PX1]#[PX1]", 1.893),
    # elements that MMFF94 has no types for
    ("[#5]-[F]", 1.310),
    ("[#5]-[Cl]", 1.742),
    ("[#5]-[OX2]", 1.365),
    ("[#5]-[#6]", 1.570),
    ("[#14]-[H]", 1.480),
    ("[#14]-[F]", 1.570),
    ("[#14]-[Cl]", 2.030),
    ("[#14]-[OX2]", 1.640),
    ("[#14]-[#6]", 1.870),
    ("[#14]-[#14]", 2.340),
)
"""SMARTS, whose first two atoms are the bond, and Å: from experiment, as in NIST's CCCBDB, or by coupled
cluster theory where there is none; the first that matches."""
_ORGANIC = frozenset((1, 6, 7, 8))
_STRAINED = 0.1
"""Å that a bond may be from what is usual."""
_MOST = 10_000
"""Matches of one pattern; more bonds of one of these kinds are in no molecule that is embedded."""


@dataclass(frozen=True)
class BondLengths:
    """Lengths of the bonds of a molecule, Å, by the bonds' atoms in rising order.

    Attributes:
        usual: of bonds for which there is one.
        held: of those that the force field gets wrong.
        guessed: bonds of which nothing is known: they can be wrong by 0.05 Å and more.
    """

    usual: dict[Pair, float]
    held: dict[Pair, float]
    guessed: set[Pair]

    def remark(self, mol: Chem.Mol, conformer: int) -> str:
        """Say which bonds of a conformer are guesses, or stretched by strain; empty: none is."""
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
    """Find the length of every bond: in the table, of the force field, or by UFF's rule where neither has any.

    Args:
        mol: with its hydrogens.
        mmff: MMFF94's properties of it; None: it has no types for some atom, and the force field is UFF, whose bonds
            to C and H among H, C, N and O are good.
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
            # MMFF94's own force constants have three decimals, those by RDKit's rule have all. The rule is good for
            # plain single bonds.
            plain = bond.GetBondType() == Chem.BondType.SINGLE and not bond.GetIsConjugated()
            if plain or round(stiffness, 3) == stiffness:
                # what is usual in a ring is between the lengths of its two ways to be written
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
    return tuple((Chem.MolFromSmarts(text), length) for text, length in _LENGTHS)
