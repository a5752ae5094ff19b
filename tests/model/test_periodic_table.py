"""Groups and periods against the table as IUPAC prints it, starts of vectors against their covariance."""

import copy
import math

import numpy as np
import pytest
import torch
from ase.data import atomic_numbers, chemical_symbols

from molflt.model.elements import (
    descriptors,
    element_embedding,
    element_similarity,
    group_and_period,
    lend_vectors,
)
from molflt.model.energy import EnergyModel
from molflt.model.file import load_model
from molflt.vocabulary import MAX_ATOMIC_NUMBER
from tests.model.files import tiny

TABLE = """
H  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  He
Li Be .  .  .  .  .  .  .  .  .  .  B  C  N  O  F  Ne
Na Mg .  .  .  .  .  .  .  .  .  .  Al Si P  S  Cl Ar
K  Ca Sc Ti V  Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
Rb Sr Y  Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I  Xe
Cs Ba *  Hf Ta W  Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn
Fr Ra *  Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""
F_BLOCK = {6: "La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu", 7: "Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr"}


def _expected():
    found = {symbol: (3, period) for period, symbols in F_BLOCK.items() for symbol in symbols.split()}
    for period, row in enumerate(TABLE.strip().splitlines(), start=1):
        found |= {symbol: (group, period) for group, symbol in enumerate(row.split(), start=1) if symbol.isalpha()}
    return found


def test_groups_and_periods():
    expected = _expected()
    assert len(expected) == MAX_ATOMIC_NUMBER
    found = {chemical_symbols[z]: group_and_period(z) for z in range(1, MAX_ATOMIC_NUMBER + 1)}
    assert found == expected


def test_descriptors_of_some_elements():
    table = descriptors()
    assert table[atomic_numbers["Fe"]].tolist() == [8, 4, 1.32, 1.83]
    pauling = table[:, 3].nan_to_num()
    assert chemical_symbols[int(pauling.argmax())] == "F"
    assert table[0].isnan().all()
    assert table[atomic_numbers["Ne"], 3].isnan()
    assert table[atomic_numbers["Og"], 2:].isnan().all()
    assert not table[1:, :2].isnan().any()


def _like(first, second):
    return float(element_similarity()[atomic_numbers[first], atomic_numbers[second]])


def test_element_similarity():
    """Nb and Ta share their group and are near in radius and electronegativity; neon has no electronegativity."""
    expected = 0.32 + 0.22 * (math.exp(-((0.06 / 0.2) ** 2) / 2) + math.exp(-((0.1 / 0.3) ** 2) / 2))
    assert _like("Nb", "Ta") == pytest.approx(expected)
    assert _like("Nb", "Ta") > _like("Nb", "Sr") > _like("Nb", "O")
    assert _like("Ne", "Ar") == pytest.approx(0.32 + 0.22 * math.exp(-((0.48 / 0.2) ** 2) / 2))
    assert _like("Zn", "Cd") > _like("Zn", "Cu")
    matrix = element_similarity()
    assert torch.equal(matrix, matrix.T)
    assert torch.equal(matrix.diagonal(), torch.ones(MAX_ATOMIC_NUMBER + 1, dtype=torch.float64))
    assert float(torch.linalg.eigvalsh(matrix)[0]) > 0.15


def test_vectors_start_alike():
    dim = 40_000
    torch.manual_seed(0)
    vectors = element_embedding(dim).weight.detach().to(torch.float64)
    torch.testing.assert_close(vectors @ vectors.T / dim, element_similarity(), rtol=0, atol=6 * math.sqrt(2 / dim))


def test_vectors_are_rounded_once():
    """Bit for bit what NumPy's linear algebra makes of the same draws: nothing is left of the order of summation."""
    dim = 128
    torch.manual_seed(0)
    vectors = element_embedding(dim).weight.detach().numpy()
    torch.manual_seed(0)
    draws = torch.nn.Embedding(MAX_ATOMIC_NUMBER + 1, dim).weight.detach().numpy()
    root = np.linalg.cholesky(element_similarity().numpy())
    np.testing.assert_array_equal(vectors, (root @ draws.astype(np.float64)).astype(np.float32))


def test_what_was_not_trained_on_has_the_vectors_of_the_most_alike():
    """Zinc those of cadmium, of which the model knows something, though copper is nearer in the table."""
    model = EnergyModel(tiny("matrices"), 7)
    before = copy.deepcopy(model.state_dict())
    lend_vectors(model, [29, 8, 48, 1])
    tables = [name for name, tensor in before.items() if len(tensor.shape) == 2 and len(tensor) == 119]
    assert len(tables) == 6
    for name, after in model.state_dict().items():
        if name in tables:
            assert torch.equal(after[[1, 8, 29, 48, 30, 16]], before[name][[1, 8, 29, 48, 48, 8]])
        else:
            assert torch.equal(after, before[name])


def test_a_trained_model_has_lent_vectors(model_path):
    loaded = load_model(model_path)
    known = torch.tensor(loaded.metadata.elements)
    assert 92 not in known
    nearest = known[element_similarity()[92, known].argmax()]
    tables = [tensor for name, tensor in loaded.model.state_dict().items() if name.endswith("element.weight")]
    assert len(tables) == 2
    assert all(torch.equal(table[92], table[nearest]) for table in tables)
