"""predict --shard and merge, as commands."""

import shutil

import numpy as np
import pytest


@pytest.fixture
def folder(tiny_data, tmp_path):
    """Three LMDBs in a folder, as in OC20."""
    (tmp_path / "data").mkdir()
    for k, name in enumerate(("train", "val", "other")):
        shutil.copy(tiny_data / f"{name}.lmdb", tmp_path / "data" / f"data.{k:04d}.lmdb")
    return tmp_path / "data"


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_folder_in_shards(suffix, molflt, model_path, folder, tmp_path):
    whole, merged = tmp_path / f"whole{suffix}", tmp_path / f"merged{suffix}"
    options = ("--max-atoms", 40)
    assert molflt("predict", model_path, folder, "-o", whole, *options).status == 0
    for k in (3, 1, 2):
        result = molflt("predict", model_path, folder, "-o", merged, "--shard", f"{k}/3", *options)
        assert (result.status, result.err) == (0, "")
        assert f"structures in {merged}.shard-{k}-of-3" in result.out
        assert not merged.exists()
    again = molflt("predict", model_path, folder, "-o", merged, "--shard", "2/3", *options)
    assert again.out.startswith("complete already: ")
    result = molflt("merge", *tmp_path.glob("merged*shard-*"), "-o", merged)
    assert result.status == 0
    assert result.out == f"44 energies (y_relaxed, eV) of 3 shards in {merged}\n"
    assert merged.read_bytes() == whole.read_bytes()
    refused = molflt("merge", *tmp_path.glob("merged*shard-*"), "-o", tmp_path / "out.extxyz")
    assert (refused.status, "extxyz holds structures" in refused.err) == (2, True)
    assert molflt("merge", *tmp_path.glob("merged*shard-*"), "-o", merged).status == 2


def test_a_submission(molflt, model_path, folder, tmp_path):
    whole, merged = tmp_path / "whole.npz", tmp_path / "merged.npz"
    molflt("predict", model_path, folder, "-o", whole, "--oc20-split", "id")
    for k in (1, 2):
        molflt("predict", model_path, folder, "-o", merged, "--shard", f"{k}/2")
    shards = list(tmp_path.glob("merged.npz.shard-*"))
    for split in ("id", "ood_ads"):
        assert molflt("merge", *shards, "-o", merged, "--oc20-split", split).status == 0
    # What is there already is not written again.
    for again in (("predict", model_path, folder, "-o", whole), ("merge", *shards, "-o", merged)):
        assert molflt(*again, "--oc20-split", "id").status == 2
    with np.load(whole) as expected, np.load(merged) as found:
        assert found["id_ids"].tolist() == expected["id_ids"].tolist() == found["ood_ads_ids"].tolist()
        np.testing.assert_array_equal(found["id_energy"], expected["id_energy"])
