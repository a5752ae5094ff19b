"""evaluate, predict, info and convert: what is said, and on which stream."""

import json
import math
import os
import pickle
from dataclasses import asdict
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.cli.terminal import Verbosity
from molflt.data.ase import to_atoms
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.record import to_record
from molflt.model.file import save_models
from molflt.prediction.evaluate import evaluate


def _no_constant(name):
    raise AssertionError(f"{name} is not JSON")


def test_evaluate(molflt, model_path, tiny_data, loaded):
    data = tiny_data / "val.lmdb"
    expected = evaluate(loaded, str(data)).metrics
    result = molflt("evaluate", model_path, data, "--no-report")
    assert (result.status, result.err) == (0, "")
    first, mae, rmse, ewt, far_field = result.out.splitlines()
    assert first == f"{data}: 10 structures, adsorption energy of the relaxed structure"
    share = f"({expected.mae_over_mad:.3f} of the mean absolute deviation {expected.mad:.4f} eV)"
    assert mae == f"  MAE   {expected.energy_mae:.4f} eV   {share}"
    assert rmse == f"  RMSE  {expected.energy_rmse:.4f} eV"
    assert ewt == f"  EwT   {100 * expected.ewt:.2f} %   (|error| < 0.02 eV)"
    assert far_field.startswith("  far field by ")
    content = json.loads(molflt("evaluate", model_path, data, "--json").out)
    assert {name: content[name] for name in asdict(expected)} == pytest.approx(asdict(expected))
    assert (content["target"], content["unknown"], content["skipped"], content["members"]) == ("y_relaxed", [], [], 1)
    exact = json.loads(molflt("evaluate", model_path, data, "--json", "--far-field-method", "exact").out)
    assert exact["energy_mae"] == pytest.approx(expected.energy_mae, rel=1e-2)
    assert set(exact["far_field"]) == {"pairs"}


def test_evaluate_one_structure_of_several(molflt, model_path, val_set, tmp_path):
    """The structure left out is named; a deviation of nothing is neither printed nor written as NaN."""
    records = [to_record(val_set[k]) for k in (1, 2)]
    records[1]["pos"] = records[1]["pos_relaxed"] = 0 * np.asarray(records[1]["pos"])
    write_lmdb(tmp_path / "two.lmdb", records, progress=False)
    arguments = ("evaluate", model_path, tmp_path / "two.lmdb", "--on-error", "skip")

    content = json.loads(molflt(*arguments, "--json").out, parse_constant=_no_constant)
    assert (content["n"], content["mae_over_mad"], len(content["skipped"])) == (1, None, 1)
    result = molflt(*arguments, "--report", tmp_path / "r.html")
    assert "nan" not in result.out
    assert "Warning: 1 structure was skipped" in result.err
    assert "Å apart" in result.err
    assert "they cannot be used: 1 of two." in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert molflt(*arguments[:-2]).status == 2


@pytest.mark.parametrize("name", ["pyg1.lmdb", "pyg2.lmdb"])
def test_evaluate_reads_the_real_oc20_samples(name, molflt, model_path):
    root = os.environ.get("MOLFLT_DATA")
    if not root or not (Path(root) / "oc20_is2re" / name).exists():
        pytest.skip("MOLFLT_DATA does not name a folder with oc20_is2re: the real OC20 samples are not tested")
    result = molflt("evaluate", model_path, Path(root) / "oc20_is2re" / name, "--json", status=0)
    content = json.loads(result.out)
    assert content["n"] == 5
    assert math.isfinite(content["energy_mae"])
    assert content["unknown"]
    assert result.err.startswith("Warning: 5 of 5 structures are outside the training domain; ")
    assert len(content["doubtful"]) == 5
    assert all("the model was not trained on " in line and line in result.err for line in content["doubtful"])


def test_predict_prints_numbers_and_names(molflt, model_path, tiny_run, tiny_data, val_set):
    result = molflt("predict", model_path, tiny_data / "val.lmdb")
    assert molflt("predict", tiny_run, tiny_data / "val.lmdb").out == result.out
    assert result.status == 0
    head, *lines = result.out.splitlines()
    assert head == "# y_relaxed_eV  name"
    assert [line.split()[1] for line in lines] == [val_set[i].name for i in range(10)]
    assert all(math.isfinite(float(line.split()[0])) for line in lines)
    assert result.err.startswith(
        "quantity: adsorption energy of the relaxed structure, eV\nlevel of theory: that of "
    )
    assert molflt("-q", "predict", model_path, tiny_data / "val.lmdb").out.splitlines() == lines


