"""Shards of a prediction, from Python and as commands: together they are the undivided one."""

import json
import shutil
import sys

import numpy as np
import pytest

from molflt.data.open import resolve_inputs
from molflt.errors import InputError
from molflt.prediction import shards
from molflt.prediction.model import Model
from molflt.prediction.shards import Shard, divide, merge, predict_shard, read_shard

MAX_ATOMS = 40


@pytest.fixture
def inputs(tiny_data):
    return [str(tiny_data / f"{name}.lmdb") for name in ("val", "train", "other")]


@pytest.fixture
def complete(loaded, inputs, tmp_path):
    return one(loaded, inputs, "1/1", tmp_path / "out.csv")


def one(loaded, inputs, text, out, structures=None, **options):
    model = Model(loaded if isinstance(loaded, list) else [loaded], "cpu")
    structures = resolve_inputs(inputs) if structures is None else structures
    given = {"max_atoms": MAX_ATOMS, **options}
    return predict_shard(model, structures, inputs, Shard.parse(text), out, **given)[1]


def assert_same(a, b):
    assert (a.names, a.ids) == (b.names, b.ids)
    np.testing.assert_array_equal(a.energies, b.energies)
    assert (a.failures, a.elements, a.contractions) == (b.failures, b.elements, b.contractions)
    assert (a.uncertainty_eV is None) == (b.uncertainty_eV is None)
    if a.uncertainty_eV is not None:
        np.testing.assert_array_equal(a.uncertainty_eV, b.uncertainty_eV)


@pytest.mark.parametrize(("n", "ensemble"), [(7, True), (20, False)])
def test_together_they_are_the_undivided_one(n, ensemble, loaded, two, inputs, tmp_path):
    """More shards than batches are no exception; and nothing but shards is left."""
    models = two if ensemble else [loaded]
    paths = [one(models, inputs, f"{k}/{n}", tmp_path / "new" / "out.csv") for k in range(1, n + 1)]
    assert paths == sorted((tmp_path / "new").iterdir())
    merged, target = merge(reversed(paths))
    assert target == "y_relaxed"
    assert_same(merged, Model(models, "cpu").predict_set(resolve_inputs(inputs), max_atoms=MAX_ATOMS))


def test_skipped_structures_keep_their_place(loaded, inputs, tmp_path):
    class Damaged:
        whole = resolve_inputs(inputs)
        n_atoms = whole.n_atoms

        def __len__(self):
            return len(self.whole)

        def __getitem__(self, index):
            if index in (3, 4, 30, 43):
                raise InputError(f"record {index} is damaged")
            return self.whole[index]

    expected = Model([loaded], "cpu").predict_set(Damaged(), "skip", max_atoms=MAX_ATOMS)
    assert sorted(expected.failures) == [3, 4, 30, 43]
    out = tmp_path / "out.csv"
    # With "raise", what was computed before the failure is kept, and "skip" goes on from there.
    with pytest.raises(InputError, match="record 30"):
        one(loaded, inputs, "3/3", out, Damaged())
    paths = [one(loaded, inputs, f"{k}/3", out, Damaged(), on_error="skip") for k in (1, 2, 3)]
    assert_same(merge(paths)[0], expected)


def test_shards_are_balanced():
    costs = np.random.default_rng(0).integers(20, 250, size=400).tolist()
    runs = divide(costs, 8)
    assert [k for run in runs for k in range(len(costs))[run]] == list(range(len(costs)))
    loads = np.array([sum(costs[run]) for run in runs])
    assert np.abs(loads - loads.mean()).max() <= max(costs)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "a/b", "1/3/5", "-1/3", "1.0/3", "", "1/9999999"])
def test_no_such_shard(text):
    with pytest.raises(InputError, match="I from 1 to N"):
        Shard.parse(text)


