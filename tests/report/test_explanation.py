"""Explanations: contributions add up, invariances are the model's; what the command prints, writes and refuses."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import fcc111, molecule
from ase.io import write

from molflt.data.ase import from_atoms
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.model.file import LoadedModel
from molflt.prediction.predict import predict
from molflt.report.explain import explain
from tests.attention.structures import STRUCTURES, rotated
from tests.model.files import metadata_of
from tests.model.models import make_model


def make_loaded(attention="molflt", **options):
    model = make_model(attention, **options)
    return LoadedModel(model, metadata_of(model.config, elements=[1, 6, 8, 29]), Path("model.safetensors"))


def explained(loaded, atoms, atom=None):
    return explain(loaded, from_atoms(atoms, "structure", ReadOptions(tags="oc20")), atom)


@pytest.mark.parametrize(("name", "recycles"), [("molecule", 1), ("slab_open", 1), ("molecule", 3)])
def test_the_parts_add_up(name, recycles):
    loaded = make_loaded(n_recycles=recycles)
    found = explained(loaded, STRUCTURES[name]())
    assert found.energy == pytest.approx(found.mean + found.atomic_energies.sum(), abs=1e-9)
    assert found.mean == 0.3
    np.testing.assert_allclose(found.reference, -0.1 * found.structure.atomic_numbers.numpy(), rtol=1e-12)
    assert found.atomic_energies == pytest.approx(found.reference + found.learnt)
    assert found.share.sum() == pytest.approx(1)
    assert found.attention.shape == (2, 4, len(found.learnt))
    assert found.atom == np.abs(found.learnt - np.median(found.learnt)).argmax()


@pytest.mark.parametrize(
    ("attention", "name"),
    [
        ("flt", "triclinic"),
        ("flt", "molecule"),
        ("softmax", "slab_open"),
        ("performer", "molecule"),
        ("ra-rpe", "wire"),
    ],
)
def test_turned_mirrored_and_reordered_atoms_have_the_same_numbers(attention, name):
    loaded, atoms = make_loaded(attention), STRUCTURES[name]()
    before = explained(loaded, atoms, 1)
    order = np.random.default_rng(0).permutation(len(atoms))
    same = np.arange(len(atoms))
    for other, places in ((rotated(atoms, 0), same), (rotated(atoms, 1), same), (atoms[order], order)):
        after = explained(loaded, other, int(np.flatnonzero(places == 1)[0]))
        np.testing.assert_allclose(after.learnt, before.learnt[places], atol=1e-8)
        np.testing.assert_allclose(after.attention, before.attention[..., places], atol=1e-8)
        np.testing.assert_allclose(after.distance, before.distance[places], atol=1e-8)


def test_distances_are_to_the_nearest_image():
    atoms = fcc111("Cu", (3, 3, 2), vacuum=6.0)
    atoms.positions += np.arange(len(atoms))[:, None] % 3 * atoms.cell[0]
    found = explained(make_loaded(), atoms, 4)
    expected = atoms.get_distances(4, range(len(atoms)), mic=True)
    np.testing.assert_allclose(found.distance, expected, atol=1e-9)
    assert found.distance.max() < 6


def test_what_cannot_be_computed_is_refused():
    loaded = make_loaded()
    with torch.no_grad():
        loaded.model.energy_head.factor.fill_(torch.inf)
    with pytest.raises(InputError, match="not finite"):
        explained(loaded, molecule("H2O"))
    with pytest.raises(InputError, match="Å apart"):
        explained(make_loaded(), Atoms("H2", [[0, 0, 0], [0, 0, 0]]))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_table_and_page(molflt, tiny_run, tiny_data, val_set):
    result = molflt("explain", tiny_run, tiny_data / "val.lmdb", "--index", 1, "--atom", 3)
    assert result.status == 0, result
    assert result.out.startswith(f"{val_set[1].name}: y_relaxed ")
    assert "3 ←" in result.out
    assert result.out.count("│\n") == len(val_set[1].atomic_numbers)
    assert result.err.endswith("page in explain.html\n")
    assert Path("explain.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    again = molflt("explain", tiny_run, "O")
    assert (again.status, again.err.endswith("page in explain-2.html\n")) == (0, True)
    named = molflt("explain", tiny_run, "O", "-o", "explain.html")
    assert "explain.html: exists already; choose another name or give --overwrite" in named.err
    assert molflt("explain", tiny_run, "O", "-o", "explain.html", "--overwrite").status == 0


def test_json(molflt, model_path, tiny_data, loaded, val_set):
    result = molflt("explain", model_path, tiny_data / "val.lmdb", "--index", 2, "--json")
    content = json.loads(result.out)
    assert content["energy_eV"] == pytest.approx(predict(loaded, val_set).energies[2], abs=1e-5)
    total = content["mean_eV"] + sum(atom["contribution_eV"] for atom in content["atoms"])
    assert total == pytest.approx(content["energy_eV"], abs=1e-9)
    assert [atom["index"] for atom in content["atoms"]] == list(range(len(val_set[2].atomic_numbers)))
    assert len(content["attention"]) == 1
    assert len(content["attention"][0]) == 2
    assert len(content["attention"][0][0]) == len(content["distance_A"]) == len(content["atoms"])
    assert not Path("explain.html").exists()


def test_csv(molflt, model_path):
    result = molflt("explain", model_path, "smiles:CO", "--atom", 1, "-o", "atoms.csv")
    assert result.status == 0, result
    with open("atoms.csv", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["element"] for row in rows] == ["C", "O", "H", "H", "H", "H"]
    for row in rows:
        assert float(row["contribution_eV"]) == pytest.approx(float(row["reference_eV"]) + float(row["learnt_eV"]))
    assert float(rows[1]["distance_from_1_A"]) == 0
    assert float(rows[0]["distance_from_1_A"]) > 1
    assert "attention_of_1" in rows[0]
    assert not Path("explain.html").exists()


def test_large_structures_are_cut_in_print(molflt, model_path):
    result = molflt("explain", model_path, "C" * 12, "-o", "atoms.csv")
    assert "the largest parts, 20 of 38 atoms; -o NAME.csv writes all" in result.err
    assert result.out.count("│\n") in (20, 21)
    assert "←" in result.out


def test_unknown_elements_are_named_and_texts_from_data_stay_texts(molflt, model_path):
    write("plain.xyz", molecule("CH3Cl"))
    folder = Path("<script>alert(1)<")
    folder.mkdir()
    Path("plain.xyz").rename(folder / "a&b.xyz")
    result = molflt("explain", model_path, folder / "a&b.xyz")
    assert result.status == 0, result
    assert "the explanation is unreliable\n  the model was not trained on Cl\n" in result.err
    page = Path("explain.html").read_text(encoding="utf-8")
    assert "<li>the model was not trained on Cl</li>" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/a&amp;b.xyz" in page
