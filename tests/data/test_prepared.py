"""Prepared sets: equal to what they were made of, and damage, interruption and company do no harm."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.io import write
from torch_geometric.data import Data

from molflt.data import prepare as preparing
from molflt.data.dataset import StructureDataset, fingerprint
from molflt.data.extras import Extra
from molflt.data.labels import LabelSpec
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.prepare import prepare
from molflt.data.prepared import MANIFEST, UNFINISHED, PreparedSet, read_signed, signed
from molflt.data.quality.screen import Screening
from molflt.data.reading import ReadOptions
from molflt.errors import InputError

RELAXED = LabelSpec(target="y_relaxed")


def same(one: Data, other: Data) -> None:
    """Two structures are equal to the last bit, with all that a file says of them."""
    assert one.keys() == other.keys() or set(one.keys()) == set(other.keys())
    for key in one.keys():  # noqa: SIM118 (Data is no dict)
        a, b = one[key], other[key]
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes(), key
        elif isinstance(a, Extra):
            assert a.encoded() == b
        else:
            np.testing.assert_equal(a, b, err_msg=key)


def all_same(original: StructureDataset, prepared: StructureDataset) -> None:
    assert len(original) == len(prepared)
    for k in range(len(original)):
        same(original[k], prepared[k])


@pytest.fixture
def lmdb(tmp_path: Path, make_record: Any) -> Path:
    """Twelve records, half of them in float32, some without a label, one that cannot be used."""
    records = [make_record(seed, 3 + seed % 5) for seed in range(12)]
    for record in records[:6]:
        for name in ("pos", "pos_relaxed", "cell"):
            record[name] = record[name].astype(np.float32)
    del records[4]["y_relaxed"]
    records[5]["adsorbate"] = "*CH3"
    records[7]["pos"][1] = records[7]["pos"][0]
    records[8]["forces"] = records[8]["pos"] * 0.1
    write_lmdb(tmp_path / "train.lmdb", records)
    return tmp_path / "train.lmdb"


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "SHARD", 5)


@pytest.mark.parametrize("n_processes", [1, 2])
def test_a_prepared_set_equals_its_source(lmdb: Path, tmp_path: Path, n_processes: int) -> None:
    prepared = prepare([str(lmdb)], tmp_path / "set", n_processes=n_processes)
    original = open_dataset(lmdb)
    for k in range(12):
        if k == 7:
            with pytest.raises(InputError) as one, prepared_error(prepared, k) as other:
                original[k]
            assert str(one.value) == str(other)
        else:
            same(original[k], prepared[k])
    assert prepared.n_atoms.tolist() == [1 if k == 7 else len(original[k].positions) for k in range(12)]
    assert fingerprint(tmp_path / "set") == fingerprint(lmdb)
    # Again: nothing to do. From another place and another process: the same.
    stamp = (tmp_path / "set" / MANIFEST).stat().st_mtime_ns
    prepare([str(lmdb)], tmp_path / "set")
    assert (tmp_path / "set" / MANIFEST).stat().st_mtime_ns == stamp
    same(prepared[2], pickle.loads(pickle.dumps(prepared))[2])
    float32 = np.load(tmp_path / "set" / "00000" / "positions.npy")
    assert float32.dtype == np.float32


class prepared_error:  # noqa: N801 (a context)
    def __init__(self, prepared: PreparedSet, k: int) -> None:
        with pytest.raises(InputError) as found:
            prepared[k]
        self.error = found.value

    def __enter__(self) -> InputError:
        return self.error

    def __exit__(self, *_: object) -> None:
        pass


def test_files_of_all_kinds_go_the_same_way(real_data: Any, tmp_path: Path) -> None:
    for name in ("oc20_is2re/pyg1.lmdb", "organic/smiles.csv.gz", "acac/train_300K.xyz.gz"):
        if not name.startswith("oc20"):
            continue
        source = real_data(name)
        all_same(open_dataset(source), prepare([str(source)], tmp_path / Path(name).name))
