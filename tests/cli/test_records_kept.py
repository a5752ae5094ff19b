"""Names and columns of a record come back with its prediction; every command reads tags as it is asked to."""

import json

import ase.db
import ase.io
import numpy as np
import pytest
from ase.build import add_adsorbate, bulk, fcc111
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian, Hookean

from molflt.data.ase import to_atoms
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.prediction.evaluate import evaluate
from molflt.report.model import evaluation_report
from tests.conftest import rows_of
from tests.training.runs import written


def test_columns_and_names_come_back_also_of_skipped_rows(molflt, model_path, tmp_path):
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text("name;smiles;Exp;error\nethanol;CCO;-2.5;=1+1\nwrong;C(;3;\n;O;;x\n", encoding="utf-8")
    assert molflt("predict", model_path, table, "-o", out, "--on-error", "skip").status == 0
    rows = rows_of(out)
    assert [row["name"] for row in rows] == ["ethanol", "wrong", f"{table}#2 (O)"]
    assert [row["smiles"] for row in rows] == ["CCO", "C(", "O"]
    assert [row["Exp"] for row in rows] == ["-2.5", "3", ""]
    assert [row["input_error"] for row in rows] == ["'=1+1", "", "x"]
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert "(wrong)" in rows[1]["record"]
    # In parts, the same.
    shards = [f"{number}/2" for number in (1, 2)]
    for shard in shards:
        command = ("predict", model_path, table, "-o", tmp_path / "m.csv", "--on-error", "skip", "--shard", shard)
        assert molflt(*command).status == 0
    parts = sorted(tmp_path.glob("m.csv.shard*"))
    merged = molflt("merge", *parts, "-o", tmp_path / "m.csv", status=0)
    assert "1 skipped" in merged.err
    assert rows_of(tmp_path / "m.csv") == rows
    refused = molflt("merge", *parts, "-o", tmp_path / "m.npz", "--oc20-split", "id", status=2)
    assert "a submission needs every structure" in refused.err


def test_extxyz_keeps_its_info(molflt, model_path, tmp_path):
    atoms = fcc111("Cu", (1, 1, 3), vacuum=6.0)
    atoms.set_tags(0)
    atoms.info.update(doi="10.1/x", trial=3, vector=[1.0, 2.0, 3.0], energy=-76.4, y_init=0.5)
    ase.io.write(tmp_path / "a.extxyz", atoms)
    for ending in ("extxyz", "csv"):
        assert molflt("predict", model_path, tmp_path / "a.extxyz", "-o", tmp_path / f"o.{ending}").status == 0
    info = ase.io.read(tmp_path / "o.extxyz").info
    assert (info["doi"], info["trial"], list(info["vector"])) == ("10.1/x", 3, [1.0, 2.0, 3.0])
    (row,) = rows_of(tmp_path / "o.csv")
    assert (row["doi"], row["trial"], row["vector"]) == ("10.1/x", "3", "")
    # The labels of the file, beside what is predicted.
    assert (row["energy"], row["y_init"]) == ("-76.4", "0.5")
    assert float(row["y_relaxed_eV"]) == pytest.approx(info["predicted_y_relaxed"])


