"""The bundled FG set and ``pretrained:fg``: what makes them, simple baselines, and pages that agree with both."""

import copy
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from ase import Atoms
from ase.io import read, write
from typer.testing import CliRunner

from molflt.adsorption import PLACING
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.oc20.writer import write_lmdb
from molflt.files import resolve_path
from molflt.model.config import LEVELS, WIDE, Uncertainty
from molflt.model.file import save_model
from molflt.prediction.evaluate import evaluate
from molflt.prediction.members import load_members, uncertainty_of
from molflt.vocabulary import TAG_ADSORBATE
from scripts import results
from scripts.benchmarks import adsorb_guesses
from scripts.results import ROOT
from scripts.tools.fg import describe, make, outside, ship

app = typer.Typer()
app.command()(make.main)


@pytest.fixture(scope="module")
def bundled():
    return {name: list(LmdbDataset(resolve_path(f"bundled:fg/{name}.lmdb"))) for name in ("train", "val")}


def row(name, number, energy):
    """Two atoms of metal and carbon monoxide, as the slices have it."""
    atoms = Atoms("Pt2CO", np.arange(12.0).reshape(4, 3), cell=[[9, 0, 0], [4.5, 8, 0], [0, 0, 20]], pbc=True)
    for key, value in {"tags": [0, 1, 2, 2], "fixed": [1, 0, 0, 0], "pos_relaxed": atoms.positions + 0.1}.items():
        atoms.set_array(key, np.array(value))
    metal, molecule, _ = name.split("-")
    known = {"sid": 7, "name": name, "metal": metal, "molecule": molecule, "group": "amides", "slice": number}
    atoms.info.update({**known, "y_relaxed": energy, "y_init": 2 * energy})
    return atoms


