"""Python has what the command line has: training, evaluation and models, without files of configuration or argv."""

import subprocess
import sys
import types

import ase.io
import numpy as np
import pytest

import molflt
from molflt.data.ase import to_atoms
from molflt.data.open import open_dataset
from molflt.errors import InputError
from molflt.training.yaml import load_config, make_config
from tests.training.runs import assert_same_run, quiet, written


def test_what_there_is():
    names = {"load", "train", "evaluate", "Model", "Run", "Evaluation", "Prediction", "InputError", "__version__"}
    assert names <= set(dir(molflt))
    assert all(getattr(molflt, name) is not None for name in dir(molflt))
    assert molflt.InputError is InputError
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = molflt.lode
    heavy = "{'torch', 'numpy', 'ase', 'rdkit', 'pydantic'}"
    light = f"import molflt, sys; dir(molflt); assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", light], check=True, timeout=120)


@pytest.fixture
def values(make_config):
    return make_config().model_dump(exclude_unset=True)


def test_train(values, tiny_run, tmp_path):
    values["trainer"]["max_epochs"] = 9
    run = molflt.train(values, tmp_path / "run", say=quiet, trainer={"max_epochs": 2})
    assert_same_run(run.folder, tiny_run)
    assert [record["epoch"] for record in run.records] == [1, 2]
    assert run.best == min(record["val/energy_mae"] for record in run.records)
    assert run.model.predict("O") == pytest.approx(molflt.load(tiny_run).predict("O"))
    # It goes on where it stood, for longer.
    longer = molflt.train(values, run.folder, resume=True, say=quiet, **{"trainer.max_epochs": 3})
    assert [record["epoch"] for record in longer.records] == [1, 2, 3]
    members = molflt.train(values, tmp_path / "two", say=quiet, ensemble=2, trainer={"max_epochs": 1})
    assert len(members.model.members) == 2
    assert len(members.records) == 2


def test_configurations(values, tmp_path):
    expected = make_config(values, {"data.max_atoms": 7})
    file = written(make_config(values, {}), tmp_path)
    assert load_config(file, ["data.max_atoms=7"]) == expected
    assert make_config(file, {"data": {"max_atoms": 7}}) == expected
    assert make_config(expected, {}) == expected
    found = make_config("tiny", {"data": {"train": tmp_path / "a.xyz", "val": tmp_path / "b.xyz"}})
    assert found.data.train == str(tmp_path / "a.xyz")
    assert found.data.val == {"val": str(tmp_path / "b.xyz")}
    assert found.model.dim == 64
    with pytest.raises(InputError, match=r"trainer\.max_epoch: there is no such key; did you mean trainer"):
        make_config(values, {"trainer": {"max_epoch": 3}})
    with pytest.raises(InputError, match="data: is missing"):
        make_config({}, {})
    with pytest.raises(InputError, match="seed: must be a valid integer"):
        make_config(values, {"seed": object()})


def test_evaluate(tiny_run, tiny_data, monkeypatch):
    path = tiny_data / "val.lmdb"
    found = molflt.evaluate(tiny_run, path)
    labels = np.array([float(data.y_relaxed) for data in open_dataset(path)])
    predicted = molflt.load(tiny_run).predict(path)
    assert found.mae == pytest.approx(np.abs(predicted - labels).mean())
    assert repr(found) == f"Evaluation('val', 10 structures, MAE {found.mae:.4f} eV)"
    frames = [to_atoms(data) for data in open_dataset(path)]
    again = molflt.evaluate(molflt.load(tiny_run), frames)
    assert again.mae == pytest.approx(found.mae)
    assert again.table.formulas == found.table.formulas
    for atoms in frames:
        atoms.info["E"] = atoms.info["y_relaxed"] * 1000
    assert molflt.evaluate(tiny_run, frames, label="E", unit="meV").mae == pytest.approx(found.mae)
    with pytest.raises(InputError, match="no label"):
        molflt.evaluate(tiny_run, [ase.Atoms("O")])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        found.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=dict))
    table = found.to_pandas()
    assert list(table) == ["name", "formula", "n_atoms", "expected", "predicted", "error"]
    assert np.abs(table["error"]).mean() == pytest.approx(found.mae)
