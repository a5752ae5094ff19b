"""Prepared sets: equal to what they were made of, and damage, interruption and company do no harm."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.io import write
from torch_geometric.data import Data

from molflt.data import prepare as preparing
from molflt.data.cache import open_large
from molflt.data.dataset import MANIFEST, StructureDataset, fingerprint
from molflt.data.extras import Extra
from molflt.data.labels import LabelSpec
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.prepare import prepare
from molflt.data.prepared import VERSION, PreparedSet, read_signed, signed
from molflt.data.quality.screen import Screening
from molflt.data.reading import ReadOptions
from molflt.data.shards import write_shard
from molflt.errors import InputError, InputWarning

RELAXED = LabelSpec(target="y_relaxed")


def same(one: Data, other: Data) -> None:
    """Two structures are equal to the last bit, with all that a file says of them."""
    assert set(one.keys()) == set(other.keys())
    for key in one.keys():  # noqa: SIM118 (Data is no dict)
        a, b = one[key], other[key]
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), key
            assert a.numpy().tobytes() == b.numpy().tobytes(), key
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


def refusal(structures: StructureDataset, k: int) -> str:
    with pytest.raises(InputError) as found:
        structures[k]
    return str(found.value)


@pytest.mark.parametrize("n_processes", [1, 2])
def test_a_prepared_set_equals_its_source(lmdb: Path, tmp_path: Path, n_processes: int) -> None:
    prepared = prepare([str(lmdb)], tmp_path / "set", n_processes=n_processes)
    original = open_dataset(lmdb)
    for k in range(12):
        if k == 7:
            assert refusal(original, k) == refusal(prepared, k)
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


def test_structures_of_files_keep_all_that_is_said_of_them(tmp_path: Path) -> None:
    folder, spec = tmp_path / "frames", LabelSpec(label="total", unit="kcal/mol")
    folder.mkdir()
    for k, name in enumerate(("CH4", "H2O", "NH3")):
        atoms = molecule(name, vacuum=3.0, pbc=k == 2)
        atoms.info.update(total=-10.0 - k, remark="a\u00e9", spin_states=np.arange(3))
        atoms.set_array("weights", np.arange(len(atoms)) / 3)
        write(folder / f"{k}.extxyz", [atoms] * (k + 1))
    options = ReadOptions(labels=spec)
    prepared = prepare([str(folder)], tmp_path / "set", options)
    all_same(open_dataset(folder, options), prepared)
    assert len(prepared.manifest["shards"]) == 3
    # The label is settled, and what asks for another is refused; what asks for none is not.
    all_same(open_dataset(folder, options), open_dataset(tmp_path / "set"))
    with pytest.raises(InputError, match=r"prepared with label=total, and other is asked for"):
        open_dataset(tmp_path / "set", ReadOptions(labels=LabelSpec(label="other")))


def test_real_records_of_oc20(oc20: Path, tmp_path: Path) -> None:
    all_same(open_dataset(oc20 / "pyg1.lmdb"), prepare([str(oc20 / "pyg1.lmdb")], tmp_path / "set"))


def test_a_missing_label_is_explained(lmdb: Path, tmp_path: Path) -> None:
    prepare([str(lmdb)], tmp_path / "set")
    spec = LabelSpec(target="energy")
    found = open_dataset(tmp_path / "set", ReadOptions(labels=spec, on_bad="skip"))
    with pytest.raises(InputError, match=r"To learn a stored label: data\.target=y_init or data\.target=y_relaxed"):
        Screening(found, spec, "x", on_bad="skip").each()


def test_a_set_is_judged_without_reading_it(lmdb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare([str(lmdb)], tmp_path / "set", ReadOptions(labels=RELAXED))
    original = open_dataset(lmdb, ReadOptions(labels=RELAXED, on_bad="skip"))
    expected, found = (Screening(one, RELAXED, "x", False, "skip", True) for one in (original, prepared))
    expected.each(examined=True)
    read: list[int] = []
    get = PreparedSet.__getitem__

    def watched(self: PreparedSet, k: int) -> Data:
        read.append(k)
        return get(self, k)

    monkeypatch.setattr(PreparedSet, "__getitem__", watched)
    found.each(examined=True)
    # Only those that cannot be used, for the reason.
    assert read == [4, 7]
    assert found.skipped == expected.skipped
    assert found.doubts == expected.doubts
    assert found.domain(False) == expected.domain(False)
    assert found.domain(True) == expected.domain(True)
    for name, column in expected.facts._asdict().items():
        np.testing.assert_array_equal(column, getattr(found.facts, name), err_msg=name)
    read.clear()
    assert found.each(lambda index, data: (index, data.num_nodes)) == [
        (k, 3 + k % 5) for k in range(12) if k not in (4, 7)
    ]


def test_charges_are_kept_for_models_that_take_them(tmp_path: Path) -> None:
    ammonium = molecule("NH3")
    ammonium.append("H")
    ammonium.positions[-1] = [0.0, 0.0, 1.2]
    ammonium.info["charge"] = 1
    write(tmp_path / "a.extxyz", [molecule("H2O"), ammonium])
    prepared = prepare([str(tmp_path / "a.extxyz")], tmp_path / "set")
    assert PreparedSet(tmp_path / "set", ReadOptions(charges=True))[1].charge.item() == 1.0
    original = open_dataset(tmp_path / "a.extxyz", ReadOptions(on_bad="skip"))
    plain = PreparedSet(tmp_path / "set")
    assert "charge'] is 1" in refusal(original, 1)
    assert "net charge" in refusal(plain, 1)
    assert plain.facts().n_atoms.tolist() == [3, 0]
    assert prepared.facts().n_atoms.tolist() == [3, 5]
    assert plain.domain(True).most_atoms == 3


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "cut":
        file.write_bytes(content[:-3])
    elif how == "flip":
        content[-3] ^= 16
        file.write_bytes(content)
    else:
        file.unlink()


def touch(folder: Path) -> None:
    found = PreparedSet(folder)
    found.facts()
    for k in (0, 5, 11):
        found[k]


@pytest.mark.parametrize("how", ["cut", "flip", "gone"])
def test_damage_is_one_clear_error(lmdb: Path, tmp_path: Path, how: str) -> None:
    """Of every file of a set in turn: never a wrong structure, and the data themselves are not touched."""
    prepare([str(lmdb)], tmp_path / "set")
    touch(tmp_path / "set")
    files = [file for file in sorted((tmp_path / "set").rglob("*")) if file.is_file() and file.name != "shard.json"]
    assert len(files) > 60
    for file in files:
        kept = file.read_bytes()
        if how != "gone" and file.suffix == ".npy" and np.load(file).size == 0:
            continue
        damage(file, how)
        with pytest.raises(InputError, match=r"damaged|not finished|no such|no structure file"):
            touch(tmp_path / "set")
        file.write_bytes(kept)
    touch(tmp_path / "set")


def test_another_version_is_refused(lmdb: Path, tmp_path: Path) -> None:
    prepare([str(lmdb)], tmp_path / "set")
    manifest = read_signed(tmp_path / "set" / MANIFEST)
    (tmp_path / "set" / MANIFEST).write_text(signed({**manifest, "version": VERSION + 1}), encoding="utf-8")
    with pytest.raises(
        InputError, match=f"has layout {VERSION + 1}, and this molflt reads {VERSION}; prepare the data"
    ):
        open_dataset(tmp_path / "set")


def test_other_data_and_another_reading_are_noticed(lmdb: Path, tmp_path: Path, make_record: Any) -> None:
    prepare([str(lmdb)], tmp_path / "set")
    with pytest.raises(InputError, match="holds other data, or the same"):
        prepare([str(lmdb)], tmp_path / "set", ReadOptions(tags="oc20"))
    write_lmdb(lmdb, [make_record(seed) for seed in range(3)], overwrite=True)
    with pytest.raises(InputError, match="holds other data, or the same"):
        prepare([str(lmdb)], tmp_path / "set")
    assert len(prepare([str(lmdb)], tmp_path / "set", overwrite=True)) == 3
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(InputError, match="exists already and is not a prepared set"):
        prepare([str(lmdb)], tmp_path / "other", overwrite=True)


def watched(made: list[str]) -> Any:
    """Notes the names of the shards that are written."""

    def write_and_note(folder: Path, name: str, rows: Any) -> None:
        made.append(name)
        write_shard(folder, name, rows)

    return write_and_note


def test_a_disk_that_is_full_loses_nothing(lmdb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second shard does not fit; with room the command goes on with it, and the first is not made again."""
    import resource

    monkeypatch.setattr(preparing, "SHARD", 4)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    made: list[str] = []

    def small(folder: Path, name: str, rows: Any) -> None:
        made.append(name)
        if name == "00001":
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, usual[1]))
        write_shard(folder, name, rows)

    monkeypatch.setattr(preparing, "write_shard", small)
    try:
        with pytest.raises(OSError, match="File too large") as found:
            prepare([str(lmdb)], tmp_path / "set", n_processes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert found.value.filename == str(tmp_path / "set")
    with pytest.raises(InputError, match="not finished"):
        open_dataset(tmp_path / "set")
    monkeypatch.setattr(preparing, "write_shard", watched(made))
    prepared = prepare([str(lmdb)], tmp_path / "set", n_processes=1)
    assert made == ["00000", "00001", "00001", "00002"]
    assert not list((tmp_path / "set").glob(".*"))
    same(prepared[11], open_dataset(lmdb)[11])


def test_two_at_once_share_the_work(lmdb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "SHARD", 1)
    made: list[str] = []
    monkeypatch.setattr(preparing, "write_shard", watched(made))
    found: list[PreparedSet] = []
    crowd = [
        threading.Thread(target=lambda: found.append(prepare([str(lmdb)], tmp_path / "set", n_processes=1)))
        for _ in range(3)
    ]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    assert sorted(made) == [f"{k:05d}" for k in range(12)]
    for prepared in found:
        same(prepared[3], open_dataset(lmdb)[3])
    assert len(found) == 3


def test_large_data_are_prepared_beside_them_and_small_ones_are_not(
    lmdb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from molflt.data import cache

    said: list[str] = []
    assert not isinstance(open_large(lmdb, ReadOptions(), None, said.append), PreparedSet)
    assert said == []
    monkeypatch.setattr(cache, "LARGE", 10)
    found = open_large(lmdb, ReadOptions(on_bad="skip"), None, said.append)
    assert isinstance(found, PreparedSet)
    assert found.folder.parent == tmp_path
    assert f"preparing {lmdb}: 12 structures, about 1 min" in said[0]
    assert open_large(lmdb, ReadOptions(), None, said.append).folder == found.folder  # type: ignore[attr-defined]
    assert len(said) == 1
    # The folder of the data is read as before, and data that have changed are prepared anew.
    assert len(open_dataset(tmp_path)) == 12
    os.utime(lmdb, ns=(1, 1))
    again = open_large(lmdb, ReadOptions(), None, said.append)
    assert isinstance(again, PreparedSet)
    assert again.folder != found.folder
    assert f"{found.folder} is of the data in another state" in said[1]
    elsewhere = open_large(lmdb, ReadOptions(), tmp_path / "cache", said.append)
    assert elsewhere.folder.parent == tmp_path / "cache"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_preparation_killed_ten_times_is_right_in_the_end(tmp_path: Path, make_record: Any) -> None:
    records = [make_record(seed, 3 + seed % 9) for seed in range(1500)]
    write_lmdb(tmp_path / "a.lmdb", records)
    code = "from molflt.data import prepare as p; import sys; from pathlib import Path; p.SHARD = 40; "
    code += "p.prepare([sys.argv[1]], Path(sys.argv[2]), n_processes=2)"
    command = [sys.executable, "-c", code, str(tmp_path / "a.lmdb"), str(tmp_path / "set")]
    subprocess.run([sys.executable, "-c", code.split(";")[0]], check=True)
    moments, killed = random.Random(0), 0
    for _ in range(40):
        process = subprocess.Popen(command, start_new_session=True)
        before = len(list((tmp_path / "set").glob("0*")))
        while process.poll() is None and len(list((tmp_path / "set").glob("0*"))) < before + 2:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.1))
        if process.poll() is None and killed < 10:
            killed += 1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.wait() == 0:
            break
        # As if each had been killed just after its shard was complete.
        for shard in (tmp_path / "set").glob("0*"):
            (tmp_path / "set" / f".{shard.name}.lock").touch()
    assert killed == 10
    all_same(open_dataset(tmp_path / "a.lmdb"), PreparedSet(tmp_path / "set"))
    assert not list((tmp_path / "set").glob(".*"))
    PreparedSet(tmp_path / "set").facts()


