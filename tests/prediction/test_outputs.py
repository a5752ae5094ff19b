"""Predictions as files: what stands in them, what they never overwrite."""

from collections import Counter
from dataclasses import replace
from typing import get_args

import ase.io
import numpy as np
import pytest

from molflt.data.dataset import ListDataset
from molflt.errors import InputError
from molflt.prediction import output as outputs
from molflt.prediction.output import Prediction, check_output, write_predictions
from molflt.prediction.predict import predict
from molflt.vocabulary import OC20Split
from tests.conftest import rows_of


@pytest.fixture
def prediction(loaded, val_set):
    """Of an ensemble, as far as its files can tell, with names of all kinds."""
    found = predict(loaded, val_set)
    found.uncertainty_eV = np.linspace(0.1, 1.0, len(val_set))
    found.names[:4] = ['a "b", c', "two words", "C[C@H](O)=C", 'with spaces and "quotes"']
    return found


def test_csv_keeps_every_digit(prediction, val_set, tmp_path):
    path = tmp_path / "new folder" / "out.csv"
    write_predictions(path, prediction, val_set, "y_relaxed")
    rows = rows_of(path)
    assert list(rows[0]) == ["name", "y_relaxed_eV", "uncertainty_eV", "std_eV"]
    assert [row["name"] for row in rows] == prediction.names
    assert [float(row["y_relaxed_eV"]) for row in rows] == prediction.energies.tolist()
    assert [float(row["uncertainty_eV"]) for row in rows] == prediction.uncertainty_eV.tolist()


def test_extxyz_holds_structures_and_energies(prediction, val_set, tmp_path):
    write_predictions(tmp_path / "out.extxyz", prediction, val_set, "y_relaxed")
    images = ase.io.read(tmp_path / "out.extxyz", index=":")
    assert len(images) == 10
    for i, atoms in enumerate(images):
        assert atoms.info["name"] == prediction.names[i]
        assert atoms.info["predicted_y_relaxed"] == pytest.approx(prediction.energies[i], rel=1e-6)
        assert atoms.get_potential_energy() == atoms.info["predicted_y_relaxed"]
        assert atoms.info["uncertainty_eV"] == pytest.approx(prediction.uncertainty_eV[i], rel=1e-6)
        np.testing.assert_allclose(atoms.positions, val_set[i].positions.numpy(), atol=1e-7)
        assert atoms.numbers.tolist() == val_set[i].atomic_numbers.tolist()
        assert atoms.pbc.tolist() == val_set[i].pbc[0].tolist()


def test_npz(prediction, val_set, tmp_path):
    write_predictions(tmp_path / "out.npz", prediction, val_set, "y_relaxed")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"name", "energy", "unit", "uncertainty_eV"}
        assert archive["name"].tolist() == prediction.names
        np.testing.assert_array_equal(archive["energy"], prediction.energies)
        np.testing.assert_array_equal(archive["uncertainty_eV"], prediction.uncertainty_eV)


def test_leaderboard_file_of_four_runs(prediction, loaded, val_set, tmp_path):
    path = tmp_path / "submission.npz"
    splits = get_args(OC20Split)
    for i, split in enumerate(splits):
        check_output(path, split, overwrite=False)
        shifted = replace(prediction, energies=prediction.energies + i)
        write_predictions(path, shifted, val_set, "y_relaxed", split)
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == {f"{split}_{key}" for split in splits for key in ("ids", "energy")}
        for i, split in enumerate(splits):
            assert archive[f"{split}_ids"].tolist() == [str(1000 + k) for k in range(10)]
            np.testing.assert_array_equal(archive[f"{split}_energy"], prediction.energies + i)
    with pytest.raises(InputError, match="holds split 'id' already"):
        check_output(path, "id", overwrite=False)
    check_output(path, "id", overwrite=True)
    # Structures without a sid go by their names.
    structures = [val_set[i].clone() for i in range(len(val_set))]
    for structure in structures:
        del structure["sid"]
    found = replace(prediction, ids=predict(loaded, ListDataset(structures)).ids)
    write_predictions(path, found, None, "y_relaxed", "ood_cat")
    with np.load(path) as archive:
        np.testing.assert_array_equal(archive["ood_cat_energy"], prediction.energies)
        np.testing.assert_array_equal(archive["ood_both_energy"], prediction.energies + 3)
        assert archive["ood_cat_ids"].tolist() == [structure.name for structure in structures]


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [(name, None, "must end in") for name in ("out", "out.txt", ".csv")] + [("out.csv", "id", "npz")],
)
def test_names_that_do_not_do(name, split, message, tmp_path):
    with pytest.raises(InputError, match=message):
        check_output(tmp_path / name, split, False)


@pytest.mark.parametrize("suffix", outputs.FORMATS)
def test_existing_files_are_refused(suffix, tmp_path):
    path = tmp_path / f"out{suffix}"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="--overwrite"):
        check_output(path, None, overwrite=False)
    check_output(path, None, overwrite=True)
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        check_output(tmp_path / f"folder{suffix}", None, overwrite=True)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04" + b"\0" * 40, b"\x93NUMPY" + b"\0" * 10, "cut"])
def test_damaged_leaderboard_file(content, tmp_path):
    path = tmp_path / "out.npz"
    if content == "cut":
        np.savez_compressed(path, id_ids=np.arange(100), id_energy=np.arange(100.0))
        content = path.read_bytes()[:300]
    path.write_bytes(content)
    for overwrite in (False, True):
        with pytest.raises(InputError, match="not a readable npz file"):
            check_output(path, "id", overwrite)
    assert path.read_bytes() == content


def test_other_archives_are_not_added_to(tmp_path):
    path = tmp_path / "out.npz"
    np.savez(path, results=np.arange(3))
    with pytest.raises(InputError, match="not a leaderboard file"):
        check_output(path, "id", overwrite=True)
    np.savez(path, id_energy=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="not a readable npz"):
        check_output(path, "id", overwrite=False)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", "\t=1", "\r=1"])
def test_names_are_no_formulas(name, tmp_path):
    prediction = Prediction(np.array([1.0, 2.0]), [name, "-#1"], Counter(), failures={0: name})
    write_predictions(tmp_path / "p.csv", prediction, None, "energy")
    rows = rows_of(tmp_path / "p.csv")
    for text in (rows[0]["name"], rows[0]["error"]):
        assert text[0] in "'\\"
        assert text.removeprefix("'") == name.replace("\t", "\\t").replace("\r", "\\r")
    # Of standard input, and not a formula.
    assert rows[1]["name"] == "-#1"
