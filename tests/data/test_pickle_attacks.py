"""Attacks on unpicklers: none runs, each ends in an error that names the record, in bounded memory.

Those that would take memory or end the process run in a process of their own.
"""

import copyreg
import io
import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from molflt.data.oc20 import unpickle as safe_pickle
from molflt.data.oc20.unpickle import load_record, load_value
from molflt.errors import InputError
from tests.data.pickles import Call, global_, in_tensor, legacy_save, stack_global, text


def _archive(names):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _programs(flag):
    """Pickles that make a file where they run, and the name by which each must be refused."""
    touch, python = f"touch {flag}", f"open({str(flag)!r}, 'w').close()"
    return {
        "REDUCE": (global_("os", "system") + text(touch) + b"\x85R.", "os.system"),
        "in the middle of a Data": (pickle.dumps(Data(pos=Call(os.system, (touch,)))), "posix.system"),
        "name of Python 2": (f"c__builtin__\neval\n(S{python!r}\ntR.".encode(), "__builtin__.eval"),
        "getattr": (pickle.dumps(Call(getattr, (Call(__import__, ("os",)), "system")))[:-1] + text(touch)
                    + b"\x85R.", "builtins.getattr"),
        "INST": (f"(S'{touch}'\nios\nsystem\n.".encode(), "os.system"),
        "OBJ": (b"(" + global_("subprocess", "Popen") + b"](" + text("touch") + text(str(flag)) + b"eo.",
                "subprocess.Popen"),
        "NEWOBJ": (b"\x80\x02" + global_("subprocess", "Popen") + b")\x81}0" + global_("os", "system") + text(touch)
                   + b"\x85R.", "subprocess.Popen"),
        "NEWOBJ_EX": (b"\x80\x04" + global_("builtins", "map") + global_("os", "system") + b"](" + text(touch)
                      + b"e\x86}\x92q\x000" + global_("builtins", "list") + b"h\x00\x85R.", "builtins.map"),
        "dotted name": (b"\x80\x04" + stack_global("builtins", "eval.__call__") + text(python) + b"\x85R.",
                        "builtins.eval.__call__"),
        "BUILD __setstate__": (b"\x80\x02" + global_("types", "SimpleNamespace") + b")R}" + text("__setstate__")
                               + global_("os", "system") + b"sb" + text(touch) + b"b.", "types.SimpleNamespace"),
    }  # fmt: skip


PROGRAMS = sorted(_programs(Path("unused")))


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_does_not_run_and_would(name, tmp_path):
    flag = tmp_path / "flag"
    raw, refused = _programs(flag)[name]
    with pytest.raises(InputError, match=rf"bad\.lmdb#7.*refused: the record asks for '{refused}'"):
        load_record(raw, "bad.lmdb#7")
    assert not flag.exists()
    # power: an ordinary unpickler runs it
    pickle.loads(raw)
    deadline = time.monotonic() + 10
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert flag.exists()


@pytest.mark.parametrize(
    ("module", "name"), [("torch_geometric.data.data", "Data.__init__.__globals__"), ("numpy", "ndarray.tofile")]
)
def test_dotted_names_below_allowed_ones(module, name):
    with pytest.raises(InputError, match=rf"refused: the record asks for '{module}\.{name}'"):
        load_record(b"\x80\x04" + stack_global(module, name) + b".", "bad")


@pytest.mark.parametrize("save", [pickle.dumps, legacy_save])
def test_a_program_in_a_tensor(save, tmp_path):
    """As ``torch.save`` writes it, or an archive, in place of a storage or of the whole record."""
    flag = tmp_path / "flag"
    program = Call(os.system, (f"touch {flag}",))
    saved, evil = save(program), pickle.dumps(program, 2)
    # of torch.save, TorchScript, one in another, and the forms before there were archives
    archives = [
        _archive({"archive/data.pkl": evil, "archive/version": b"3"}),
        _archive({"a/data.pkl": evil, "a/code/__torch__.py": b"import os", "a/version": b"3"}),
        _archive({"archive/data.pkl": _archive({"archive/data.pkl": evil})}),
        HEADER[:-2] + evil,
        b"sys_info".ljust(512, b"\0") + evil,
    ]
    for raw in (saved, *archives):
        with pytest.raises(InputError, match=r"^bad: "):
            load_record(raw, "bad")
        with pytest.raises(InputError, match=r"^bad: field 'pos': not a readable tensor"):
            load_record(in_tensor(raw), "bad")
    assert not flag.exists()
    pickle.loads(saved) if save is pickle.dumps else torch.load(io.BytesIO(saved), weights_only=False)
    assert flag.exists()


