"""The command line on labels in other units, forces, ensembles and reports."""

from __future__ import annotations

import copy
import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.data.sources import open_dataset
from molflt.errors import InputError
from molflt.model.model_file import LoadedModel, save_model
from molflt.prediction.average import average_models

Run = Callable[..., Any]
KCAL = 23.060547830619
SMALL = (
    "data.max_atoms=64", "model.dim=16", "model.n_heads=2", "model.n_layers=1", "model.ffn_dim=16", "model.n_rbf=8",
    "model.cutoff=4", "trainer.max_epochs=1", "trainer.accelerator=cpu", "data.target=energy",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Crystals with energies in kcal/mol under a name of their own, and forces in eV/Å."""
    folder = tmp_path_factory.mktemp("crystals")
    for name, n in (("train", 8), ("val", 6)):
        frames = []
        for k in range(n):
            atoms = bulk("Cu", cubic=True, a=3.5 + 0.03 * k)
            atoms.rattle(0.1, seed=k)
            atoms.calc = EMT()
            atoms.info["E"] = atoms.get_potential_energy() * KCAL
            atoms.calc = SinglePointCalculator(atoms, forces=atoms.get_forces())
            frames.append(atoms)
        ase.io.write(folder / f"{name}.extxyz", frames)
    return folder


@pytest.fixture
def train(molflt: Run, folder: Path, tmp_path: Path) -> Callable[..., Any]:
    def run(*options: str) -> Any:
        (tmp_path / "c.yaml").write_text(molflt("config", "tiny").out)
        data = (f"data.train={folder / 'train.extxyz'}", f"data.val={folder / 'val.extxyz'}")
        labels = ("data.label=E", "data.unit=kcal/mol", "data.force_unit=eV/Å")
        return molflt("train", tmp_path / "c.yaml", "--out", tmp_path / "run", *data, *labels, *SMALL, *options)

    return run


def test_units_forces_and_reports(train: Run, molflt: Run, folder: Path, tmp_path: Path) -> None:
    result = train("loss.force_weight=5")
    assert result.status == 0, result
    assert "forces" in result.out
    assert (tmp_path / "run" / "report.html").stat().st_size > 1e6
    # The label, its unit and that forces were trained are known to the model file.
    content = json.loads(molflt("evaluate", tmp_path / "run", folder / "val.extxyz", "--json").out)
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert content["energy_mae"] == pytest.approx(record["val/energy_mae"], rel=1e-4)
    assert content["force_mae"] == pytest.approx(record["val/force_mae"], rel=1e-4)
    wrong = json.loads(molflt("evaluate", tmp_path / "run", folder / "val.extxyz", "--unit", "kJ/mol", "--json").out)
    assert wrong["energy_mae"] != pytest.approx(content["energy_mae"], rel=0.1)
    missing = molflt("evaluate", tmp_path / "run", folder / "val.extxyz", "--label", "U0")
    assert missing.status == 2
    assert "have no label 'U0'" in missing.err
    assert "E, forces" in missing.err
    # An evaluation leaves its report beside the model; a report that was asked for is not replaced unasked.
    assert molflt("evaluate", tmp_path / "run", folder / "val.extxyz").status == 0
    assert (tmp_path / "run" / "report-val.html").exists()
    again = molflt("evaluate", tmp_path / "run", folder / "val.extxyz", "--report", tmp_path / "run" / "report.html")
    assert again.status == 2
    assert "--overwrite" in again.err


def test_forces_of_a_prediction(train: Run, molflt: Run, folder: Path, tmp_path: Path) -> None:
    train("loss.force_weight=5", "--no-report")
    out = tmp_path / "out.extxyz"
    assert molflt("predict", tmp_path / "run", folder / "val.extxyz", "-o", out, "--forces").status == 0
    frames = ase.io.read(out, ":")
    assert len(frames) == 6
    for atoms in frames:
        forces = atoms.arrays["predicted_forces"]
        assert forces.shape == (4, 3)
        assert np.abs(forces.sum(axis=0)).max() < 1e-5
    csv = molflt("predict", tmp_path / "run", folder / "val.extxyz", "-o", tmp_path / "out.csv", "--forces")
    assert csv.status == 2
    assert ".extxyz" in csv.err


def test_a_model_of_relaxed_energies_has_no_forces(molflt: Run, model_path: Path, tmp_path: Path) -> None:
    result = molflt("predict", model_path, "O", "-o", tmp_path / "a.extxyz", "--forces")
    assert result.status == 2
    assert "its derivative is no force" in result.err
    assert not list(tmp_path.iterdir())


def test_an_ensemble(train: Run, molflt: Run, folder: Path, tmp_path: Path) -> None:
    result = train("ensemble=3", "trainer.keep_last=1")
    assert result.status == 0, result
    assert (tmp_path / "run" / "report.html").exists()
    evaluated = molflt("evaluate", tmp_path / "run", folder / "val.extxyz", "--no-report")
    assert "uncertainty from 3 members" in evaluated.out
    content = json.loads(molflt("evaluate", tmp_path / "run", folder / "val.extxyz", "--json").out)
    assert content["members"] == 3
    assert content["calibration"]["n"] == 6
    out = tmp_path / "out.csv"
    molflt("predict", tmp_path / "run", folder / "val.extxyz", "-o", out)
    as_it_is = _column(out, "std_eV")
    known = ("--calibrate", folder / "train.extxyz", "--overwrite")
    calibrated = molflt("predict", tmp_path / "run", folder / "val.extxyz", "-o", out, *known)
    assert "would fit the errors of 8 structures" in calibrated.err
    scaled = _column(out, "std_eV")
    assert np.ptp(scaled / as_it_is) < 1e-9 * scaled[0]
    info = json.loads(molflt("info", tmp_path / "run", "--json").out)
    assert len(info["members"]) == 3
    refused = molflt("check-invariance", tmp_path / "run")
    assert refused.status == 2
    assert "member-0" in refused.err


def _column(path: Path, name: str) -> np.ndarray:
    with open(path, newline="") as handle:
        return np.array([float(row[name]) for row in csv.DictReader(handle)])


def test_calibration_needs_an_ensemble(molflt: Run, model_path: Path, tiny_data: Path) -> None:
    result = molflt("predict", model_path, "O", "--calibrate", tiny_data / "val.lmdb")
    assert result.status == 2
    assert "ensemble=4" in result.err


def test_average(train: Run, molflt: Run, tmp_path: Path) -> None:
    train("trainer.max_epochs=2", "trainer.keep_last=2", "--no-report")
    checkpoints = sorted((tmp_path / "run").glob("epoch-*.safetensors"))
    assert molflt("average", *checkpoints, "-o", tmp_path / "mean.safetensors").status == 0
    assert molflt("info", tmp_path / "mean.safetensors").status == 0
    assert molflt("average", *checkpoints, "-o", tmp_path / "mean.safetensors").status == 2


def test_average_of_what_is_not_of_one_run(model_path: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    constants = dict(loaded.model.named_buffers())
    learnt = dict(loaded.model.named_parameters())
    assert constants
    for name in constants:
        changed = copy.deepcopy(loaded.model)
        dict(changed.named_buffers())[name].view(-1)[0] += 1
        save_model(tmp_path / "changed.safetensors", changed, loaded.metadata)
        with pytest.raises(InputError, match=f"'{name}' differs from that of"):
            average_models([model_path, tmp_path / "changed.safetensors"], tmp_path / "mean.safetensors")
    with pytest.raises(InputError, match="at least two"):
        average_models([model_path], tmp_path / "mean.safetensors")
    other = loaded.metadata.model_copy(update={"seed": loaded.metadata.seed + 1})
    save_model(tmp_path / "other.safetensors", loaded.model, other)
    with pytest.raises(InputError, match="another configuration or seed"):
        average_models([model_path, tmp_path / "other.safetensors"], tmp_path / "mean.safetensors")
    with torch.no_grad():
        for tensor in learnt.values():
            tensor *= 3
    save_model(tmp_path / "tripled.safetensors", loaded.model, loaded.metadata)
    mean = average_models([model_path, tmp_path / "tripled.safetensors"], tmp_path / "mean.safetensors").model
    for name, tensor in mean.named_parameters():
        torch.testing.assert_close(tensor, learnt[name] * (2 / 3))


def test_convert_reads_a_label_in_its_unit(molflt: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.lmdb"
    result = molflt(
        "convert", folder / "val.extxyz", out, "--label", "E", "--unit", "kcal/mol", "--force-unit", "eV/Å"
    )
    assert result.status == 0, result
    frames, structures = ase.io.read(folder / "val.extxyz", ":"), open_dataset(out)
    for atoms, data in zip(frames, structures, strict=True):
        assert float(data.energy) == pytest.approx(atoms.info["E"] / KCAL, rel=1e-7)
        np.testing.assert_array_equal(data.forces.numpy(), atoms.calc.results["forces"])


def test_a_report_that_cannot_be_written_spoils_no_evaluation(
    molflt: Run, model_path: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(model_path, tmp_path / "model.safetensors")

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("molflt.report.model_report.evaluation_report", full)
    result = molflt("evaluate", tmp_path / "model.safetensors", tiny_data / "other.lmdb")
    assert result.status == 0
    assert "MAE" in result.out
    assert "No space left" in result.err
