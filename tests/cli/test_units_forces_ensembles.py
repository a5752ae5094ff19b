"""The command line on labels in other units, forces, ensembles and reports."""

import copy
import json
import shutil

import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.data.open import open_dataset
from molflt.errors import InputError
from molflt.model.file import save_model
from molflt.prediction.members import average_models
from tests.conftest import rows_of

KCAL = 23.060547830619
SMALL = (
    "data.max_atoms=64", "model.dim=16", "model.n_heads=2", "model.n_layers=1", "model.ffn_dim=16", "model.n_rbf=8",
    "model.cutoff=4", "trainer.max_epochs=1", "trainer.accelerator=cpu", "data.target=energy",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
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
def train(molflt, folder, tmp_path, monkeypatch):
    """Train on the crystals; reports, of evaluations too, go without the suite of invariances."""
    monkeypatch.setattr("molflt.report.model.run_suite", lambda *arguments, **options: [])

    def run(*options, **status):
        (tmp_path / "c.yaml").write_text(molflt("config", "tiny").out, encoding="utf-8")
        data = (f"data.train={folder / 'train.extxyz'}", f"data.val={folder / 'val.extxyz'}")
        labels = ("data.label=E", "data.unit=kcal/mol", "data.force_unit=eV/Å")
        return molflt(
            "train", tmp_path / "c.yaml", "--out", tmp_path / "run", *data, *labels, *SMALL, *options, **status
        )

    return run


def test_units_forces_and_reports(train, molflt, folder, tmp_path):
    result = train("loss.force_weight=5", status=0)
    assert "forces" in result.err
    run, val = tmp_path / "run", folder / "val.extxyz"
    # The label, its unit and that forces were trained are known to the model file.
    content = json.loads(molflt("evaluate", run, val, "--json").out)
    record = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert content["energy_mae"] == pytest.approx(record["val/energy_mae"], rel=1e-4)
    for metric in ("force_mae", "force_rmse"):
        assert content[metric] == pytest.approx(record[f"val/{metric}"], rel=1e-4)
    assert '<section id="forces">' in (run / "report.html").read_text(encoding="utf-8")
    wrong = json.loads(molflt("evaluate", run, val, "--unit", "kJ/mol", "--json").out)
    assert wrong["energy_mae"] != pytest.approx(content["energy_mae"], rel=0.1)
    small = json.loads(molflt("evaluate", run, val, "--force-unit", "meV/Å", "--json").out)
    assert small["force_rms"] == pytest.approx(content["force_rms"] / 1000)
    missing = molflt("evaluate", run, val, "--label", "U0", status=2)
    assert "have no label 'U0'" in missing.err
    assert "E, forces" in missing.err
    # An evaluation leaves its report beside the model; a report that was asked for is not replaced unasked.
    assert molflt("evaluate", run, val).status == 0
    first = (run / "report-val.html").read_bytes()
    assert "report-val-2.html" in molflt("evaluate", run, val).err
    assert (run / "report-val.html").read_bytes() == first
    assert molflt("evaluate", run, val, "--overwrite").status == 0
    assert sorted(path.name for path in run.glob("report-*")) == ["report-val-2.html", "report-val.html"]
    assert (run / "report-val.html").read_bytes() != first
    again = molflt("evaluate", run, val, "--report", run / "report.html", status=2)
    assert "--overwrite" in again.err
    # Predicted forces stand beside the structures.
    out = tmp_path / "out.extxyz"
    assert molflt("predict", run, val, "-o", out, "--forces").status == 0
    frames = ase.io.read(out, ":")
    assert len(frames) == 6
    for atoms in frames:
        forces = atoms.get_forces()
        assert forces.shape == (4, 3)
        assert np.abs(forces.sum(axis=0)).max() < 1e-5
        assert atoms.get_potential_energy() == atoms.info["predicted_energy"]
        assert not np.allclose(forces, atoms.arrays["input_forces"])


def test_an_ensemble(train, molflt, folder, tmp_path):
    train("ensemble=2", "trainer.keep_last=2", "trainer.max_epochs=2", status=0)
    run, val, out = tmp_path / "run", folder / "val.extxyz", tmp_path / "out.csv"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert f"{run}, ensemble of 2, energy" in page
    assert "member-0" not in page.partition("Configuration")[0].rpartition("Provenance")[0]
    evaluated = molflt("evaluate", run, val, "--no-report")
    assert "uncertainty from 2 members" in evaluated.out
    content = json.loads(molflt("evaluate", run, val, "--json").out)
    assert content["members"] == 2
    assert content["calibration"]["n"] == 6
    ase.io.write(tmp_path / "single.extxyz", ase.io.read(val, 0))
    single = molflt("evaluate", run, tmp_path / "single.extxyz", "--no-report")
    assert (single.status, "MAE" in single.out, "at least two" in single.err) == (0, True, True)
    molflt("predict", run, val, "-o", out)
    as_it_is = _column(out, "uncertainty_eV")
    frames = ase.io.read(folder / "train.extxyz", ":")
    ase.io.write(tmp_path / "many.extxyz", 3 * frames)
    calibrated = molflt("predict", run, val, "-o", out, "--calibrate", tmp_path / "many.extxyz", "--overwrite")
    assert "± is a 68% interval calibrated on" in calibrated.err
    assert "(24 structures); ×" in calibrated.err
    scaled = _column(out, "uncertainty_eV")
    # A line in the spread, and no multiple of it.
    slope, floor = np.polyfit(as_it_is, scaled, 1)
    assert np.abs(slope * as_it_is + floor - scaled).max() < 1e-9 * scaled.max()
    assert slope > 0
    assert floor > 0
    assert len(json.loads(molflt("info", run, "--json").out)["members"]) == 2
    # The report of one member stands beside the model that it is of.
    assert f"report: {run / 'report-val.html'}" in molflt("evaluate", f"{run}#1", val).err
    first, default = (molflt("explain", model, "O", "--json") for model in (f"{run}#0", run))
    assert first.out == default.out
    assert f"an ensemble of 2 models; this is the first, {run}#0" in default.err
    assert "an ensemble" not in first.err
    # The average of one member's checkpoints is a model, and no file is replaced unasked.
    average = (
        "average",
        *sorted((run / "member-0").glob("epoch-*.safetensors")),
        "-o",
        tmp_path / "mean.safetensors",
    )
    assert len(average) == 5
    assert molflt(*average).status == 0
    assert molflt("info", tmp_path / "mean.safetensors").status == 0
    assert molflt(*average).status == 2


def _column(path, name):
    return np.array([float(row[name]) for row in rows_of(path)])


def test_average_of_what_is_not_of_one_run(model_path, loaded, tmp_path):
    """Constants of the model that differ in one number are found; the rest is in the tests of ensembles."""
    stored = loaded.model.state_dict()
    constants = [name for name, _ in loaded.model.named_buffers() if name in stored]
    assert constants
    for name in constants:
        changed = copy.deepcopy(loaded.model)
        dict(changed.named_buffers())[name].view(-1)[0] += 1
        save_model(tmp_path / "changed.safetensors", changed, loaded.metadata)
        with pytest.raises(InputError, match=f"'{name}' differs from that of"):
            average_models([model_path, tmp_path / "changed.safetensors"], tmp_path / "mean.safetensors")


def test_convert_reads_a_label_in_its_unit(molflt, folder, tmp_path):
    out = tmp_path / "a.lmdb"
    labels = ("--label", "E", "--unit", "kcal/mol", "--force-unit", "eV/Å")
    molflt("convert", folder / "val.extxyz", out, *labels, status=0)
    frames, structures = ase.io.read(folder / "val.extxyz", ":"), open_dataset(out)
    for atoms, data in zip(frames, structures, strict=True):
        assert float(data.energy) == pytest.approx(atoms.info["E"] / KCAL, rel=1e-7)
        np.testing.assert_array_equal(data.forces.numpy(), atoms.calc.results["forces"])


def test_a_report_that_cannot_be_written_spoils_no_evaluation(molflt, model_path, tiny_data, tmp_path, monkeypatch):
    shutil.copy(model_path, tmp_path / "model.safetensors")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("molflt.report.model.evaluation_report", full)
    result = molflt("evaluate", tmp_path / "model.safetensors", tiny_data / "other.lmdb", status=0)
    assert "MAE" in result.out
    assert "No space left" in result.err