@pytest.mark.parametrize("through", ["traj", "lmdb"])
def test_extxyz_keeps_what_its_format_holds(through, molflt, model_path, tmp_path):
    """Read and predicted, or converted in between; what is left behind is named once, with the first structure."""
    frames = []
    for k in range(2):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.05, seed=k)
        atoms.set_constraint([FixAtoms([0]), FixCartesian([1], (True, True, False)), Hookean(2, 3, 5.0, 2.0)])
        atoms.set_initial_magnetic_moments([1, 0, 0, -1])
        atoms.set_masses([63, 64, 65, 66])
        atoms.arrays["momenta"] = np.full((4, 3), 0.25 + k)
        atoms.info.update(config_type="bulk", run_id=k, spectrum=np.arange(12.0))
        atoms.calc = SinglePointCalculator(
            atoms, energy=-14.5, free_energy=-14.6, forces=np.full((4, 3), 0.1), stress=np.arange(6) * 0.01
        )
        frames.append(atoms)
    source, out = tmp_path / "a.traj", tmp_path / "o.extxyz"
    ase.io.write(source, frames)
    if through == "lmdb":
        converted = molflt("convert", source, tmp_path / "a.lmdb")
        assert (converted.status, "Warning" in converted.err) == (0, False)
        source = tmp_path / "a.lmdb"
    done = molflt("predict", model_path, source, "-o", out, "--quiet")
    left = f"{out}: extxyz has no place for constraint Hookean (2 structures, first: {tmp_path / 'a.traj'}#0)"
    assert left in " ".join(done.err.split())
    assert done.err.count("has no place") == 1
    for before, after in zip(frames, ase.io.read(out, ":"), strict=True):
        # The calculator's place is that of the prediction; the file's own results keep another name.
        assert after.calc.results == {"energy": after.info["predicted_y_relaxed"]}
        for key, value in before.calc.results.items():
            kept = after.arrays if key == "forces" else after.info
            np.testing.assert_allclose(kept[f"input_{key}"], value, atol=1e-8, err_msg=key)
        for key in ("initial_magmoms", "masses", "momenta", "numbers", "positions"):
            np.testing.assert_allclose(after.arrays[key], before.arrays[key], atol=1e-8, err_msg=key)
        assert (after.info["config_type"], after.info["run_id"]) == ("bulk", before.info["run_id"])
        assert after.info["spectrum"].tolist() == list(range(12))
        masks = {int(c.index[0]): c.mask.tolist() for c in after.constraints if c.mask.any()}
        assert masks == {0: [True] * 3, 1: [True, True, False]}


def test_a_converted_table_is_the_table(molflt, model_path, tmp_path):
    """Molecules of several conformers: the same energies, names and columns, and the same doubts."""
    table = tmp_path / "in.csv"
    table.write_text("smiles,name,energy,id\nOCC(N)CO,serinol,-1,17\nCC(=O)NCC(O)CN,amide,-2,=1\n", encoding="utf-8")
    assert molflt("convert", table, tmp_path / "in.lmdb").status == 0
    for source in ("in.csv", "in.lmdb"):
        assert molflt("predict", model_path, tmp_path / source, "-o", tmp_path / f"{source}.csv").status == 0
    rows = rows_of(tmp_path / "in.csv.csv")
    assert rows_of(tmp_path / "in.lmdb.csv") == rows
    assert [(row["name"], row["energy"], row["id"]) for row in rows] == [
        ("serinol", "-1", "17"),
        ("amide", "-2", "'=1"),
    ]
    assert all(int(row["conformers"]) > 1 for row in rows)


def test_convert_names_what_it_leaves_behind(molflt, tmp_path):
    with ase.db.connect(tmp_path / "a.db") as database:
        for k in range(2):
            database.write(bulk("Cu"), run=k, data={"overlap": 1j, "levels": np.arange(20.0)})
    converted = molflt("convert", "--quiet", tmp_path / "a.db", tmp_path / "a.lmdb", status=0)
    assert converted.err.count("no place for info 'overlap' (2 structures, first:") == 1
    found = [to_atoms(data).info for data in open_dataset(tmp_path / "a.lmdb")]
    assert [info["run"] for info in found] == [0, 1]
    assert found[0]["levels"].tolist() == list(range(20))


def test_largest_errors_bear_the_names_of_the_records(loaded, tmp_path):
    table = tmp_path / "in.csv"
    table.write_text("smiles,ID,y_relaxed\nCCO,mol-17,-2.5\nO,,1\n", encoding="utf-8")
    found = evaluate(loaded, str(table))
    evaluation_report(tmp_path / "r.html", [loaded], [found])
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "in.csv#0 (mol-17)" in page
    assert "in.csv#1 (O)" in page


@pytest.fixture
def layers(tmp_path):
    frames = []
    for k in range(6):
        atoms = fcc111("Cu", (1, 1, 3), vacuum=6.0)
        add_adsorbate(atoms, "O", 1.5 + 0.05 * k, "fcc")
        atoms.info["y_relaxed"] = 0.1 * k
        frames.append(atoms)
    ase.io.write(tmp_path / "layers.extxyz", frames)
    return tmp_path / "layers.extxyz"