@pytest.mark.parametrize("code", [b"\x82\xf1", b"\x83\xf1\x00", b"\x84\xf1\x00\x00\x00"])
def test_extension_codes(code):
    raw = b"\x80\x02" + code + b"."
    copyreg.add_extension("os", "system", 241)
    try:
        # now it is in the cache, which find_class does not guard
        assert pickle.loads(raw) is os.system
        with pytest.raises(InputError, match=r"bad: .*extension codes"):
            load_value(raw, "bad")
    finally:
        copyreg.remove_extension("os", "system", 241)


@pytest.mark.parametrize(("module", "name"), sorted(safe_pickle._ALLOWED))
def test_a_record_cannot_change_an_allowed_class(module, name):
    before = {key: dict(vars(kind)) for key, kind in safe_pickle._ALLOWED.items()}
    for state in ({"__setstate__": 1}, (None, {"__setstate__": 1}), (None, {"__call__": 1})):
        with pytest.raises(InputError):
            load_value(b"\x80\x04" + global_(module, name) + pickle.dumps(state, 0)[:-1] + b"b.", "x")
    assert {key: dict(vars(kind)) for key, kind in safe_pickle._ALLOWED.items()} == before


@pytest.mark.parametrize("kind", ["InertObject", "dict"])
def test_build_cannot_poison_what_is_made(kind):
    made = global_("torch_geometric.data.data", "Data") + b")R" if kind == "InertObject" else b"}"
    for key in ("__setstate__", "__class__", "__dict__", "state"):
        for state in (b"}" + text(key) + b"K\x01s", b"N}" + text(key) + b"K\x01s\x86"):
            try:
                value = load_value(b"\x80\x02" + made + state + b"b.", "bad")
            except InputError:
                continue
            # what a Data is given is kept as content, not as attributes
            assert type(value).__name__ == "InertObject"
            assert value.state == {key: 1}
            assert "__setstate__" not in vars(type(value)) or callable(vars(type(value))["__setstate__"])


@pytest.mark.parametrize("protocol", range(2, 6))
def test_arrays_of_objects_and_pointers_are_refused(protocol):
    # NumPy would take flags and element type from the state and follow eight bytes as a pointer
    pointers = Call(np.dtype, ("i8", False, True), (3, "|", (np.dtype("O"), (1,)), None, None, 8, 8, 0))
    objects = np.array([Call(os.getpid)], dtype=object)
    for value in (objects, np.zeros(2, dtype=[("a", "O")]), pointers):
        with pytest.raises(InputError, match=r"bad: .*not allowed"):
            load_value(pickle.dumps(value, protocol), "bad")


@pytest.mark.parametrize(
    "geometry",
    [(0, (5,), (1,)), (4, (1,), (1,)), (0, (2, 2), (3, 1)), (1 << 40, (1,), (1,)), (0, (2,), (1 << 61,)),
     (-1, (1,), (1,)), (0, (-1,), (1,)), (0, (2,), (-1,))],
    ids=str,
)  # fmt: skip
def test_a_tensor_outside_its_storage(geometry):
    storage = legacy_save(torch.arange(4.0)._typed_storage())
    with pytest.raises(InputError, match=r"does not fit its storage|not a count"):
        load_record(in_tensor(storage, **dict(zip(("offset", "size", "stride"), geometry, strict=True))), "x")


def _repeated(prepared, call, n):
    """A list of ``n`` results of a call on what stands in the memo."""
    return b"\x80\x04" + prepared + b"](" + call * n + b"e."


