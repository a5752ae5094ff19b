"""Predictions as files: what stands in them, what they never overwrite."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import get_args

import ase.io
import numpy as np
import pytest

from molflt.choices import OC20Split
from molflt.data.sources import ListDataset, StructureDataset
from molflt.errors import InputError
from molflt.model.model_file import LoadedModel
from molflt.prediction import outputs
from molflt.prediction.outputs import check_output, write_predictions
from molflt.prediction.predictor import Prediction, predict


@pytest.fixture
def prediction(loaded: LoadedModel, val_set: StructureDataset) -> Prediction:
    return predict(loaded, val_set)[0]


def test_csv_keeps_every_digit(prediction: Prediction, val_set: StructureDataset, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "out.csv"
    write_predictions(path, prediction, val_set, "y_relaxed")
    with open(path, newline="") as handle:
        rows = list(csv.reader(handle))
    assert rows[0] == ["name", "y_relaxed_eV"]
    assert [name for name, _ in rows[1:]] == [f"set1-{i:02d}" for i in range(10)]
    assert [float(energy) for _, energy in rows[1:]] == prediction.energies.tolist()


def test_csv_with_awkward_names(prediction: Prediction, val_set: StructureDataset, tmp_path: Path) -> None:
    prediction.names[:3] = ['a "b", c', "two words", "C[C@H](O)=C"]
    write_predictions(tmp_path / "out.csv", prediction, val_set, "y_relaxed")
    with open(tmp_path / "out.csv", newline="") as handle:
        assert [row[0] for row in csv.reader(handle)][1:] == prediction.names


def test_extxyz_holds_structures_and_energies(
    prediction: Prediction, val_set: StructureDataset, tmp_path: Path
) -> None:
    path = tmp_path / "out.extxyz"
    prediction.names[1] = 'with spaces and "quotes"'
    write_predictions(path, prediction, val_set, "y_relaxed")
    images = ase.io.read(path, index=":")
    assert len(images) == 10
    for i, atoms in enumerate(images):
        assert atoms.info["name"] == prediction.names[i]
        assert atoms.info["predicted_y_relaxed"] == pytest.approx(prediction.energies[i], rel=1e-6)
        np.testing.assert_allclose(atoms.positions, val_set[i].positions.numpy(), atol=1e-7)
        assert atoms.numbers.tolist() == val_set[i].atomic_numbers.tolist()
        assert atoms.pbc.tolist() == val_set[i].pbc[0].tolist()


def test_npz(prediction: Prediction, val_set: StructureDataset, tmp_path: Path) -> None:
    write_predictions(tmp_path / "out.npz", prediction, val_set, "y_relaxed")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"name", "energy"}
        assert archive["name"].tolist() == prediction.names
        np.testing.assert_array_equal(archive["energy"], prediction.energies)


def test_deviations_of_an_ensemble_are_in_every_format(
    prediction: Prediction, val_set: StructureDataset, tmp_path: Path
) -> None:
    prediction.std = np.linspace(0.1, 1.0, len(val_set))
    for suffix in outputs.FORMATS:
        write_predictions(tmp_path / f"out{suffix}", prediction, val_set, "y_relaxed")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["std"], prediction.std)
    images = ase.io.read(tmp_path / "out.extxyz", index=":")
    assert [atoms.info["predicted_y_relaxed_std"] for atoms in images] == pytest.approx(prediction.std, rel=1e-6)
    with open(tmp_path / "out.csv", newline="") as handle:
        assert [float(row["std_eV"]) for row in csv.DictReader(handle)] == prediction.std.tolist()


def test_leaderboard_file_of_four_runs(prediction: Prediction, val_set: StructureDataset, tmp_path: Path) -> None:
    path = tmp_path / "submission.npz"
    splits = get_args(OC20Split)
    for i, split in enumerate(splits):
        check_output(path, split, overwrite=False)
        shifted = Prediction(prediction.energies + i, prediction.names, Counter())
        write_predictions(path, shifted, val_set, "y_relaxed", split)
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == {f"{split}_{key}" for split in splits for key in ("ids", "energy")}
        for i, split in enumerate(splits):
            assert archive[f"{split}_ids"].tolist() == [str(1000 + k) for k in range(10)]
            np.testing.assert_array_equal(archive[f"{split}_energy"], prediction.energies + i)
    with pytest.raises(InputError, match="holds split 'id' already"):
        check_output(path, "id", overwrite=False)
    check_output(path, "id", overwrite=True)
    write_predictions(path, prediction, val_set, "y_relaxed", "ood_cat")
    with np.load(path) as archive:
        np.testing.assert_array_equal(archive["ood_cat_energy"], prediction.energies)
        np.testing.assert_array_equal(archive["ood_both_energy"], prediction.energies + 3)


def test_leaderboard_ids_without_sid_are_names(
    prediction: Prediction, val_set: StructureDataset, tmp_path: Path
) -> None:
    structures = [val_set[i].clone() for i in range(len(val_set))]
    for structure in structures:
        del structure["sid"]
    write_predictions(tmp_path / "out.npz", prediction, ListDataset(structures), "y_relaxed", "id")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert archive["id_ids"].tolist() == prediction.names


@pytest.mark.parametrize("name", ["out", "out.txt", "out.json", ".csv"])
def test_unknown_suffix(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must end in"):
        check_output(tmp_path / name, None, False)


@pytest.mark.parametrize("name", ["out.csv", "out.extxyz", "out.npz"])
def test_existing_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("mine")
    with pytest.raises(InputError, match="--overwrite"):
        check_output(path, None, overwrite=False)
    check_output(path, None, overwrite=True)
    (tmp_path / f"folder{path.suffix}").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        check_output(tmp_path / f"folder{path.suffix}", None, overwrite=True)


def test_leaderboard_keys_need_npz(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="npz"):
        check_output(tmp_path / "out.csv", "id", False)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04" + b"\0" * 40, b"\x93NUMPY" + b"\0" * 10, "cut"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_damaged_leaderboard_file(content: bytes | str, overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    if isinstance(content, str):
        np.savez_compressed(path, id_ids=np.arange(100), id_energy=np.arange(100.0))
        content = path.read_bytes()[:300]
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a readable npz file"):
        check_output(path, "id", overwrite)
    assert path.read_bytes() == content


def test_other_archives_are_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    np.savez(path, results=np.arange(3))
    with pytest.raises(InputError, match="not a leaderboard file"):
        check_output(path, "id", overwrite=True)
    np.savez(path, id_energy=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="not a readable npz"):
        check_output(path, "id", overwrite=False)


@pytest.mark.parametrize("suffix", outputs.FORMATS)
def test_failed_write_leaves_the_old_file(
    suffix: str,
    prediction: Prediction,
    val_set: StructureDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / f"out{suffix}"
    path.write_text("old")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(outputs.csv, "writer", fail)
    monkeypatch.setattr(outputs.ase.io, "write", fail)
    monkeypatch.setattr(outputs.np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        write_predictions(path, prediction, val_set, "y_relaxed")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", "\t=1", "\r=1"])
def test_names_are_no_formulas(name: str, tmp_path: Path) -> None:
    prediction = Prediction(np.array([1.0, 2.0]), [name, "-#1"], Counter(), failures={0: name})
    write_predictions(tmp_path / "p.csv", prediction, None, "energy")
    with open(tmp_path / "p.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    for text in (rows[0]["name"], rows[0]["error"]):
        assert text[0] in "'\\"
        assert text.removeprefix("'") == name.replace("\t", "\\t").replace("\r", "\\r")
    # of standard input, and no formula
    assert rows[1]["name"] == "-#1"
