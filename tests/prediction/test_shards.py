"""Shards of a prediction: together they are the undivided one, whatever happened to them on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from molflt.prediction.shard_file import open_shard, read_shard

from molflt.data.sources import resolve_inputs
from molflt.errors import InputError
from molflt.prediction import shards
from molflt.prediction.predictor import predict
from molflt.prediction.shards import Shard, divide, merge, predict_shard
from tests.training.runs import environment

MAX_ATOMS = 40


@pytest.fixture
def inputs(tiny_data):
    """Molecules and slabs, 44 structures in all, in the order a user might give."""
    return [str(tiny_data / "val.lmdb"), str(tiny_data / "train.lmdb"), str(tiny_data / "other.lmdb")]


@pytest.fixture
def whole(loaded, inputs):
    return predict(loaded, resolve_inputs(inputs), max_atoms=MAX_ATOMS)[0]


def one(loaded, inputs, text, out, **options):
    structures = resolve_inputs(inputs)
    options = {"max_atoms": MAX_ATOMS, **options}
    return predict_shard([loaded], structures, inputs, Shard.parse(text), out, **options).path


def assert_same(a, b):
    assert a.names == b.names
    assert a.ids == b.ids
    np.testing.assert_array_equal(a.energies, b.energies)
    assert (a.failures, a.elements, a.contractions) == (b.failures, b.elements, b.contractions)
    assert (a.std is None) == (b.std is None)
    if a.std is not None and b.std is not None:
        np.testing.assert_array_equal(a.std, b.std)


@pytest.mark.parametrize("n", [1, 3, 7, 60])
def test_together_they_are_the_undivided_one(n, loaded, inputs, whole, tmp_path):
    """Also where there are more shards than batches."""
    paths = [one(loaded, inputs, f"{k}/{n}", tmp_path / "out.csv") for k in range(1, n + 1)]
    assert paths == sorted(paths)
    merged, target = merge(reversed(paths))
    assert target == "y_relaxed"
    assert_same(merged, whole)


def test_an_ensemble(loaded, inputs, tmp_path):
    import copy

    other = copy.deepcopy(loaded)
    other.model.energy_head.factor.data *= 1.01
    members, structures = [loaded, other], resolve_inputs(inputs)
    for number in (1, 2):
        predict_shard(members, structures, inputs, Shard(number, 2), tmp_path / "o.csv", max_atoms=MAX_ATOMS)
    assert_same(merge(tmp_path.glob("o.csv.shard-*"))[0], predict(members, structures, max_atoms=MAX_ATOMS)[0])


def test_skipped_structures_keep_their_place(loaded, inputs, tmp_path, monkeypatch):
    structures = resolve_inputs(inputs)

    class Damaged:
        n_atoms = structures.n_atoms

        def __len__(self):
            return len(structures)

        def __getitem__(self, index):
            if index in (3, 4, 30, 43):
                raise InputError(f"record {index} is damaged")
            return structures[index]

    damaged = Damaged()
    expected, _ = predict(loaded, damaged, max_atoms=MAX_ATOMS, on_error="skip")
    assert sorted(expected.failures) == [3, 4, 30, 43]
    for number in (1, 2, 3):
        predict_shard(
            [loaded],
            damaged,
            inputs,
            Shard(number, 3),
            tmp_path / "out.csv",
            max_atoms=MAX_ATOMS,
            on_error="skip",
        )
    assert_same(merge(tmp_path.glob("out.csv.shard-*"))[0], expected)
    # With "raise", what was computed before the failure is kept, and "skip" goes on from there.
    with pytest.raises(InputError, match="record 30"):
        predict_shard([loaded], damaged, inputs, Shard(3, 3), tmp_path / "b.csv", max_atoms=MAX_ATOMS)


@pytest.mark.parametrize("n", [2, 8])
def test_shards_are_balanced(n):
    random = np.random.default_rng(0)
    costs = random.integers(20, 250, size=400).tolist()
    runs = divide(costs, n)
    assert [k for run in runs for k in range(len(costs))[run]] == list(range(len(costs)))
    loads = np.array([sum(costs[run]) for run in runs])
    assert np.abs(loads - loads.mean()).max() <= max(costs)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "a/b", "1/3/5", "-1/3", "1.0/3", "", "1/9999999"])
def test_no_such_shard(text):
    with pytest.raises(InputError, match="I from 1 to N"):
        Shard.parse(text)


def test_names_sort_by_number():
    names = [Shard(k, 12).path(Path("runs/out.csv")).name for k in range(1, 13)]
    assert names[0] == "out.csv.shard-01-of-12"
    assert names == sorted(names)


def test_a_complete_shard_is_not_computed_again(loaded, inputs, tmp_path, monkeypatch):
    path = one(loaded, inputs, "1/2", tmp_path / "out.csv")
    before = path.read_bytes()

    def refuse(*arguments):
        raise AssertionError("computed again")

    monkeypatch.setattr("molflt.prediction.predictor._predict_batch", refuse)
    one(loaded, inputs, "1/2", tmp_path / "out.csv")
    assert path.read_bytes() == before
    with pytest.raises(AssertionError, match="computed again"):
        one(loaded, inputs, "1/2", tmp_path / "out.csv", overwrite=True)


def test_cut_at_every_place(loaded, inputs, whole, tmp_path):
    """Whatever is left of a file, the shard is completed from it, to the same bytes; or the file is refused."""
    path = one(loaded, inputs, "1/1", tmp_path / "out.csv")
    complete = path.read_bytes()
    lines = complete.splitlines(keepends=True)
    ends = np.cumsum([0, *map(len, lines)])
    cuts = {0, 1, 20, int(ends[1]) - 1, *map(int, ends), int(ends[2]) + 5, int(ends[-1]) - 1, int(ends[-1]) - 30}
    for cut in sorted(cuts):
        path.write_bytes(complete[:cut])
        one(loaded, inputs, "1/1", tmp_path / "out.csv")
        assert path.read_bytes() == complete, cut
    assert_same(merge([path])[0], whole)


@pytest.mark.parametrize("damage", ["flipped", "zeros", "dropped", "more", "twice"])
def test_damage_inside(damage, loaded, inputs, whole, tmp_path):
    path = one(loaded, inputs, "1/1", tmp_path / "out.csv")
    complete = path.read_bytes()
    lines = complete.splitlines(keepends=True)
    damaged = {
        "flipped": b"".join([*lines[:3], lines[3].replace(b"1", b"2", 1), *lines[4:]]),
        "zeros": b"".join([*lines[:3], bytes(len(lines[3])), *lines[4:]]),
        "dropped": b"".join([*lines[:3], b"\n", *lines[4:]]),
        "more": complete + b"text",
        "twice": complete + lines[-1],
    }[damage]
    path.write_bytes(damaged)
    if damage in ("flipped", "zeros", "dropped"):
        with pytest.raises(InputError, match=r"not complete: .*out\.csv\.shard-1-of-1 \(\d+ of 44 structures\)"):
            merge([path])
    one(loaded, inputs, "1/1", tmp_path / "out.csv")
    assert path.read_bytes() == complete
    assert_same(merge([path])[0], whole)


@pytest.mark.parametrize(
    "content",
    [
        b"mine",
        b"\n",
        b"name,y_relaxed_eV\n",
        bytes(300),
        b"%08x null\n" % zlib.crc32(b"null"),
        b"%08x {\n" % zlib.crc32(b"{"),
    ],
)
def test_other_files_are_left_alone(content, loaded, inputs, tmp_path):
    path = Shard(1, 2).path(tmp_path / "out.csv")
    path.write_bytes(content)
    for use in (lambda: merge([path]), lambda: one(loaded, inputs, "1/2", tmp_path / "out.csv")):
        with pytest.raises(InputError, match="is no shard of a prediction"):
            use()
    assert path.read_bytes() == content


def test_a_line_of_another_structure_is_not_believed(loaded, inputs, tmp_path):
    path = one(loaded, inputs, "1/1", tmp_path / "out.csv")
    complete = path.read_bytes()
    header = complete.splitlines(keepends=True)[0]
    for text in (b"[]", b"{}", b'{"names": 3}', b'{"energies": ["x"]}'):
        path.write_bytes(header + b"%08x %s\n" % (zlib.crc32(text), text))
        assert read_shard(path).parts == []
        one(loaded, inputs, "1/1", tmp_path / "out.csv")
        assert path.read_bytes() == complete


def test_shards_of_something_else_are_refused(loaded, inputs, tmp_path, model_path):
    out = tmp_path / "out.csv"
    first = one(loaded, inputs, "1/2", out)
    before = first.read_bytes()
    # The same file name for something else.
    with pytest.raises(InputError, match=r"another --max-atoms \(40, not 50\).*--overwrite"):
        one(loaded, inputs, "1/2", out, max_atoms=50)
    with pytest.raises(InputError, match="other inputs"):
        one(loaded, inputs[::-1], "1/2", out)
    with pytest.raises(InputError, match="another --frequencies"):
        one(loaded, inputs, "1/2", out, frequencies="exact")
    changed = tmp_path / "changed.safetensors"
    content = bytearray(model_path.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    loaded.path = changed
    with pytest.raises(InputError, match="another model"):
        one(loaded, inputs, "1/2", out)
    assert first.read_bytes() == before
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
    with pytest.raises(InputError, match=r"2 of 4 shards are missing: 2, 3; predict with --shard 2/4"):
        merge([paths[0], paths[3]])
    with pytest.raises(InputError, match="shard 2 of 4 is there twice"):
        merge([*paths, paths[1]])
    with pytest.raises(InputError, match="another number of shards"):
        merge([*paths[:3], one(loaded, inputs, "4/5", tmp_path / "out.csv")])
    with pytest.raises(InputError, match="no shards"):
        merge([])
    with pytest.raises(InputError, match="cannot be read: No such file"):
        merge([tmp_path / "nothing"])
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        merge([tmp_path])


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_one_process_a_shard(loaded, inputs, tmp_path):
    path = one(loaded, inputs, "1/2", tmp_path / "out.csv")
    header = read_shard(path).header
    with open_shard(path, header), pytest.raises(InputError, match="another process is writing it"):
        one(loaded, inputs, "1/2", tmp_path / "out.csv")
    one(loaded, inputs, "1/2", tmp_path / "out.csv")


def test_standard_input_is_refused(loaded, tmp_path, inputs):
    structures = resolve_inputs(inputs)
    with pytest.raises(InputError, match="standard input cannot be read again"):
        predict_shard([loaded], structures, ["-"], Shard(1, 2), tmp_path / "out.csv")


KILL = """
import os, signal, sys
from pathlib import Path
from molflt.data.sources import resolve_inputs
from molflt.model.model_file import load_model
from molflt.prediction import shard_file, shards