def test_a_complete_shard_is_not_computed_again(complete, loaded, inputs, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("computed again")

    before = complete.read_bytes()
    monkeypatch.setattr("molflt.prediction.predict._predict_batch", refuse)
    one(loaded, inputs, "1/1", complete.with_name("out.csv"))
    assert complete.read_bytes() == before
    with pytest.raises(AssertionError, match="computed again"):
        one(loaded, inputs, "1/1", complete.with_name("out.csv"), overwrite=True)


def test_cut_or_damaged_anywhere(complete, loaded, inputs):
    content = complete.read_bytes()
    lines = content.splitlines(keepends=True)
    ends = [int(end) for end in np.cumsum([0, *map(len, lines)])]
    cuts = sorted({0, 20, ends[1] - 1, ends[1], ends[2], ends[2] + 5, ends[-1] - 30, ends[-1] - 1, ends[-1]})
    inside = [lines[3][:-2] + b"\n", bytes(len(lines[3])), b"\n"]
    left = [content[:cut] for cut in cuts]
    left += [b"".join([*lines[:3], damaged, *lines[4:]]) for damaged in inside]
    left += [content + b"text", content + lines[-1]]
    for k, damaged in enumerate(left):
        complete.write_bytes(damaged)
        if len(cuts) <= k < len(cuts) + len(inside):
            with pytest.raises(InputError, match=r"not complete: .*out\.csv\.shard-1-of-1 \(\d+ of 44 structures\)"):
                merge([complete])
        one(loaded, inputs, "1/1", complete.with_name("out.csv"))
        assert complete.read_bytes() == content, damaged[-100:]


@pytest.mark.parametrize(
    "content",
    [b"mine", b"\n", b"name,y_relaxed_eV\n", bytes(300), b"null\n", b"{\n", b"[" * 100_000 + b"\n"],
    ids=len,
)
def test_other_files_are_left_alone(content, loaded, inputs, tmp_path):
    path = Shard(1, 2).path(tmp_path / "out.csv")
    path.write_bytes(content)
    for use in (lambda: merge([path]), lambda: one(loaded, inputs, "1/2", tmp_path / "out.csv")):
        with pytest.raises(InputError, match="is not a shard of a prediction"):
            use()
    assert path.read_bytes() == content


def test_shards_of_something_else_are_refused(loaded, inputs, tmp_path, model_path):
    out = tmp_path / "out.csv"
    first = one(loaded, inputs, "1/2", out)
    before = first.read_bytes()
    # The same file name for something else.
    with pytest.raises(InputError, match=r"another --max-atoms \(40, not 50\).*--overwrite"):
        one(loaded, inputs, "1/2", out, max_atoms=50)
    with pytest.raises(InputError, match="other inputs"):
        one(loaded, inputs[::-1], "1/2", out)
    with pytest.raises(InputError, match="another --far-field-method"):
        one(loaded, inputs, "1/2", out, frequencies="exact")
    with pytest.raises(InputError, match="standard input cannot be read again"):
        one(loaded, ["-"], "1/2", out, resolve_inputs(inputs))
    changed = tmp_path / "changed.safetensors"
    content = bytearray(model_path.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    loaded.path = changed
    with pytest.raises(InputError, match="another model"):
        one(loaded, inputs, "1/2", out)
    assert first.read_bytes() == before
    # The other member of the same file.
    loaded.metadata.seed += 1
    with pytest.raises(InputError, match="another model"):
        one(loaded, inputs, "1/2", out)
    # The second half of something else.
    second = one(loaded, inputs, "2/2", out)
    with pytest.raises(InputError, match=r"shard-2-of-2: was made with another model, compared with .*shard-1-of-2"):
        merge([first, second])


def test_inputs_that_changed(loaded, tiny_data, tmp_path):
    copied = tmp_path / "in.lmdb"
    copied.write_bytes((tiny_data / "val.lmdb").read_bytes())
    one(loaded, [str(copied)], "1/2", tmp_path / "out.csv")
    copied.write_bytes((tiny_data / "other.lmdb").read_bytes())
    with pytest.raises(InputError, match="inputs that have changed"):
        one(loaded, [str(copied)], "1/2", tmp_path / "out.csv")


def test_missing_and_double_shards(loaded, inputs, tmp_path):
    paths = [one(loaded, inputs, f"{k}/4", tmp_path / "out.csv") for k in range(1, 5)]
    for given, message in [
        ([paths[0], paths[3]], r"2 of 4 shards are missing: 2, 3; predict with --shard 2/4"),
        ([*paths, paths[1]], "shard 2 of 4 is there twice"),
        ([*paths[:3], one(loaded, inputs, "4/5", tmp_path / "out.csv")], "another number of shards"),
        ([], "no shards"),
        ([tmp_path / "nothing"], "cannot be read: No such file"),
        ([tmp_path], "cannot be read: Is a directory"),
    ]:
        with pytest.raises(InputError, match=message):
            merge(given)


def test_what_is_computed_is_in_the_file_at_once_and_one_process_writes_it(
    complete, loaded, inputs, monkeypatch, tmp_path
):
    """No buffer holds a batch back, so a process that is killed has lost nothing."""
    sound, path, there = shards.predict_batches, tmp_path / "new.csv.shard-1-of-1", []

    def watched(*arguments):
        for part in sound(*arguments):
            there.append(len(read_shard(path).parts))
            if sys.platform != "win32" and len(there) == 1:
                with pytest.raises(InputError, match="another process is writ"):
                    one(loaded, inputs, "1/1", tmp_path / "new.csv")
            yield part

    monkeypatch.setattr(shards, "predict_batches", watched)
    one(loaded, inputs, "1/1", tmp_path / "new.csv")
    assert there == list(range(len(there)))
    assert path.read_bytes() == complete.read_bytes()


HEADER = {
    "shard": 1, "n_structures": 2, "n_shards": 1, "model": "m", "inputs": "i", "max_atoms": 9, "frequencies": None,
    "target": "energy",
}  # fmt: skip
PART = {
    "names": ["a", "b"], "ids": ["1", "2"], "energies": [1.0, float("nan")], "uncertainty_eV": None,
    "failures": {"1": "no"},
    "elements": [1], "contractions": {"lattice": 2}, "info": [{}, {"k": "v"}], "conformers": {}, "warnings": {},
}  # fmt: skip
LIES = [
    {"names": "ab"}, {"names": [1, 2]}, {"ids": [[], []]}, {"energies": [[1], [2]]}, {"energies": ["x", 1]},
    {"uncertainty_eV": [1.0]}, {"failures": {"7": "no"}}, {"failures": {"0": []}}, {"elements": [10**9]},
    {"elements": None}, {"info": [{}]}, {"info": [1, 2]}, {"warnings": {"7": "no"}},
    {"conformers": {"7": [2, 0, 0.1]}}, {"conformers": {"0": [2]}},
]  # fmt: skip


def test_lies_are_refused_or_count_as_not_computed(tmp_path):
    path = tmp_path / "s"

    def write(header, part):
        path.write_text(f"{json.dumps(header)}\n{json.dumps(part)}\n", encoding="utf-8")

    write(HEADER, PART)
    assert merge([path])[0].names == ["a", "b"]
    for wrong in [*({**PART, **lie} for lie in LIES), [], {}]:
        write(HEADER, wrong)
        with pytest.raises(InputError, match="not complete"):
            merge([path])
    changes = [{"n_shards": n} for n in (10**18, 0, 1_000_000)]
    for change in (*changes, {"shard": -1}, {"n_structures": -1}, {"format": "molflt shard 2"}):
        write({**HEADER, **change}, PART)
        with pytest.raises(InputError) as caught:
            merge([path])
        assert len(str(caught.value)) < 1000


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
        assert (result.status, result.out) == (0, "")
        assert f"structures in {merged}.shard-{k}-of-3" in result.err
        assert not merged.exists()
    again = molflt("predict", model_path, folder, "-o", merged, "--shard", "2/3", *options)
    assert again.err.startswith("complete already: ")
    result = molflt("merge", *tmp_path.glob("merged*shard-*"), "-o", merged)
    assert result.status == 0
    assert result.err == f"44 energies of 3 shards in {merged}, in eV\n"
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
