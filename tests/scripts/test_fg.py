"""The bundled FG set, what makes it, its divisions and its baselines."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from ase import Atoms
from ase.io import read, write
from typer.testing import CliRunner

from molflt.data.oc20.lmdb import LmdbDataset
from molflt.files import resolve_path
from molflt.vocabulary import TAG_ADSORBATE
from scripts.benchmarks import fg_splits
from scripts.benchmarks.accuracy_data import split
from scripts.results import ROOT
from scripts.tools.fg import describe, make

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
    """Counts, units and invariants of the bundled files."""
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


@pytest.mark.slow
def test_divisions_hold_out_what_they_say(bundled, tmp_path, monkeypatch):
    everything = [*bundled["train"], *bundled["val"]]
    held_out = {name: [data for data in everything if rule(data)] for name, rule in fg_splits.RULES.items()}
    assert {name: len(found) for name, found in held_out.items()} == {
        "Pt": 179,
        "Cu": 173,
        "Zn": 166,
        "amidines": 436,
        "carbamate-esters": 167,
        "molecules": 234,
        "size": 2062,
        "slice1": 616,
        "slice2": 612,
        "slice3": 614,
        "slice4": 600,
    }
    names = sorted({data.molecule for data in everything})
    assert set(np.random.default_rng(0).permutation(names)[:20]) == set(fg_splits.MOLECULES)
    monkeypatch.setattr(fg_splits, "LmdbDataset", lambda path: bundled[path.stem][:40])
    files = split("fg-size", 0, tmp_path)
    parts = [list(LmdbDataset(Path(path))) for path in (files.train, files.held_out["test"])]
    sizes = [{int((data.tags == TAG_ADSORBATE).sum()) for data in part} for part in parts]
    assert max(sizes[0]) <= fg_splits.MOST_ATOMS < min(sizes[1])
    assert sum(map(len, parts)) == 80


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