def test_layers_in_every_command_that_reads_data(molflt, model_path, layers, make_config, tmp_path):
    assert open_dataset(layers, ReadOptions(tags="layers"))[0].tags.tolist() == [0, 0, 1, 2]
    commands = [
        ("predict", model_path, layers),
        ("evaluate", model_path, layers, "--no-report"),
        ("info", layers),
        ("check-invariance", model_path, layers, "--limit", "1", "--draws", "1", "--dtype", "float64"),
        ("explain", model_path, layers, "--index", "0", "-o", tmp_path / "e.html"),
        ("plot", "parity", model_path, layers, "-o", tmp_path / "p.png"),
        ("convert", layers, tmp_path / "c.lmdb"),
    ]
    for command in commands:
        refused = molflt(*command, status=2)
        assert "--tags layers" in refused.err, command
        read = molflt(*command, "--tags", "layers")
        # Whether a model of a few steps passes is no matter here.
        assert read.status == 0 or command[0] == "check-invariance", read
        assert "--tags layers" not in read.err
    config = make_config(**{"data.train": str(layers), "data.val": {"val": str(layers)}, "trainer.max_epochs": 1})
    command = ("train", written(config, tmp_path), "--out", tmp_path / "run", "--no-report")
    refused = molflt(*command)
    assert (refused.status, "data.tags=layers" in refused.err) == (2, True)
    assert molflt(*command, "data.tags=layers").status == 0
    assert json.loads(molflt("info", tmp_path / "run", "--json").out)["target"] == "y_relaxed"


def _lmdb(path, *changes):
    """A relaxed slab with an adsorbate in each record, changed; None takes a field away."""
    slab = fcc111("Cu", (1, 1, 3), vacuum=6.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    whole = {"pos": slab.positions, "pos_relaxed": slab.positions, "cell": np.array(slab.cell), "y_relaxed": -1.0}
    whole |= {"atomic_numbers": slab.numbers, "tags": np.array([0, 0, 1, 2])}
    records = [{k: v for k, v in {**whole, **change}.items() if v is not None} for change in changes]
    write_lmdb(path, records, progress=False)
    return path


@pytest.mark.parametrize("suffix", ["lmdb", "smi"])
def test_all_bad_records_are_named_or_skipped(suffix, molflt, model_path, tmp_path):
    """The same of every kind of file: up to ten are named, all are counted, and each keeps its row."""
    bad, out = [k for k in range(15) if k not in (0, 6)], tmp_path / "out.csv"
    source = tmp_path / f"some.{suffix}"
    if suffix == "lmdb":
        _lmdb(source, *({"pos": np.zeros((4, 3)) if k % 2 else None} if k in bad else {} for k in range(15)))
    else:
        source.write_text("".join("C(\n" if k in bad else "O\n" for k in range(15)), encoding="utf-8")
    refused = molflt("predict", model_path, source, "-o", out, status=2)
    assert "13 of 15 structures cannot be used" in refused.err
    assert "and 3 more" in refused.err
    assert all(f"{source}#{k}" in refused.err for k in bad[:10])
    assert f"{source}#{bad[10]}" not in refused.err
    assert not out.exists()
    done = molflt("predict", model_path, source, "-o", out, "--on-error", "skip", status=0)
    assert "13 of 15 structures were skipped" in done.err
    assert [k for k, row in enumerate(rows_of(out)) if row["error"]] == bad
    # A file of structures has no place for those that failed.
    left = tmp_path / "left.extxyz"
    assert molflt("predict", model_path, source, "-o", left, "--on-error", "skip").status == 0
    assert len(ase.io.read(left, ":")) == 2


def test_ions_are_refused_with_the_option_that_takes_them(molflt, model_path, tmp_path):
    source = _lmdb(tmp_path / "some.lmdb", {"charge": 0, "spin": 1}, {"charge": np.array([1.0])})
    for command in (("predict",), ("evaluate", "--no-report")):
        refused = molflt(*command, model_path, source, status=2)
        for text in (f"{source}#1: ", "'charge' is [1.0] (", "--allow-charged"):
            assert text in refused.err
        assert molflt(*command, model_path, source, "--allow-charged").status == 0
