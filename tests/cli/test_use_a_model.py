"""evaluate, predict and info: what is said, and on which stream."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from molflt.data.ase_io import to_atoms
from molflt.data.labels import LabelSpec
from molflt.data.lmdb_writer import write_lmdb
from molflt.data.records import to_record
from molflt.data.sources import StructureDataset, open_dataset
from molflt.model.model_file import LoadedModel
from molflt.prediction.metrics import energy_metrics
from molflt.prediction.predictor import predict
from molflt.training.screening import Screening, labels

Run = Callable[..., Any]


@pytest.fixture
def structure_files(val_set: StructureDataset, tmp_path: Path) -> Path:
    """A folder with the first six structures of val.lmdb as six extxyz files."""
    folder = tmp_path / "structures"
    folder.mkdir()
    for i in range(6):
        atoms = to_atoms(val_set[i])
        atoms.calc = None
        atoms.info.clear()
        ase.io.write(folder / f"{i}.extxyz", atoms)
    return folder


def test_evaluate(molflt: Run, model_path: Path, tiny_data: Path, loaded: LoadedModel, val_set: Any) -> None:
    expected = energy_metrics(
        predict(loaded, val_set)[0].energies, labels(Screening(val_set, LabelSpec(target="y_relaxed"), "val"))
    )
    data = tiny_data / "val.lmdb"
    result = molflt("evaluate", model_path, data, "--no-report")
    assert result.status == 0
    assert result.err == ""
    assert f"{data}: 10 structures, target y_relaxed" in result.out
    assert f"MAE   {expected.energy_mae:.4f} eV" in result.out
    assert f"({expected.mae_over_mad:.3f} of the mean absolute deviation" in result.out
    as_json = molflt("evaluate", model_path, data, "--json")
    content = json.loads(as_json.out)
    assert {name: content[name] for name in expected.as_dict()} == pytest.approx(expected.as_dict())
    assert (content["target"], content["unknown"]) == ("y_relaxed", [])


def test_evaluate_json_is_json_even_for_one_structure(
    molflt: Run, model_path: Path, val_set: StructureDataset, tmp_path: Path
) -> None:
    write_lmdb(tmp_path / "one.lmdb", [to_record(val_set[1])], progress=False)
    result = molflt("evaluate", model_path, tmp_path / "one.lmdb", "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(result.out, parse_constant=refuse)["mae_over_mad"] is None
    assert "nan" not in molflt("evaluate", model_path, tmp_path / "one.lmdb", "--no-report").out


@pytest.mark.parametrize("frequencies", ["auto", "exact", "quadrature", "lattice"])
def test_evaluate_by_another_method(frequencies: str, molflt: Run, model_path: Path, tiny_data: Path) -> None:
    def mae(*options: str) -> float:
        result = molflt("evaluate", model_path, tiny_data / "other.lmdb", "--json", *options)
        assert result.status == 0, result
        return float(json.loads(result.out)["energy_mae"])

    assert mae("--frequencies", frequencies) == pytest.approx(mae(), rel=1e-2)


@pytest.mark.parametrize("name", ["pyg1.lmdb", "pyg2.lmdb"])
def test_evaluate_reads_the_real_oc20_samples(name: str, molflt: Run, model_path: Path) -> None:
    root = os.environ.get("MOLFLT_DATA")
    if not root or not (Path(root) / "oc20_is2re" / name).exists():
        pytest.skip("MOLFLT_DATA does not name a folder with oc20_is2re: the real OC20 samples are not tested")
    result = molflt("evaluate", model_path, Path(root) / "oc20_is2re" / name, "--json")
    assert result.status == 0, result
    content = json.loads(result.out)
    assert content["n"] == 5
    assert math.isfinite(content["energy_mae"])
    assert content["unknown"]
    assert result.err.startswith("Warning: the model was not trained on ")


def test_predict_prints_numbers_and_names(molflt: Run, model_path: Path, tiny_data: Path, val_set: Any) -> None:
    result = molflt("predict", model_path, tiny_data / "val.lmdb")
    assert result.status == 0
    names = [line.split()[1] for line in result.out.splitlines()]
    assert names == [val_set[i].name for i in range(10)]
    assert all(math.isfinite(float(line.split()[0])) for line in result.out.splitlines())
    assert result.err.strip() == "y_relaxed in eV, name"


def test_predict_files_folders_globs_smiles(molflt: Run, model_path: Path, structure_files: Path) -> None:
    def energies(*inputs: object) -> list[float]:
        result = molflt("predict", model_path, *inputs)
        assert result.status == 0, result
        return [float(line.split()[0]) for line in result.out.splitlines()]

    files = [structure_files / f"{i}.extxyz" for i in range(6)]
    by_file = energies(*files)
    assert len(by_file) == 6
    assert energies(structure_files) == pytest.approx(by_file, rel=1e-5)
    assert energies(f"{structure_files}/*.extxyz") == pytest.approx(by_file, rel=1e-5)
    assert energies(f"{structure_files}/[45].extxyz", "CCO", files[0]) == pytest.approx(
        [by_file[4], by_file[5], energies("CCO")[0], by_file[0]], rel=1e-5
    )


@pytest.mark.parametrize("suffix", [".csv", ".extxyz", ".npz"])
def test_predict_to_a_file(suffix: str, molflt: Run, model_path: Path, tiny_data: Path, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    result = molflt("predict", model_path, tiny_data / "val.lmdb", "-o", path)
    assert result.status == 0
    first, second = result.out.strip().splitlines()
    assert first == f"10 energies (y_relaxed, eV) in {path}"
    assert second.startswith("far field by ")
    content = path.read_bytes()
    again = molflt("predict", model_path, tiny_data / "val.lmdb", "-o", path)
    assert again.status == 2
    assert "--overwrite" in again.err
    assert path.read_bytes() == content
    assert molflt("predict", model_path, tiny_data / "other.lmdb", "-o", path, "--overwrite").status == 0
    assert path.read_bytes() != content


def test_leaderboard_file_from_the_command_line(
    molflt: Run, model_path: Path, tiny_data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "submission.npz"
    for split in ("id", "ood_ads", "ood_cat", "ood_both"):
        arguments = ("predict", model_path, tiny_data / "other.lmdb", "-o", path, "--oc20-split", split)
        assert molflt(*arguments).status == 0
    assert molflt(*arguments).status == 2
    with np.load(path, allow_pickle=False) as archive:
        assert len(archive.files) == 8
        assert archive["ood_both_ids"].tolist() == [str(2000 + i) for i in range(6)]
    wrong = molflt("predict", model_path, "CCO", "-o", tmp_path / "x.csv", "--oc20-split", "id")
    assert wrong.status == 2


def test_unknown_elements_are_a_warning_on_stderr(molflt: Run, model_path: Path, tmp_path: Path) -> None:
    ase.io.write(tmp_path / "a.extxyz", molecule("SiH4"))
    result = molflt("predict", model_path, tmp_path / "a.extxyz", "CF")
    assert result.status == 0
    assert len(result.out.splitlines()) == 2
    assert "Warning: the model was not trained on F, Si; energies" in result.err


def test_device_that_is_not_there(molflt: Run, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for command in ("predict", "evaluate"):
        result = molflt(command, model_path, "CCO", "--device", "cuda")
        # evaluate stops at CCO, which is no file of labelled structures
        assert result.status == 2
    assert "no usable GPU" in molflt("predict", model_path, "CCO", "--device", "cuda").err


def test_evaluate_without_labels(molflt: Run, model_path: Path, structure_files: Path) -> None:
    result = molflt("evaluate", model_path, structure_files)
    assert result.status == 2
    assert "6 of 6 structures have no label 'y_relaxed'" in result.err


def test_info_on_a_model(molflt: Run, tiny_run: Path, loaded: LoadedModel) -> None:
    for path in (tiny_run / "best.safetensors", tiny_run):
        result = molflt("info", path)
        assert result.status == 0
        assert f"parameters: {loaded.model.n_parameters()}" in result.out
        assert "target: y_relaxed" in result.out
        content = json.loads(molflt("info", path, "--json").out)
        assert content["parameters"] == loaded.model.n_parameters()
        assert "Cu" in content["elements"]
        assert content["config"]["dim"] == 16


def test_info_on_data(molflt: Run, tiny_data: Path) -> None:
    result = molflt("info", tiny_data / "val.lmdb")
    assert result.status == 0
    assert "structures: 10" in result.out
    content = json.loads(molflt("info", tiny_data / "val.lmdb", "--json").out)
    data = open_dataset(tiny_data / "val.lmdb")
    sizes = [int(n) for n in data.n_atoms]
    assert content["atoms"] == {"min": min(sizes), "median": np.median(sizes), "max": max(sizes), "total": sum(sizes)}
    values = labels(Screening(data, LabelSpec(target="y_relaxed"), "val"))
    assert content["labels"]["y_relaxed"]["mean_eV"] == pytest.approx(values.mean())
    assert content["labels"]["y_relaxed"]["mean_absolute_deviation_eV"] == pytest.approx(
        np.abs(values - values.mean()).mean()
    )
    assert content["periodic"] == {"TTF": 7, "FFF": 3}
    assert content["with_relaxed_positions"] == 10


def test_convert_there_and_back(molflt: Run, model_path: Path, structure_files: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.lmdb"
    result = molflt("convert", structure_files, target)
    assert result.status == 0, result
    assert result.out.strip() == f"6 structures in {target}"
    first, second = (molflt("predict", model_path, path).out for path in (structure_files, target))
    assert [line.split()[0] for line in first.splitlines()] == [line.split()[0] for line in second.splitlines()]
    assert molflt("convert", structure_files, target).status == 2
    assert molflt("convert", structure_files, target, "--overwrite").status == 0
    for arguments in ([structure_files], [structure_files, tmp_path / "out.txt"], [target]):
        refused = molflt("convert", *arguments)
        assert refused.status == 2
        assert "OUT.lmdb" in refused.err


class TestWrongFiles:
    """Each wrong file is one line on standard error and status 2."""

    CONTENTS: dict[str, bytes] = {  # noqa: RUF012
        "empty": b"",
        "text": b"hello\nworld\n",
        "random": np.random.default_rng(1).bytes(300),
        "pickle": pickle.dumps({"pos": [1]}),
        "zip": b"PK\x03\x04" + b"\0" * 30,
    }
    SUFFIXES = (
        ".safetensors",
        ".lmdb",
        ".extxyz",
        ".cif",
        ".traj",
        ".db",
        ".sdf",
        ".smi",
        ".csv",
        ".vasp",
        ".xyz",
        ".json",
    )

    @pytest.mark.parametrize("suffix", SUFFIXES)
    @pytest.mark.parametrize("kind", CONTENTS)
    def test_info_and_predict(
        self,
        suffix: str,
        kind: str,
        molflt: Run,
        model_path: Path,
        tmp_path: Path,
    ) -> None:
        path = tmp_path / f"wrong{suffix}"
        path.write_bytes(self.CONTENTS[kind])
        commands = [["info", path], ["predict", model_path, path]]
        if suffix == ".safetensors":
            commands[1] = ["predict", path, "CCO"]
        for command in commands:
            result = molflt(*command)
            assert result.status == 2, result
            assert result.out == ""
            assert result.err.startswith("Error: ")
            assert path.name in result.err
            assert len(result.err.strip().splitlines()) == 1, result

    @pytest.mark.parametrize("command", ["info", "predict", "evaluate"])
    def test_nothing_there(self, command: str, molflt: Run, model_path: Path, tmp_path: Path) -> None:
        path = tmp_path / "absent.cif"
        result = molflt(command, *([] if command == "info" else [model_path]), path)
        assert result.status == 2
        assert "absent.cif" in result.err
        assert len(result.err.strip().splitlines()) == 1, result
        if command != "info":
            result = molflt(command, tmp_path / "absent.safetensors", path)
            assert result.status == 2
            assert "absent.safetensors: no such file" in result.err


def test_exit_status_of_the_real_command(
    molflt_process: Callable[..., subprocess.CompletedProcess[str]], model_path: Path, tiny_data: Path, tmp_path: Path
) -> None:
    good = molflt_process("evaluate", model_path, tiny_data / "other.lmdb", "--json")
    assert good.returncode == 0
    assert good.stderr == ""
    assert json.loads(good.stdout)["n"] == 6
    bad = molflt_process("evaluate", tmp_path / "absent.safetensors", tiny_data / "other.lmdb")
    assert bad.returncode == 2
    assert bad.stdout == ""
    assert bad.stderr.startswith("Error: ")
    assert "Traceback" not in bad.stderr


def test_what_the_system_refuses_is_one_line(
    molflt: Run, model_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    result = molflt("predict", model_path, tiny_data / "other.lmdb", "-o", tmp_path / "out.csv")
    assert result.status == 1
    assert result.err.strip() == (
        f"Error: {tmp_path}/out.csv: No space left on device; make room, or choose a place on another disk"
    )


def test_a_reader_that_has_enough_is_no_failure(tiny_data: Path) -> None:
    command = f"'{sys.executable}' -m molflt.cli.main info '{tiny_data / 'other.lmdb'}' | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("data: ")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [pytest.param("predict", marks=pytest.mark.slow), "config"])
def test_broken_pipe(
    command: str, model_path: Path, tiny_data: Path, val_set: StructureDataset, tmp_path: Path
) -> None:
    # Enough output that the pipe is closed while it is being written.
    if command == "predict":
        write_lmdb(tmp_path / "many.lmdb", [to_record(val_set[0])] * 3000, progress=False)
        arguments = ["predict", str(model_path), str(tmp_path / "many.lmdb")]
    else:
        arguments = ["config", "tiny"]
    writer = subprocess.Popen(
        [sys.executable, "-m", "molflt.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.readline()
    writer.stdout.close()
    err = writer.stderr.read()
    writer.wait(timeout=120)
    writer.stderr.close()
    assert "Traceback" not in err
    assert "Exception ignored" not in err
