"""Warnings of a training and an evaluation about data that look wrong: totals, other units, leaks, too few steps."""

import json
import re

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.data.quality.labels import free_atoms
from tests.training.runs import QUICK, written

HARTREE = 27.211386


def _frames(n, seed):
    """Molecules with invented totals of all electrons: what the elements leave depends on the geometry."""
    random = np.random.default_rng(seed)
    found = []
    for k in range(n):
        atoms = molecule(("H2O", "CH4", "CH3OH", "CO2", "NH3", "C2H6")[k % 6])
        atoms.positions += random.normal(size=(len(atoms), 3)) * 0.1
        energy = free_atoms()[atoms.numbers].sum() + atoms.get_all_distances().std() * 3
        atoms.info |= {"E_au": energy / HARTREE, "E_kcal": energy * 23.0605, "energy": energy}
        found.append(atoms)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suspicious")
    train, val = _frames(24, 0), _frames(12, 1)
    ase.io.write(folder / "train.extxyz", train)
    ase.io.write(folder / "val.extxyz", val)
    copies = [atoms.copy() for atoms in train[4:7]]
    for atoms in copies:
        atoms.rotate(50, (1, 2, 3))
    ase.io.write(folder / "leaky.extxyz", [*val[:5], *copies])
    return folder


@pytest.fixture
def train(molflt, make_config, folder, tmp_path):
    sets = {"data.train": str(folder / "train.extxyz"), "data.val": str(folder / "val.extxyz")}
    config = make_config(**QUICK, **sets, **{"optimiser.warmup_steps": 1})
    path = written(config, tmp_path)
    return lambda *more, **how: molflt("train", path, "--out", tmp_path / "run", "--no-report", *more, **how)


def test_totals_in_hartree(train, molflt, folder, tmp_path):
    refused = train("data.label=E_au", status=2)
    assert "are total energies in Hartree" in refused.err
    assert "Give data.unit=Hartree data.target=energy" in refused.err
    assert not (tmp_path / "run").exists()
    trained = train("data.label=E_au", "data.unit=Hartree", "data.target=energy")
    assert (trained.status, "Warning" in trained.err) == (0, False), trained
    # The share is of what references leave: a tenth of an eV, not the 1,000 eV between water and ethane.
    run, val = tmp_path / "run", folder / "val.extxyz"
    good = molflt("evaluate", run, val, "--json", "--label", "energy", "--unit", "eV")
    content = json.loads(good.out)
    assert content["warnings"] == []
    assert 0.01 < content["mad"] < 10
    record = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8"))
    assert f"({record['val/energy_mae'] / content['mad']:.3f} of MAD)" in trained.err
    page = molflt("evaluate", run, val, "--report", tmp_path / "r.html")
    assert "after subtracting the elements' energies" in page.out
    assert "expected energy − references" in (tmp_path / "r.html").read_text(encoding="utf-8")
    wrong = molflt("evaluate", run, val, "--label", "E_kcal", "--unit", "eV", status=2)
    assert "--unit kcal/mol" in wrong.err


def test_a_label_that_is_not_there(train):
    refused = train(status=2)
    assert "--task energy" in refused.err


def test_one_wrong_label_is_named_and_not_blamed_on_all(train, molflt, folder, tmp_path):
    frames = ase.io.read(folder / "train.extxyz", ":")
    for k, atoms in enumerate(frames):
        forces = np.random.default_rng(k).normal(size=(len(atoms), 3))
        energy = atoms.get_potential_energy() + 5000 * (k == 7)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces * 300 ** (k == 5))
    bad = tmp_path / "bad.extxyz"
    ase.io.write(bad, frames)
    given = ("data.target=energy", "loss.force_weight=1", f"data.val={bad}", "--quiet")
    trained = train(f"data.train={bad}", *given)
    evaluated = molflt("evaluate", tmp_path / "run", bad, "--no-report", "--forces")
    for result in (trained, evaluated):
        assert result.status == 0, result
        text = " ".join(result.err.split())
        assert re.search(
            r"bad\.extxyz#7: its energy is 5,00\d eV from what composition explains \(the others: ", text
        )
        assert re.search(r"bad\.extxyz#5: the root mean square of its forces is [23]\d\d eV/Å", text)
        # Nothing is said of the whole set, such as another unit of all forces.
        assert "force-unit" not in text
        assert "data.unit" not in text


def test_leaks(train, molflt, folder, tmp_path):
    result = train("data.target=energy", f"data.val={folder / 'leaky.extxyz'}", "--quiet", "--report", status=0)
    text = " ".join(result.err.split())
    assert "val: 3 of 8 structures are in the training set as well" in text
    assert "leaky.extxyz#5 (" in text
    assert "train.extxyz#4)" in text
    own = molflt("evaluate", tmp_path / "run", folder / "train.extxyz", "--report", tmp_path / "own.html")
    assert "the model was trained on it" in own.err
    for report, words in (("run/report.html", "val: 3 of 8 structures"), ("own.html", "the model was trained on it")):
        overview = (tmp_path / report).read_text(encoding="utf-8").partition('<section id="overview">')[2]
        assert words in overview.partition("</section>")[0], report


def test_structures_unlike_those_of_training(train, molflt, folder, tmp_path):
    """Of validation structures, with ``--quiet`` too; in the page, one reason to a line."""
    frames = ase.io.read(folder / "val.extxyz", index=":")
    strange, tagged = molecule("SiH4"), molecule("CO2")
    strange.calc, tagged.calc = (SinglePointCalculator(atoms, energy=-5000.0) for atoms in (strange, tagged))
    tagged.set_tags(2)
    ase.io.write(tmp_path / "val.extxyz", [*frames[:4], strange, tagged])
    sets = ("data.target=energy", f"data.val={tmp_path / 'val.extxyz'}")
    result = train(*sets, "--quiet", "--report", status=0)
    said = "val: 2 of 6 structures have something that training never saw; their errors are unreliable, and val"
    assert said in result.err
    reasons = ["#4: the model was not trained on Si", "#5: C with tag 2, and 0 in training"]
    assert [line.partition("val.extxyz")[2] for line in result.err.split("\n") if "val.extxyz#" in line] == reasons
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for reason in reasons:
        assert f"val.extxyz{reason}</li>" in page
    evaluated = molflt("--quiet", "evaluate", tmp_path / "run", tmp_path / "val.extxyz", "--no-report")
    assert "2 of 6 structures are outside the training domain" in evaluated.err
    # A set like the one that was trained on has nothing of the kind.
    assert "never saw" not in train("data.target=energy", f"data.val={folder / 'val.extxyz'}", "--resume=auto").err


def test_compositions_that_leave_reference_energies_open(train, folder, tmp_path):
    water = [atoms for atoms in ase.io.read(folder / "train.extxyz", index=":") if str(atoms.symbols) == "OH2"]
    ase.io.write(tmp_path / "water.extxyz", water)
    result = train("data.target=energy", f"data.train={tmp_path / 'water.extxyz'}", "--quiet")
    text = " ".join(result.err.split())
    assert "Note: all compositions of training are combinations of H2O, so the energies of H and O" in text
    assert "H and O are determined only together" in text
    assert "CH4, no combination of those" not in text
    assert "val: 10 of 12 structures have something that training never saw" in text
    alike = train("data.target=energy", "--out", tmp_path / "other").err
    assert "compositions of training" not in alike
    assert "never saw" not in alike


def test_too_few_steps_for_the_warm_up(train):
    result = train("data.target=energy", "optimiser.warmup_steps=100")
    assert "so the warm-up takes 1 instead of optimiser.warmup_steps=100" in " ".join(result.err.split())