N = 2_000_000
LENGTH = struct.pack("<I", N)
TEXT = b"X" + LENGTH + b"a" * N + b"q\x010" + text("latin1") + b"q\x020" + global_("_codecs", "encode") + b"q\x030"
STORAGE = (
    b"\x96" + struct.pack("<Q", N) + b"a" * N + b"q\x010" + global_("torch.storage", "_load_from_bytes") + b"q\x030"
)
BUFFER = (
    b"B" + LENGTH + b"a" * N + b"q\x010" + global_("numpy", "dtype") + text("u1") + b"\x85Rq\x020"
    + b"J" + LENGTH + b"\x85q\x040" + global_("numpy.core.numeric", "_frombuffer") + b"q\x030"
)  # fmt: skip
PAIRS = b"](" + b"".join(b"J" + struct.pack("<i", k) + b"N\x86" for k in range(19_000)) + b"eq\x010"
NESTED = b"".join(b"0](" + (b"h" + bytes([k])) * 50 + b"eq" + bytes([k + 1]) for k in range(12))
HEADER = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02"
COPIED = "many times its size"
WIDE = b"".join(b"\x8a\x0c" + (k * ((1 << 61) - 1)).to_bytes(12, "little") + b"N" for k in range(100_000))
LONG = np.zeros(130_000)
WATER = {"cell": np.eye(3), "atomic_numbers": [1, 2], "pos": np.array([[0.0, 0, 0], [1, 1, 1]])}
UNFOLDS = "unfolds to more than 64 MiB"
BOMBS = {
    "one array many times": (pickle.dumps({**WATER, "pos": [LONG] * 20_000}), UNFOLDS),
    "in lists of lists": (pickle.dumps({**WATER, "pos": [[[LONG] * 20] * 20] * 20}), UNFOLDS),
    "as tags": (pickle.dumps({**WATER, "tags": [LONG] * 20_000}), UNFOLDS),
    "as a number": (pickle.dumps({**WATER, "natoms": [LONG] * 20_000}), UNFOLDS),
    "one text many times": (pickle.dumps({**WATER, "name": ["x" * N] * 20_000}), UNFOLDS),
    "texts as long as the longest": (pickle.dumps({**WATER, "pos": ["x" * N] + [""] * 60_000}), "more than 256 MiB"),
    "as a label": (pickle.dumps({**WATER, "sid": ["x" * N] + [""] * 60_000}), "more than 256 MiB"),
    "keys with one hash": (b"\x80\x04}(" + WIDE + b"u.", "more than 256 integers of 62 bits"),
    "text to bytes": (_repeated(TEXT, b"h\x03h\x01h\x02\x86R", 19_000), COPIED),
    "storages": (_repeated(STORAGE, b"h\x03h\x01\x85R", 19_000), COPIED),
    "arrays": (_repeated(BUFFER, b"h\x03(h\x01h\x02h\x04tR", 19_000), COPIED),
    "dicts": (_repeated(PAIRS + global_("collections", "OrderedDict") + b"q\x030", b"h\x03h\x01\x85R", 900), COPIED),
    "tuples in tuples as a key": (b"\x80\x04}N" + b"\x85" * 1_000_000 + b"K\x01s.", "more than 20000 tuples"),
    "message": (b"\x80\x04" + global_("torch", "Size") + b"]q\x00" + NESTED + b"\x85R.", "is not a short tuple"),
    "bytes of any length in a tensor": (
        in_tensor(HEADER + global_("builtins", "bytearray") + b"J\x00\x00\x00\x70\x85R."),
        "no storage as torch.save writes it",
    ),
    "archive in a tensor": (
        in_tensor(_archive({"archive/data/0": bytes(400 << 20)})),
        "no storage as torch.save writes it",
    ),
    "memo place": (b"\x80\x02Nr\xff\xff\xff\x7f.", "memo place"),
    "memo place in a tensor": (in_tensor(HEADER + b"Nr\xff\xff\xff\x7f."), "no storage as torch.save writes it"),
}
"""Each takes gigabytes, hours or the process where its guard is missing."""

CHILD = """
import resource, sys, numpy
from molflt.data.record import to_data
from molflt.data.oc20.unpickle import load_record
from molflt.errors import InputError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for line in sys.stdin.read().split():
    try:
        to_data(load_record(bytes.fromhex(line), "bad.lmdb#1"), "bad.lmdb#1")
    except InputError as error:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(grown >> 10, str(error)[:300].replace(chr(10), " "), flush=True)
"""


def test_bombs_end_in_an_error_and_take_no_memory():
    raws = "\n".join(raw.hex() for raw, _ in BOMBS.values())
    done = subprocess.run([sys.executable, "-c", CHILD], input=raws, text=True, capture_output=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-500:])
    outcomes = done.stdout.splitlines()
    assert len(outcomes) == len(BOMBS)
    for (name, (_, expected)), outcome in zip(BOMBS.items(), outcomes, strict=True):
        grown, message = outcome.split(" ", 1)
        assert message.startswith("bad.lmdb#1"), (name, message)
        assert expected in message, (name, message)
        # the allowance, and what a few megabytes of opcodes make
        assert int(grown) < 700, (name, grown)


def test_repetition_and_nesting_are_bounded():
    value, deep, endless = [0] * 1000, [], []
    for _ in range(4):
        value = [value] * 1000
    for _ in range(50):
        deep = [deep]
    endless.append(endless)
    giant = in_tensor(legacy_save(torch.zeros(1)._typed_storage()), size=(1 << 40,), stride=(0,))
    for raw, message in (
        (pickle.dumps({"pos": value}), "unfolds to more than"),
        (giant, "unfolds to more than"),
        (pickle.dumps({"pos": deep}), "nested"),
        (pickle.dumps({"pos": endless}), "nested"),
    ):
        with pytest.raises(InputError, match=message):
            load_record(raw, "x")
