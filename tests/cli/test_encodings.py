"""Locales and terminals that know little more than ASCII, and names that are no text."""

import csv
import os
import pickle
import shutil
import subprocess

import ase.io
import lmdb
import numpy as np
import pytest

from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.record import to_record
from molflt.training.yaml import to_yaml
from tests.conftest import REPOSITORY, ascii_python

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def run(variables, *arguments, given=b""):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHONIO", "RDBASE"))
    }
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **variables}
    command = [ascii_python(), "-m", "molflt", *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, env=environment, check=False, timeout=300)


@pytest.mark.slow
def test_a_run_in_another_locale(make_config, val_set, tmp_path):
    """It writes UTF-8, can be resumed, is described, and predicts structures whatever their names and paths."""
    config, out = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(to_yaml(make_config(**{"trainer.max_epochs": 1}), "Ångström"), encoding="utf-8")
    for more in ((), ("--resume", "auto")):
        result = run(ASCII, "train", config, "--out", out, *more)
        assert result.returncode == 0, result
    assert (out / "config.yaml").read_bytes().decode("utf-8").count("Å")
    assert run(ASCII, "info", out).returncode == 0
    records = [{**to_record(data), "name": f"Öl 水 {k}"} for k, data in enumerate(val_set)]
    write_lmdb(tmp_path / "Öl.lmdb", records)
    for name in ("ö.csv", "ö.extxyz", "ö.npz"):
        result = run(ASCII, "predict", out, tmp_path / "Öl.lmdb", "-o", tmp_path / name)
        assert result.returncode == 0, result
    rows = list(csv.reader((tmp_path / "ö.csv").read_bytes().decode("utf-8").splitlines()))
    assert [row[0] for row in rows[1:]] == [record["name"] for record in records]
    assert [atoms.info["name"] for atoms in ase.io.read(tmp_path / "ö.extxyz", ":")] == [row[0] for row in rows[1:]]
    for command in (
        ("convert", tmp_path / "Öl.lmdb", tmp_path / "ö2.lmdb"),
        ("evaluate", out, tmp_path / "Öl.lmdb", "--report", tmp_path / "ö.html"),
        ("predict", out, tmp_path / "Öl.lmdb"),
        ("predict", out, tmp_path / "Öl.lmdb", "-o", tmp_path / "s.csv", "--shard", "1/1"),
    ):
        result = run(ASCII, *command)
        assert result.returncode == 0, result
    assert [data.name for data in open_dataset(tmp_path / "ö2.lmdb")] == [row[0] for row in rows[1:]]
    (tmp_path / "ö.html").read_bytes().decode("utf-8")


def test_piped_output_is_utf_8():
    printed = run({"LC_ALL": "C", "PYTHONUTF8": "0"}, "config", "tiny").stdout
    assert "displacement head, Å" in printed.decode("utf-8")


def test_a_terminal_that_cannot_show_a_character_gets_an_escape(model_path, tmp_path):
    copy = tmp_path / "Öl.safetensors"
    shutil.copy(model_path, copy)
    result = run({"PYTHONIOENCODING": "ascii"}, "info", copy)
    assert result.returncode == 0, result
    assert b"\\xd6l.safetensors" in result.stdout


def test_standard_input_is_utf_8(model_path):
    result = run(ASCII, "predict", model_path, "-", given="Öx\n".encode())
    assert result.returncode == 2
    assert b"\\xd6x" in result.stderr


def beyond_unicode():
    return np.array([0x110000, 65], dtype=np.uint32).view("<U2")


@pytest.mark.parametrize("field", ["name", "adsorbate"])
@pytest.mark.parametrize("kind", ["surrogate", "array", "scalar"])
def test_names_that_are_no_text(kind, field, molflt, model_path, val_set, tmp_path):
    """They are escaped or refused by name, and what is written can be read."""
    text = "half a \ud800 pair" if kind == "surrogate" else beyond_unicode()
    if kind == "scalar":
        text = text.reshape(())
    pickled = pickle.dumps({**to_record(val_set[1]), field: text}, 4)
    source = tmp_path / "in.lmdb"
    with lmdb.open(str(source), subdir=False) as database, database.begin(write=True) as transaction:
        transaction.put(b"0", pickled)
        transaction.put(b"length", b"1")
    for name in ("a.csv", "a.extxyz", "a.npz", "a.lmdb"):
        out = tmp_path / name
        command = ("convert", source, out) if out.suffix == ".lmdb" else ("predict", model_path, source, "-o", out)
        result = molflt(*command)
        if kind == "surrogate":
            assert result.status == 0, result
            continue
        assert result.status == 2, result
        assert "in.lmdb#0" in result.err
        assert "beyond Unicode" in result.err
        assert not out.exists()
    if kind == "surrogate":
        assert (tmp_path / "a.csv").read_bytes().decode("utf-8").count("\n") == 2
        (atoms,) = ase.io.read(tmp_path / "a.extxyz", ":")
        (data,) = open_dataset(tmp_path / "a.lmdb")
        if field == "name":
            assert data.name == "half a \\ud800 pair"
            assert atoms.info["name"] == data.name