@pytest.mark.parametrize("suffix", [".csv", ".extxyz", ".npz"])
def test_predict_to_a_file(suffix, molflt, model_path, tiny_data, tmp_path):
    path = tmp_path / f"out{suffix}"
    result = molflt("predict", model_path, tiny_data / "val.lmdb", "-o", path, status=0)
    assert result.out == ""
    assert result.err.splitlines()[-1] == f"10 energies in {path}, in eV"
    content = path.read_bytes()
    again = molflt("predict", model_path, tiny_data / "val.lmdb", "-o", path, status=2)
    assert "--overwrite" in again.err
    assert path.read_bytes() == content
    assert molflt("predict", model_path, tiny_data / "other.lmdb", "-o", path, "--overwrite").status == 0
    assert path.read_bytes() != content


def test_info_on_a_model(molflt, tiny_run, loaded):
    for path in (tiny_run / "best.safetensors", tiny_run):
        result = molflt("info", path, status=0)
        assert f"size: {loaded.model.n_parameters():,} parameters" in result.out
        assert "quantity: adsorption energy of the relaxed structure, eV" in result.out
        assert len(result.out.splitlines()) <= 10
        split, _ = next(iter(loaded.metadata.validation)).split("/")
        error = loaded.metadata.validation[f"{split}/energy_mae"]
        assert f"error: {error:.3g} eV (mean absolute) on the validation set '{split}'" in result.out
        assert "target: y_relaxed" in molflt("info", path, "-v").out
        Verbosity.set(quiet=False, verbose=False)
        content = json.loads(molflt("info", path, "--json").out)
        assert content["parameters"] == loaded.model.n_parameters()
        assert content["widest_member"] == f"{float(loaded.model.positions.rpe.widths.detach().max()):.3g} Å"
        assert "Cu" in content["elements"]
        assert content["config"]["dim"] == 16


def test_info_on_one_member(molflt, two, tmp_path):
    path = tmp_path / "two.safetensors"
    save_models(path, two)
    *_, listed = json.loads(molflt("info", path, "--json").out)["members"]
    content = json.loads(molflt("info", listed, "--json").out)
    assert (listed, content["model"], content["seed"]) == (f"{path}#1", f"{path}#1", 8)
    assert "members" not in content
    assert "has 2 members, counted from 0" in molflt("info", f"{path}#2").err


def test_info_on_data(molflt, tiny_data):
    result = molflt("info", tiny_data / "val.lmdb", status=0)
    assert "structures: 10" in result.out
    content = json.loads(molflt("info", tiny_data / "val.lmdb", "--json").out)
    data = open_dataset(tiny_data / "val.lmdb")
    sizes = [int(n) for n in data.n_atoms]
    assert content["atoms"] == {"min": min(sizes), "median": np.median(sizes), "max": max(sizes), "total": sum(sizes)}
    values = np.array([float(structure.y_relaxed) for structure in data])
    assert content["labels"]["y_relaxed"]["mean_eV"] == pytest.approx(values.mean())
    assert content["labels"]["y_relaxed"]["mean_absolute_deviation_eV"] == pytest.approx(
        np.abs(values - values.mean()).mean()
    )
    assert content["periodic"] == {"TTF": 7, "FFF": 3}
    (axes,) = (line for line in result.out.splitlines() if line.startswith("periodic: "))
    assert sorted(axes.removeprefix("periodic: ").split(", ")) == ["along ab 7", "no 3"]
    assert content["with_relaxed_positions"] == 10
    assert "forces" not in content["labels"]


def test_info_on_forces(molflt, tmp_path):
    forces = np.array([[0.0, 3.0, 0.0], [0.0, -3.0, 4.0]])
    frame = molecule("N2")
    frame.calc = SinglePointCalculator(frame, energy=-1.0, forces=forces)
    ase.io.write(tmp_path / "two.extxyz", [frame, molecule("N2")])
    found = json.loads(molflt("info", tmp_path / "two.extxyz", "--json").out)["labels"]["forces"]
    assert found == {"n": 1, "root_mean_square_eV/Å": pytest.approx(np.sqrt((forces**2).mean())), "max_eV/Å": 4.0}


