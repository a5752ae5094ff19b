"""Bonds of molecules made from SMILES, against measured ones."""

import re
from collections import defaultdict

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdDistGeom

from molflt.data.rdkit import from_smiles
from molflt.data.reading import ReadOptions

MEASURED = """
N#N N-N 1.098
O=C=O C-O 1.162 1.162
[N-]=[N+]=O N-N 1.128 N-O 1.184
N#[N+][O-] N-N 1.128 N-O 1.184
S=C=S C-S 1.553 1.553
O=C=S C-O 1.157 C-S 1.561
O=S=O O-S 1.431 1.431
O=S(=O)=O O-S 1.420 1.420 1.420
[O-][O+]=O O-O 1.272 1.272
C#N C-N 1.153 C-H 1.065
[C-]#[O+] C-O 1.128
C#C C-C 1.203 C-H 1.061 1.061
N=C=O C-N 1.214 C-O 1.166 H-N 1.003
C#[N+][O-] C-N 1.162 N-O 1.204 C-H 1.060
N=[N+]=[N-] N-N 1.134 1.243 H-N 1.015
C=C=O C-C 1.314 C-O 1.162 C-H 1.080 1.080
C=[N+]=[N-] C-N 1.300 N-N 1.139 C-H 1.077 1.077
[CH2-][N+]#N C-N 1.300 N-N 1.139 C-H 1.077 1.077
N#CC#N C-C 1.389 C-N 1.154 1.154
FC#N C-F 1.262 C-N 1.159
ClC#N C-Cl 1.631 C-N 1.159
BrC#N Br-C 1.789 C-N 1.158
IC#N C-I 1.995 C-N 1.159
F F-H 0.917
Cl Cl-H 1.275
FF F-F 1.412
ClCl Cl-Cl 1.988
O=NO N-O 1.170 1.432 H-O 0.960
O=NF N-O 1.136 F-N 1.512
O=NCl N-O 1.139 Cl-N 1.975
O=[N+]([O-])O N-O 1.203 1.203 1.406 H-O 0.964
O=[N+]([O-])Cl N-O 1.202 1.202 Cl-N 1.840
FP(F)F F-P 1.565 1.565 1.565
ClP(Cl)Cl Cl-P 2.043 2.043 2.043
C#P C-P 1.540 C-H 1.066
N#P N-P 1.491
O=PF O-P 1.451 F-P 1.572
S=S=O S-S 1.884 O-S 1.459
FSSF S-S 1.888 F-S 1.635 1.635
O=S(Cl)Cl O-S 1.443 Cl-S 2.076 2.076
N=S=O N-S 1.512 O-S 1.451 H-N 1.029
N#SF N-S 1.448 F-S 1.643
N=C=S C-N 1.210 C-S 1.564 H-N 0.990
CN=[N+]=[N-] C-N 1.470 N-N 1.130 1.225
C=S=O C-S 1.610 O-S 1.469
C=C=C=C C-C 1.269 1.318 1.318
C#CC#C C-C 1.207 1.207 1.376
C#CC#N C-C 1.205 1.378 C-N 1.159
O=C(Cl)Cl C-O 1.179 C-Cl 1.742 1.742
S=C(F)F C-S 1.589 C-F 1.316 1.316
C1CS1 C-C 1.484 C-S 1.815 1.815
C1OO1 C-O 1.388 1.388 O-O 1.514
C=C1CC1 C-C 1.332 1.457 1.457 1.542
N=C=N C-N 1.224 1.224 H-N 1.010 1.010
C[N+](=O)[O-] N-O 1.224 1.224 C-N 1.489
CCO C-C 1.515 C-O 1.425
CC(=O)O C-C 1.505 C-O 1.210 1.360
"""
"""SMILES, pairs of elements, Å: measured, as collected in NIST's CCCBDB, or of the W4-11 set (coupled cluster)."""


def _bonds(smiles):
    """Lengths by pair of elements, and what is remarked on."""
    data = from_smiles(smiles, options=ReadOptions(conformers=1))
    positions, found = data.positions.numpy(), defaultdict(list)
    for bond in Chem.AddHs(Chem.MolFromSmiles(smiles)).GetBonds():
        ends = bond.GetBeginAtom(), bond.GetEndAtom()
        pair = "-".join(sorted(atom.GetSymbol() for atom in ends))
        found[pair].append(float(np.linalg.norm(np.subtract(*(positions[atom.GetIdx()] for atom in ends)))))
    return {pair: sorted(lengths) for pair, lengths in found.items()}, data.get("remark", "")


@pytest.mark.parametrize("line", MEASURED.strip().split("\n"))
def test_bonds_are_those_measured(line):
    smiles, *words = line.split()
    expected = {}
    pair = ""
    for word in words:
        if word[0].isdigit():
            expected[pair].append(float(word))
        else:
            pair = word
            expected[pair] = []
    found, remark = _bonds(smiles)
    assert remark == ""
    for pair, lengths in expected.items():
        np.testing.assert_allclose(found[pair], sorted(lengths), atol=0.05, err_msg=f"{smiles} {pair}")


@pytest.mark.parametrize(
    ("smiles", "remark"),
    [
        ("O=S=C=O", "rough geometry: C–S .* Å is a guess"),
        ("O=NN=O", "rough geometry: N–N 1.40 Å is a guess"),
        ("CC[Fe]", "rough geometry: C–Fe .* Å is a guess"),
        ("C1=PC1", "rough geometry: C–P .* Å where .* Å is usual"),
    ],
)
def test_guesses_are_remarked_on(smiles, remark):
    data = from_smiles(smiles, options=ReadOptions(allow_charged=True, conformers=1))
    assert re.fullmatch(remark, data.remark)


@pytest.mark.parametrize("smiles", ["N=S=O", "CN=S=O", "C1[C@H]2C[C@@H]12"])
def test_an_embedding_that_fails_is_tried_in_other_ways(smiles):
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    parameters = rdDistGeom.ETKDGv3()
    parameters.maxIterations = 20
    if rdDistGeom.EmbedMolecule(mol, parameters) >= 0:
        pytest.skip("this RDKit embeds it at once")
    assert from_smiles(smiles, options=ReadOptions(conformers=1)).num_nodes == mol.GetNumAtoms()
