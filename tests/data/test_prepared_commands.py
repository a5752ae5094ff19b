"""``molflt prepare``, and what other commands make of prepared sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from molflt.data.oc20.writer import write_lmdb


def test_a_prepared_set_is_predicted_and_evaluated_as_its_source(
    molflt: Any, model_path: Path, tiny_data: Path, tmp_path: Path
) -> None:
    for name in ("val", "other"):
        done = molflt("prepare", tiny_data / f"{name}.lmdb", "-o", tmp_path / name)
        assert done.status == 0, done
    assert "6 structures in" in done.out + done.err
    for source, out in ((tiny_data / "val.lmdb", "a.npz"), (tmp_path / "val", "b.npz")):
        assert molflt("predict", model_path, source, "-o", tmp_path / out).status == 0
    original, prepared = (np.load(tmp_path / name) for name in ("a.npz", "b.npz"))
    for key in original.files:
        np.testing.assert_array_equal(original[key], prepared[key])
    given = [molflt("evaluate", model_path, tiny_data / f"{name}.lmdb", "--json").out for name in ("val", "other")]
    both = molflt("evaluate", model_path, tmp_path / "val", tmp_path / "other", "--json")
    errors = [[json.loads(one)[key] for key in ("n", "energy_mae", "ewt")] for one in given]
    assert [[one[key] for key in ("n", "energy_mae", "ewt")] for one in json.loads(both.out)["sets"]] == errors
    table = molflt("evaluate", model_path, tmp_path / "val", tmp_path / "other", "--no-report").out
    assert [f"{errors[k][1]:.4f}" in table.splitlines()[k - 3] for k in (0, 1)] == [True, True]
    about = molflt("info", tmp_path / "other", "--json")
    assert json.loads(about.out)["structures"] == 6


def test_what_cannot_be_used_is_said_at_once(molflt: Any, tmp_path: Path, make_record: Any) -> None:
    records = [make_record(seed) for seed in range(3)]
    records[1]["pos"][1] = records[1]["pos"][0]
    write_lmdb(tmp_path / "a.lmdb", records)
    done = molflt("prepare", tmp_path / "a.lmdb", "-o", tmp_path / "set")
    assert done.status == 0
    assert "1 structure cannot be used; data.on_error=skip trains without" in done.err
    assert "a.lmdb#1" in done.err
    assert molflt("prepare", "-", "-o", tmp_path / "other").status == 2


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_damage_is_not_skipped_as_bad_structures_are(molflt, model_path, tiny_data, tmp_path, command):
    molflt("prepare", tiny_data / "val.lmdb", "-o", tmp_path / "set", status=0)
    file = tmp_path / "set" / "00000" / "positions.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 16
    file.write_bytes(content)
    result = molflt(command, model_path, tmp_path / "set", "--on-error", "skip", status=2)
    assert result.err.count("is damaged") == 1