def test_two_files_are_a_pair_where_that_is_asked_for(molflt, model_path, val_set, tmp_path):
    ends = [tmp_path / f"{end}.traj" for end in ("initial", "final")]
    bare = to_atoms(next(data for data in val_set if data.pbc.any()))
    bare.calc, bare.info, bare.arrays = None, {}, {key: bare.arrays[key] for key in ("numbers", "positions")}
    for end, shift in zip(ends, (0.0, 0.05), strict=True):
        bare.positions[-1, 2] += shift
        ase.io.write(end, bare)
    two = molflt("predict", model_path, *ends)
    assert "initial.traj and final.traj are read as two structures; give --pairs" in " ".join(two.err.split())
    assert [line.split()[1] for line in two.out.splitlines()[1:]] == [f"{end}#0" for end in ends]
    one = molflt("predict", model_path, *reversed(ends), "--pairs", "--tags", "layers")
    assert (one.status, len(one.out.splitlines())) == (0, 2), one
    for options, n in (((), 2), (("--pairs", "--tags", "layers"), 1)):
        assert f"structures: {n}\n" in molflt("info", tmp_path, *options).out
        assert molflt("convert", *ends, tmp_path / "new" / f"{n}.lmdb", *options).status == 2
        assert (
            molflt("convert", *ends, tmp_path / f"{n}.lmdb", *options)
            .err.splitlines()[-1]
            .startswith(f"{n} structure")
        )
        (tmp_path / f"{n}.lmdb").unlink()
    # Two that are called nothing of the kind.
    refused = molflt("predict", model_path, ends[0], "CCO", "--pairs")
    assert (refused.status, "no two are named alike" in refused.err) == (2, True)


def test_convert_there_and_back(molflt, model_path, val_set, tmp_path):
    structure_files = tmp_path / "structures"
    structure_files.mkdir()
    for i in range(6):
        atoms = to_atoms(val_set[i])
        atoms.calc, atoms.info = None, {}
        ase.io.write(structure_files / f"{i}.extxyz", atoms)
    target = tmp_path / "out.lmdb"
    result = molflt("convert", structure_files, target, status=0)
    assert (result.out, result.err.splitlines()[-1]) == ("", f"6 structures in {target}")
    first, second = (molflt("predict", model_path, path).out for path in (structure_files, target))
    assert [line.split()[0] for line in first.splitlines()] == [line.split()[0] for line in second.splitlines()]
    assert molflt("convert", structure_files, target).status == 2
    assert molflt("convert", structure_files, target, "--overwrite").status == 0
    for arguments in ([structure_files], [structure_files, tmp_path / "out.txt"], [target]):
        refused = molflt("convert", *arguments, status=2)
        assert "OUT.lmdb" in refused.err


GARBAGE = {
    "empty": b"",
    "text": b"hello\nworld\n",
    "random": np.random.default_rng(1).bytes(300),
    "pickle": pickle.dumps({"pos": [1]}),
    "zip": b"PK\x03\x04" + b"\0" * 30,
}
SUFFIXES = ".safetensors .lmdb .extxyz .cif .traj .db .sdf .smi .csv .vasp .xyz .json"


@pytest.mark.parametrize("suffix", SUFFIXES.split())
def test_wrong_files(suffix, molflt, model_path, tmp_path):
    """Status 2 and one line on standard error; several wrong records are one more line each."""
    for kind, content in GARBAGE.items():
        path = tmp_path / f"{kind}{suffix}"
        path.write_bytes(content)
        predict = ["predict", path, "CCO"] if suffix == ".safetensors" else ["predict", model_path, path]
        for command in (["info", path], predict):
            result = molflt(*command)
            assert (result.status, result.out) == (2, ""), result
            assert result.err.startswith("Error: ")
            assert path.name in result.err
            first, *records = result.err.strip().splitlines()
            assert not records or first.endswith(f"{len(records)} of {len(records)} structures cannot be used")
            assert all(line.startswith("  ") and f"{path.name}#" in line for line in records), result
