"""What makes ``pretrained:fg``: several runs in one file, its numbers, and pages that agree with them."""

import copy
import re

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.data.lmdb_writer import write_lmdb
from molflt.model.model_file import save_model
from molflt.prediction.evaluation import evaluate
from molflt.prediction.members import load_members, uncertainty_of
from molflt.report.adsorption import GUESSED
from scripts import results
from scripts.benchmarks import adsorb_guesses
from scripts.tools.fg import make, ship


@pytest.fixture
def runs(loaded, tmp_path):
    """Two models that differ, in files that know where they were trained."""
    paths = [tmp_path / f"{k}.safetensors" for k in (0, 1)]
    for k, path in enumerate(paths):
        other = copy.deepcopy(loaded)
        with torch.no_grad():
            other.model.energy_head.factor.mul_(1 + 0.3 * k)
        save_model(path, other.model, other.metadata.model_copy(update={"seed": k, "validation": {}}))
    return paths


@pytest.fixture
def val(tmp_path):
    """Carbon monoxide near two metals, at distances and with labels that are drawn."""
    random, records = np.random.default_rng(0), []
    for k in range(24):
        metal = ("Pt", "Cu")[k % 2]
        cell = [[9, 0, 0], [4.5, 8, 0], [0, 0, 20]]
        atoms = Atoms(f"{metal}2CO", np.arange(12.0).reshape(4, 3) + random.normal(size=(4, 3)), cell=cell, pbc=True)
        for key, value in {"tags": [0, 1, 2, 2], "fixed": [1, 0, 0, 0], "pos_relaxed": atoms.positions}.items():
            atoms.set_array(key, np.array(value))
        known = {"sid": k, "name": f"{metal.lower()}-1101-a", "group": ("amides", "oximes")[k % 3 % 2], "slice": 1}
        atoms.info |= {**known, "y_relaxed": random.normal(), "y_init": 0.0}
        records.append(make.to_record(atoms))
    write_lmdb(tmp_path / "val.lmdb", records, overwrite=False, resume=False)
    return str(tmp_path / "val.lmdb")


def test_an_ensemble_is_shipped(runs, val, tiny_data, tmp_path, monkeypatch):
    others = [{"by": "others", "of": "guessing", "mae": 1.5}]
    monkeypatch.setattr(ship, "others", lambda train, val: others)
    train = str(tiny_data / "train.lmdb")
    known, _ = ship.ship([str(path) for path in runs], "tiny", tmp_path, train, val)
    members = load_members(tmp_path / ship.MODEL)
    assert uncertainty_of(members) == known
    assert (known.n_members, known.n_structures, known.data) == (2, 24, val)
    assert {member.metadata.training_data.path for member in members} == {train}
    found = evaluate(members, val)
    np.testing.assert_array_equal(found.predicted, evaluate(list(map(str, runs)), val).predicted)
    error = np.abs(found.error)
    rows = results.read(tmp_path / ship.NUMBERS)
    of = {(row["by"], row["of"]): row for row in rows}
    copper = [k for k in range(24) if k % 2]
    assert float(of["metal", "Cu"]["mae"]) == pytest.approx(error[copper].mean(), rel=1e-5)
    assert float(of["metal", "Cu"]["uncertainty"]) == pytest.approx(found.std[copper].mean(), rel=1e-5)
    for by in ("metal", "group"):
        assert sum(int(row["n"]) for row in rows if row["by"] == by) == 24
        assert ship.table(by, rows).count("\n") == 2 + 2 + 1
    assert of["size", "up to 6"]["n"] == "24"
    assert "| seeds | 0, 1 |" in ship.table("file", rows)
    assert ship.table("contest", rows).splitlines()[2:] == [
        "| guessing | 1.500 |",
        f"| **`pretrained:fg`** | **{error.mean():.3f}** |",
    ]
    monkeypatch.setattr(ship, "LARGEST", 1000)
    before = (tmp_path / ship.MODEL).read_bytes()
    with pytest.raises(SystemExit, match=r"more than 0\.001"):
        ship.ship([str(path) for path in runs], "tiny", tmp_path, train, val)
    with pytest.raises(SystemExit, match="was not trained on"):
        ship.ship([str(runs[0])], "tiny", tmp_path, str(tiny_data / "val.lmdb"), val)
    other = load_members(str(runs[1]))[0]
    lies = other.metadata.model_copy(update={"validation": {"val/energy_mae": 0.5 * float(error.mean())}})
    save_model(tmp_path / "lies.safetensors", other.model, lies)
    with pytest.raises(SystemExit, match=r"lies.*its error on .* was .* and is"):
        ship.ship([str(runs[0]), str(tmp_path / "lies.safetensors")], "tiny", tmp_path, train, val)
    assert (tmp_path / ship.MODEL).read_bytes() == before
    assert sorted(path.name for path in (tmp_path / ship.MODEL).parent.iterdir()) == ["fg.safetensors"]


def test_cards_readme_and_demo_agree():
    """Whatever is said of a published model, a baseline or the shipped model is what docs/results/fg.csv has."""
    rows = results.read(results.ROOT / ship.NUMBERS)
    known = {row["of"].split(",")[0]: f"{float(row['mae']):.3f}" for row in rows if row["by"] == "others"}
    ours = next(f"{float(row['mae']):.3f}" for row in rows if row["by"] == "all")
    texts = {name: (results.ROOT / name).read_text("utf-8") for name in ("README.md", "scripts/demo.sh")}
    for name in ("data/fg/README.md", "molflt/pretrained/fg.md"):
        texts[name] = (results.ROOT / name).read_text("utf-8")
    for name, text in texts.items():
        said = re.findall(r"^[| ]+([^|\d]+?)(?:, total energies)?(?: \||  ) +(0\.\d{3})\b", text, re.M)
        mine = {what: number for what, number in said if what in known}
        assert {"GemNet-dT", "PaiNN", "DimeNet++"} <= mine.keys(), name
        assert mine == {what: known[what] for what in mine}, name
    for name in ("README.md", "molflt/pretrained/fg.md"):
        assert f"| **`pretrained:fg`** | **{ours}** |" in texts[name]
    guesses = [row for row in results.read(adsorb_guesses.KEPT) if row["answer"]]
    errors = [abs(float(row["answer"]) - float(row["y_relaxed"])) for row in guesses]
    below = f"{np.quantile(errors, 0.68):.2f} eV"
    assert GUESSED.endswith(f"68% of pretrained:fg's errors on {len(guesses)} structures were below {below}")
    shipped = load_members("pretrained:fg")
    uncertainty = uncertainty_of(shipped)
    assert uncertainty is not None
    said = {row["of"]: float(row["inside_68"]) for row in rows if row["by"] == "uncertainty"}
    assert list(said.values()) == pytest.approx(uncertainty.coverage, abs=1e-4)
