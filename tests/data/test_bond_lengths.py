"""Bonds of molecules made from SMILES, against measured ones."""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import rdDistGeom

from molflt.data.rdkit import from_smiles
from molflt.data.reading import ReadOptions

MEASURED = Path(__file__).with_name("bond_lengths.txt").read_text(encoding="utf-8").splitlines()[1:]


def _bonds(smiles):
    """Measure the lengths by pair of elements; with the remark on them."""
    data = from_smiles(smiles, options=ReadOptions(conformers=1))
    positions, found = data.positions.numpy(), defaultdict(list)
    for bond in Chem.AddHs(Chem.MolFromSmiles(smiles)).GetBonds():
        ends = bond.GetBeginAtom(), bond.GetEndAtom()
        pair = "-".join(sorted(atom.GetSymbol() for atom in ends))
        found[pair].append(float(np.linalg.norm(np.subtract(*(positions[atom.GetIdx()] for atom in ends)))))
    return {pair: sorted(lengths) for pair, lengths in found.items()}, data.get("remark", "")


@pytest.mark.parametrize("line", MEASURED)
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
