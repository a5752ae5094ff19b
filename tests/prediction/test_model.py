"""``molflt.load`` and ``Model.predict``: mixed entries, their order, and bad ones among them."""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import fcc111, molecule
from rdkit import Chem

import molflt
from molflt.data.dataset import ConcatDataset, ListDataset
from molflt.data.open import structures_of
from molflt.errors import InputError
from molflt.prediction.members import load_members
from molflt.prediction.output import conformers_of
from molflt.prediction.predict import predict
from tests.conftest import rows_of


@pytest.fixture
def model(tiny_run):
    return molflt.load(tiny_run, device="cpu")


def test_everything_mixed_in_one_list(model, val_set, tmp_path):
    water = molecule("H2O")
    two = tmp_path / "two.extxyz"
    ase.io.write(two, [molecule("CO"), molecule("CH4")])
    mol = Chem.MolFromSmiles("CO")
    conformer = Chem.AddHs(mol)
    from rdkit.Chem import rdDistGeom

    rdDistGeom.EmbedMolecule(conformer, randomSeed=1)
    entries = [water, "CCO", str(two), mol, two, val_set[3], conformer, val_set]
    energies = model.predict(entries)
    assert energies.dtype == np.float64
    expected = [
        model.predict(water),
        model.predict("CCO"),
        model.predict([molecule("CO"), molecule("CH4")]),
        model.predict("OC"),
        model.predict([molecule("CO"), molecule("CH4")]),
        model.predict(val_set[3]),
        model.predict(conformer),
        predict(model.members, val_set).energies,
    ]
    assert [len(e) for e in expected] == [1, 1, 2, 1, 2, 1, 1, len(val_set)]
    np.testing.assert_allclose(energies, np.concatenate(expected), rtol=1e-5)


def test_one_thing_needs_no_list(model, tmp_path):
    ase.io.write(tmp_path / "water.xyz", molecule("H2O"))
    for one in (molecule("H2O"), "O", tmp_path / "water.xyz"):
        assert model.predict(one).shape == (1,)
    assert model.predict([]).shape == (0,)
    assert model.predict(Atoms(e) for e in ["H2"] if False).shape == (0,)
    # A molecule that is given is left as it was.
    mol = Chem.MolFromSmiles("CCO")
    model.predict([mol])
    assert (mol.GetNumAtoms(), mol.GetNumConformers()) == (3, 0)


