"""``molflt check-invariance`` on the tiny trained model."""

import json

import pytest
import torch

from molflt.cli.terminal import Verbosity
from molflt.model.energy import EnergyModel


def test_table_and_verdict(molflt, model_path, tiny_data):
    command = (
        "check-invariance",
        model_path,
        tiny_data / "val.lmdb",
        "--dtype",
        "float64",
        "--draws",
        1,
        "--limit",
        4,
    )
    result = molflt(*command, status=0)
    assert "rotation" not in result.out
    assert len(result.out.splitlines()) <= 10
    # One line says it all, and with --quiet it is the only one.
    (verdict,) = [line for line in result.out.splitlines() if line.startswith("PASS")]
    assert "on 4 structures: all" in verdict
    assert "hold, in float64" in verdict
    assert "rotation" in molflt(*command, "-v").out
    Verbosity.set(quiet=False, verbose=False)
    assert molflt(*command, "--quiet").out == f"{verdict}\n"
    assert "of their spread" in result.out


def test_json(molflt, model_path):
    command = ("check-invariance", model_path, "CCO", "O", "--json", "--draws", 1, "--dtype", "float32")
    content = json.loads(molflt(*command, status=0).out)
    assert content["verdict"] == "pass"
    assert content["structures"] == 2
    assert content["far_share"] >= 0
    wrapping = next(r for r in content["results"] if r["name"] == "image wrapping")
    assert wrapping["verdict"] == "not applicable"
    assert wrapping["worst"] is None


def test_drift_between_precisions(molflt, model_path):
    import molflt as package

    atoms = ["CCO", "O", "c1ccccc1"]
    # One conformer of each, as the command takes: the lowest of several is rounded otherwise.
    single = package.load(model_path).predict(atoms, conformers=1)
    double = package.load(model_path, dtype=torch.float64).predict(atoms, conformers=1)
    result = molflt("check-invariance", model_path, *atoms, "--json", "--draws", 1, status=0)
    drift = json.loads(result.out)["float32_drift"]
    assert 0 < drift["median"] <= drift["worst"] < 1e-4
    assert drift["worst"] == pytest.approx(abs(single - double).max(), rel=0.5)
    text = molflt("check-invariance", model_path, *atoms, "--draws", 1).out
    assert f"energies move by {drift['worst']:.1e} eV at worst" in text
    alone = molflt("check-invariance", model_path, *atoms, "--json", "--draws", 1, "--dtype", "float64")
    assert json.loads(alone.out)["float32_drift"] is None


def test_a_failure_is_status_one(molflt, model_path, monkeypatch):
    sound = EnergyModel.forward

    def broken(self, batch, n_max=None):
        output = sound(self, batch, n_max)
        output.energy = output.energy + 1e-3 * batch.positions[:, 0].sum()
        return output

    monkeypatch.setattr(EnergyModel, "forward", broken)
    result = molflt("check-invariance", model_path, "CCO", "--draws", 1, "--dtype", "float64", status=1)
    assert "FAILED" in result.out
    assert "translation" in result.out.split("FAILED")[1]


def test_a_model_without_a_far_field(molflt, performer_path):
    arguments = ("check-invariance", performer_path, "--draws", 1, "--dtype", "float64")
    result = molflt(*arguments, "CCO", "O", status=0)
    assert "This model has no Fourier far field." in result.out
    # of the elements of the built-in structures it knows hardly any
    assert "give structures of your own" in " ".join(molflt(*arguments).err.split())