moment, k = sys.argv[1], int(sys.argv[2])
out, model, *inputs = sys.argv[3:]
count = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

append, to_json = shard_file.ShardWriter.append, shard_file._to_json

def killed(self, part):
    global count
    count += 1
    if count == k and moment == "before":
        die()
    if count == k and moment == "within":
        line = shard_file._line(to_json(part))
        os.write(self._handle.fileno(), line[: len(line) // 2])
        die()
    append(self, part)
    if count == k and moment == "after":
        die()

shard_file.ShardWriter.append = killed
if moment == "header":
    truncate = shard_file._line
    def half(value):
        if "shard" in value:
            Path(out + ".shard-1-of-2").write_bytes(truncate(value)[:50])
            die()
        return truncate(value)
    shard_file._line = half
shards.predict_shard(
    [load_model(model)], resolve_inputs(inputs), inputs, shards.Shard(1, 2), Path(out), max_atoms=40
)
"""


@pytest.mark.slow
def test_killed_at_any_moment(loaded, model_path, inputs, whole, tmp_path):
    out = tmp_path / "out.csv"
    second = one(loaded, inputs, "2/2", out)
    reference = one(loaded, inputs, "1/2", tmp_path / "reference.csv").read_bytes()
    path = Shard(1, 2).path(out)
    # Each attempt goes on from what the last one left; the second starts with nothing but half a header.
    for moment, k in [("header", 0), ("within", 1), ("before", 2), ("within", 1), ("after", 1)]:
        n_before = read_shard(path).n_done if path.exists() and path.stat().st_size > 200 else 0
        killed = subprocess.run(
            [sys.executable, "-c", KILL, moment, str(k), str(out), str(model_path), *inputs],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if moment in ("before", "after"):
            assert read_shard(path).n_done > n_before
    assert os.path.getsize(path) < len(reference)
    with pytest.raises(InputError, match="not complete"):
        merge([path, second])
    one(loaded, inputs, "1/2", out)
    assert path.read_bytes() == reference
    assert_same(merge([path, second])[0], whole)


def test_nothing_but_shards_is_left(loaded, inputs, tmp_path):
    paths = [one(loaded, inputs, f"{k}/3", tmp_path / "new" / "out.csv") for k in (1, 2, 3)]
    assert sorted((tmp_path / "new").iterdir()) == paths
    assert shards.merge(paths)[0].names


def _line(value):
    text = json.dumps(value).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


HEADER = {
    "shard": 1, "first": 0, "end": 2, "n_shards": 1, "model": "m", "inputs": "i", "n_structures": 2, "max_atoms": 9,
    "frequencies": None, "target": "energy",
}  # fmt: skip
PART = {
    "names": ["a", "b"], "ids": ["1", "2"], "energies": [1.0, None], "std": None, "failures": {"1": "no"},
    "elements": [1], "contractions": {"lattice": 2},
}  # fmt: skip


def test_a_line_written_by_hand_is_read(tmp_path):
    (tmp_path / "s").write_bytes(_line(HEADER) + _line(PART))
    assert merge([tmp_path / "s"])[0].names == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [{"n_shards": 10**18}, {"n_shards": 0}, {"shard": -1}, {"end": -1}, {"n_shards": 1_000_000}],
    ids=str,
)
def test_headers_that_lie(change, tmp_path):
    (tmp_path / "s").write_bytes(_line({**HEADER, **change}) + _line(PART))
    with pytest.raises(InputError) as caught:
        merge([tmp_path / "s"])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "change",
    [{"names": "ab"}, {"names": [1, 2]}, {"ids": [[], []]}, {"energies": [[1], [2]]}, {"energies": [10**400, 1]},
     {"std": [1.0]}, {"failures": {"7": "no"}}, {"failures": {"0": []}}, {"elements": [10**9]},
     {"contractions": {"lattice": "2"}, "elements": None}],
    ids=str,
)  # fmt: skip
def test_lines_that_lie_count_as_not_computed(change, tmp_path):
    # with a right checksum, which anybody can compute
    (tmp_path / "s").write_bytes(_line(HEADER) + _line({**PART, **change}))
    with pytest.raises(InputError, match="not complete"):
        merge([tmp_path / "s"])


def test_deeply_nested_lines(tmp_path):
    deep = b"[" * 100_000
    (tmp_path / "s").write_bytes(b"%08x %s\n" % (zlib.crc32(deep), deep))
    with pytest.raises(InputError, match="is no shard"):
        merge([tmp_path / "s"])