BAD = [
    ("C(C", "not a valid SMILES"),
    ("ethanol", "give the SMILES, such as CCO for ethanol"),
    ("missing.cif", "missing.cif: no such file"),
    (3.5, "float holds no structure"),
    (Atoms("H2", positions=np.zeros((2, 3))), "Å apart"),
    (Atoms(), "no atoms"),
    (Chem.MolFromSmiles("C(C)(C)(C)(C)C", sanitize=False), "RDKit"),
    (None, "NoneType holds no structure"),
    (Atoms("CH3", molecule("CH3").positions), "odd number of electrons"),
    ("C[NH3+]", "net charge of +1"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=lambda value: str(value)[:16])
def test_a_bad_entry_does_not_spoil_the_others(bad, reason, model):
    water = molecule("H2O")
    expected = model.predict(water)[0]
    with pytest.warns(UserWarning, match=r"1 of 3 entries cannot be used\n  entry 1: ") as warned:
        energies = model.predict([water, bad, water], on_error="skip")
    assert reason in str(warned[0].message)
    assert warned[0].filename == __file__
    assert np.isnan(energies[1])
    np.testing.assert_allclose(energies[[0, 2]], expected, rtol=1e-5)
    with pytest.raises(InputError, match=r"1 of 3 entries cannot be used\n  entry 1: .*") as error:
        model.predict([water, bad, water])
    assert "on_error='skip'" in str(error.value)


def test_a_bad_record_in_a_file(model, tmp_path):
    frames = [molecule("H2O"), Atoms("H2", positions=np.zeros((2, 3))), molecule("CO")]
    ase.io.write(tmp_path / "three.extxyz", frames)
    with pytest.warns(UserWarning, match="1 of 2 entries"):
        energies = model.predict(["O", tmp_path / "three.extxyz"], on_error="skip")
    assert np.isnan(energies).tolist() == [False, False, True, False]


def test_what_it_says(model):
    with pytest.warns(UserWarning, match=r"12 of 12 entries[\s\S]*and 2 more"):
        assert np.isnan(model.predict(["C("] * 12, on_error="skip")).all()
    with pytest.warns(UserWarning, match="not trained on F"):
        model.predict("F")
    with pytest.raises(InputError, match="choose 'raise' or 'skip'"):
        model.predict("O", on_error="ignore")
    with pytest.raises(InputError, match="ensemble=4"):
        model.predict("O", return_uncertainty=True)
    with pytest.raises(InputError, match="no such file"):
        molflt.load("nowhere.safetensors")
    with pytest.raises(InputError, match="no model: give a model file or a run directory"):
        load_members([])
    with pytest.raises(InputError, match="at least one member"):
        molflt.Model([])
    assert "target 'y_relaxed'" in repr(model)
    assert model.target == "y_relaxed"
    assert set(model.elements) <= {1, 6, 7, 8, 28, 29, 78}


def test_double_precision(tiny_run, val_set):
    single, double = (molflt.load(tiny_run, dtype=dtype).predict(val_set) for dtype in (None, torch.float64))
    assert not np.array_equal(single, double)
    np.testing.assert_allclose(single, double, rtol=1e-5)


@pytest.mark.parametrize("path", [None, 5, b"x", [None], [Path("a"), 1.5]], ids=repr)
def test_no_path(path):
    with pytest.raises(InputError, match="is not a path of a model"):
        molflt.load(path)


def test_one_molecule_has_one_energy(model):
    first, again, mirrored = model.predict(["C[C@H](O)CN", "NC[C@@H](C)O", "C[C@@H](O)CN"])
    assert first == pytest.approx(again, abs=1e-5) == pytest.approx(mirrored, abs=1e-5)
    found = predict(model.members, ConcatDataset([structures_of("C[C@H](O)CN", "x")]))
    conformers = found.conformers[0]
    assert conformers.n > 1
    assert conformers.spread > 0
    data = structures_of("C[C@H](O)CN", "x")[0]
    each = predict(model.members, ListDataset(conformers_of(data)))
    assert len(each.energies) == conformers.n
    assert not each.conformers
    assert conformers.lowest == each.energies.argmin()
    assert found.energies[0] == pytest.approx(each.energies.min(), abs=1e-6)
    assert conformers.spread == pytest.approx(np.ptp(each.energies), abs=1e-5)
    # One conformer is the first, and a lower energy may be found by more.
    assert model.predict("C[C@H](O)CN", conformers=1)[0] >= first - 1e-6


def test_ions_that_are_allowed(model):
    with pytest.raises(InputError, match=r"allow_charged=True"):
        model.predict("C[NH3+]")
    assert np.isfinite(model.predict(["C[NH3+]", molecule("CH3")], allow_charged=True)).all()


def test_structures_outside_the_domain_are_named_with_the_reason(molflt, tmp_path):
    model = "pretrained:qm7-small"
    fine = molflt("predict", model, "CCO")
    assert fine.status == 0
    assert "Warning" not in fine.err
    out = tmp_path / "out.csv"
    found = molflt("predict", model, "CCO", "CCCCCCCCCC", "CCF", "-o", out)
    assert "2 of 3 structures are outside the training domain" in found.err
    assert "CCCCCCCCCC: 32 atoms, and at most 23 in training" in found.err
    assert "CCF: the model was not trained on F" in found.err
    rows = rows_of(out)
    assert [bool(row["warning"]) for row in rows] == [False, True, True]
    assert "qm7-small.md" in molflt("info", model).out
    assert json.loads(molflt("info", model, "--json").out)["domain"]["most_atoms"] == 23
    slab = tmp_path / "slab.extxyz"
    ase.io.write(slab, fcc111("Cu", (2, 2, 3), vacuum=5.0), columns=["symbols", "positions"])
    assert "the model was not trained on Cu" in molflt("explain", model, slab, "-o", tmp_path / "a.csv").err