def test_compressed_frames_are_prepared_file_by_file(tmp_path: Path) -> None:
    """As S2EF's: total energies and forces, with a text beside each file that is left out."""
    import lzma

    from ase.calculators.singlepoint import SinglePointCalculator

    folder = tmp_path / "s2ef"
    folder.mkdir()
    for k in range(3):
        atoms = molecule("CH3OH", vacuum=4.0, pbc=True)
        atoms.rattle(0.01, seed=k)
        atoms.calc = SinglePointCalculator(atoms, energy=-20.0 - k, forces=atoms.positions * 0.01)
        write(tmp_path / "plain.extxyz", [atoms] * 2)
        with lzma.open(folder / f"{k}.extxyz.xz", "wb") as packed:
            packed.write((tmp_path / "plain.extxyz").read_bytes())
        with lzma.open(folder / f"{k}.txt.xz", "wt", encoding="utf-8") as packed:
            packed.write("random,frame0,1.0\n")
    with pytest.warns(InputWarning, match=r"left out: 0\.txt\.xz"):
        prepared = prepare([str(folder)], tmp_path / "set")
    assert [shard["structures"] for shard in prepared.manifest["shards"]] == [2, 2, 2]
    assert prepared[4].energy.item() == -22.0
    assert prepared[4].forces.shape == (6, 3)