def test_it_is_made_from_the_slices(tmp_path):
    """Every field arrives, in the order of the slices; names like numbers stay text; twice the same bytes."""
    (tmp_path / "fg").mkdir()
    for number in (1, 2, 3, 4):
        write(tmp_path / "fg" / f"slice{number}.extxyz.gz", [row("pt-13_1-a", number, -number)], format="extxyz")
    for out in ("one", "two"):
        done = CliRunner().invoke(app, ["--source", str(tmp_path), "--out", str(tmp_path / out)])
        assert done.exit_code == 0, done.output
    train, (val,) = (list(LmdbDataset(tmp_path / "one" / f"{name}.lmdb")) for name in ("train", "val"))
    assert [float(data.y_relaxed) for data in train] == [-2, -3, -4]
    assert (val.name, val.metal, val.molecule, val.group, val.slice) == ("pt-13_1-a", "Pt", "13_1", "amides", "1")
    assert (float(val.y_relaxed), float(val.y_init), int(val.sid)) == (-1, -2, 7)
    assert val.tags.tolist() == [0, 1, 2, 2]
    assert val.fixed.tolist() == [True, False, False, False]
    assert bool(val.pbc.all())
    expected = row("pt-13_1-a", 1, 0)
    np.testing.assert_allclose(val.positions, expected.positions, atol=1e-6)
    np.testing.assert_allclose(val.positions_relaxed, expected.arrays["pos_relaxed"], atol=1e-6)
    np.testing.assert_allclose(val.cell[0], expected.cell[:], atol=1e-6)
    for name in ("train.lmdb", "val.lmdb"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    again = CliRunner().invoke(app, ["--source", str(tmp_path / "no such folder"), "--out", str(tmp_path / "three")])
    assert again.exit_code == 2
    assert "no such file" in again.output


@pytest.mark.slow
def test_what_the_data_card_says(bundled):
    everything = [*bundled["train"], *bundled["val"]]
    assert [len(bundled[name]) for name in ("train", "val")] == [1826, 616]
    assert {data.slice for data in bundled["val"]} == {"1"}
    assert Counter(data.slice for data in bundled["train"]) == {"2": 612, "3": 614, "4": 600}
    assert len({int(data.sid) for data in everything}) == len(everything)
    assert len({data.molecule for data in everything}) == 203
    assert len({data.metal for data in everything}) == 14
    for data in everything[::20]:
        assert int((data.tags < TAG_ADSORBATE).sum()) == 48
        assert torch.equal(data.fixed, data.tags == 0)
        assert torch.equal(data.positions[data.fixed], data.positions_relaxed[data.fixed])
    size = sum(path.stat().st_size for path in (ROOT / "data" / "fg").glob("*.lmdb"))
    assert size < 10 * 2**20


@pytest.mark.slow
@pytest.mark.skipif("MOLFLT_DATA" not in os.environ, reason="MOLFLT_DATA is not set")
def test_it_is_what_the_publishers_give():
    """The last rows of a slice against the extended xyz, read by ASE."""
    rows = read(Path(os.environ["MOLFLT_DATA"]) / "fg" / "slice1.extxyz.gz", index="-3:", format="extxyz")
    val = LmdbDataset(resolve_path("bundled:fg/val.lmdb"))
    last = [val[i] for i in range(len(val) - 3, len(val))]
    for atoms, data in zip(rows, last, strict=True):
        assert data.name == atoms.info["name"]
        assert float(data.y_relaxed) == atoms.info["y_relaxed"]
        np.testing.assert_allclose(data.positions, atoms.positions, atol=1e-5)
        np.testing.assert_allclose(data.positions_relaxed, atoms.arrays["pos_relaxed"], atol=1e-5)


def test_baselines_on_a_table_that_can_be_solved_by_hand():
    """Energy = metal's share + metal's share of every carbon: the ridge is exact to its penalty."""
    metals, carbons = (np.array(values) for values in zip(*((m, c) for m in "AB" for c in range(40)), strict=True))
    carbons = carbons.astype(int)
    energies = np.where(metals == "A", -1.0 - 0.5 * carbons, 2.0 + 0.25 * carbons)
    molecules = np.array([f"C{c}" for c in carbons])
    known = describe.Table(energies, metals, molecules, molecules, carbons[:, None].astype(float))
    pick = (carbons == 7) | (carbons == 20)
    few = describe.Table(*(value[pick] for value in vars(known).values()))
    rest = describe.Table(*(value[~pick] for value in vars(known).values()))
    np.testing.assert_allclose(describe.ridge(rest, few), few.energies, atol=0.5)
    assert np.abs(describe.mean(rest, few) - few.energies).mean() > 4
    # Between the two neighbours, on the same metal.
    np.testing.assert_allclose(describe.nearest(rest, few), few.energies)
    np.testing.assert_allclose(describe.mean_of_molecule(rest, few), rest.energies.mean())
    np.testing.assert_allclose(
        describe.mean_of_molecule(known, few),
        [known.energies[known.molecules == name].mean() for name in few.molecules],
    )


@pytest.fixture
def runs(loaded, tmp_path):
    paths = [tmp_path / f"{k}.safetensors" for k in (0, 1)]
    for k, path in enumerate(paths):
        other = copy.deepcopy(loaded)
        with torch.no_grad():
            other.model.energy_head.factor.mul_(1 + 0.3 * k)
        save_model(path, other.model, other.metadata.model_copy(update={"seed": k, "validation": {}}))
    return paths


@pytest.fixture
def val(tmp_path):
    random, records = np.random.default_rng(0), []
    for k in range(24):
        atoms = row(f"{('pt', 'cu')[k % 2]}-1101-a", 1, random.normal())
        atoms.positions += random.normal(size=(4, 3))
        atoms.info |= {"sid": k, "group": ("amides", "oximes")[k % 3 % 2]}
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
    assert float(of["metal", "Cu"]["uncertainty"]) == pytest.approx(found.uncertainty_eV[copper].mean(), rel=1e-5)
    for by in ("metal", "group"):
        assert sum(int(row["n"]) for row in rows if row["by"] == by) == 24
        assert ship.table(by, rows).count("\n") == 2 + 2 + 1
    assert of["size", "up to 6"]["n"] == "24"
    assert "| seeds | 0, 1 |" in ship.table("file", rows)
    assert ship.table("contest", rows).splitlines()[2:] == [
        "| guessing | 1.500 |",
        f"| **`pretrained:fg`** | **{error.mean():.3f}** |",
    ]


def test_cards_and_demo_agree():
    """Whatever is said of a published model, a baseline or the shipped model is what docs/results/fg.csv has."""
    rows = results.read(results.ROOT / ship.NUMBERS)
    known = {row["of"].split(",")[0]: f"{float(row['mae']):.3f}" for row in rows if row["by"] == "others"}
    ours = next(f"{float(row['mae']):.3f}" for row in rows if row["by"] == "all")
    names = ("scripts/demo.sh", "data/fg/README.md", "molflt/pretrained/fg.md")
    texts = {name: (results.ROOT / name).read_text("utf-8") for name in names}
    for name, text in texts.items():
        said = re.findall(r"^[| ]+([^|\d]+?)(?:, total energies)?(?: \||  ) +(0\.\d{3})\b", text, re.M)
        mine = {what: number for what, number in said if what in known}
        assert {"GemNet-dT", "PaiNN", "DimeNet++"} <= mine.keys(), name
        assert mine == {what: known[what] for what in mine}, name
    assert f"| **`pretrained:fg`** | **{ours}** |" in texts["molflt/pretrained/fg.md"]
    guesses = [row for row in results.read(adsorb_guesses.KEPT) if row["answer"] and row["held_out"] == "slice1"]
    errors = [abs(float(row["answer"]) - float(row["y_relaxed"])) for row in guesses]
    widths = [np.hypot(float(row["uncertainty_eV"]), PLACING) for row in guesses]
    assert np.mean(np.less(errors, widths)) == pytest.approx(0.683, abs=0.02)
    shipped = load_members("pretrained:fg")
    uncertainty = uncertainty_of(shipped)
    said = {row["of"]: row for row in rows if row["by"] == "uncertainty"}
    inside = [float(row["inside_68"]) for of, row in said.items() if "outside" not in of]
    assert inside == pytest.approx(uncertainty.coverage, abs=1e-4)
    of = {"others": (uncertainty.outside_floor, uncertainty.outside), **uncertainty.by_rule}
    for rule, (floor, multiples) in of.items():
        assert said[f"95.0%, outside: {rule}"]["n"] == f"{multiples[LEVELS.index(WIDE)]:.2f} × (s + {floor:.3f} eV)"
    assert {*uncertainty.by_rule} == {*outside.RULES.values()}


def test_intervals_outside_are_those_of_the_rule_that_is_broken():
    """Errors of one metal, of larger adsorbates and of all else differ tenfold, so that no other could do."""
    random = np.random.default_rng(0)
    scales = {"Zn": 0.1, "Pt": 0.1, "size": 10.0, "size7": 10.0, "amidines": 1.0}
    errors = {
        name: (abs(random.normal(scale=scale, size=1600)), np.full(1600, 0.2)) for name, scale in scales.items()
    }
    bare = Uncertainty(
        n_members=2, floor=0.0, multiples=[1e-6] * 4, coverage=[0.5] * 4, data="drawn", n_structures=400
    )
    known = outside.extended(bare, errors)
    widths = known.half_width(np.full(4, 0.2), broken=[{"elements"}, {"size"}, {"bond"}, {}])
    assert widths == pytest.approx([0.1, 10.0, 1.0, 0.0], rel=0.1, abs=1e-6)
    found = {row["of"]: row["inside_68"] for row in outside.rows(errors, bare)}
    assert found == {name: pytest.approx(0.683, abs=0.06) for name in ("Zn", "Pt", "size", "size7")}
    assert outside.rows(errors, known, test=True)[-1]["inside_68"] == pytest.approx(0.683, abs=0.01)
