"""Published attacks on unpicklers: none runs, each ends in an error that names the record, in bounded memory.

Those that would take memory or end the process run in a process of their own.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from molflt.data.safe_pickle import load_record, load_value
from molflt.errors import InputError

LATIN1 = b"X\x06\x00\x00\x00latin1"


class _Call:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _programs(flag: Path) -> dict[str, bytes]:
    """Pickles that make a file where they run; each is tried without a guard below."""
    touch, python = f"touch {flag}", f"open({str(flag)!r}, 'w').close()"
    evil = pickle.dumps(_Call(os.system, (touch,)), 2)
    loads = _global("pickle", "loads") + b"B" + struct.pack("<I", len(evil)) + evil + b"\x85R."
    return {
        "REDUCE os.system": _global("os", "system") + _text(touch) + b"\x85R.",
        "REDUCE subprocess": pickle.dumps(_Call(subprocess.check_call, (["touch", str(flag)],))),
        "REDUCE exec": _global("builtins", "exec") + _text(python) + b"\x85R.",
        "REDUCE eval": _global("builtins", "eval") + _text(python) + b"\x85R.",
        "INST": f"(S'{touch}'\nios\nsystem\n.".encode(),
        "OBJ": b"(" + _global("subprocess", "Popen") + b"]" + b"(" + _text("touch") + _text(str(flag)) + b"eo.",
        "NEWOBJ": b"\x80\x02" + _global("subprocess", "Popen") + b")\x81}" + b"0" + _global("os", "system")
        + _text(touch) + b"\x85R.",
        "NEWOBJ_EX": b"\x80\x04" + _global("builtins", "map") + _global("os", "system") + b"](" + _text(touch)
        + b"e\x86}\x92" + b"q\x000" + _global("builtins", "list") + b"h\x00\x85R.",
        "STACK_GLOBAL dotted": b"\x80\x04\x8c\x08builtins\x8c\x0deval.__call__\x93" + _text(python) + b"\x85R.",
        "BUILD __setstate__": b"\x80\x02" + _global("types", "SimpleNamespace") + b")R}" + _text("__setstate__")
        + _global("os", "system") + b"sb" + _text(touch) + b"b.",
        "pickle in a pickle": loads,
    }  # fmt: skip


PROGRAMS = sorted(_programs(Path("unused")))


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_does_not_run(name: str, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with pytest.raises(InputError, match=r"bad\.lmdb#7.*refused: the record asks for"):
        load_record(_programs(flag)[name], "bad.lmdb#7")
    assert not flag.exists()


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_would_run(name: str, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    pickle.loads(_programs(flag)[name])
    for _ in range(300):
        if flag.exists():
            break
        subprocess.run(["sleep", "0.01"], check=True)
    assert flag.exists()


@pytest.mark.parametrize("code", [b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00"])
def test_extension_codes(code: bytes) -> None:
    with pytest.raises(InputError, match=r"bad: .*extension codes"):
        load_value(b"\x80\x02" + code + b".", "bad")


@pytest.mark.parametrize("raw", [b"Pid\n.", b"\x80\x02K\x01Q."])
def test_persistent_ids(raw: bytes) -> None:
    with pytest.raises(InputError, match="bad: "):
        load_value(raw, "bad")


@pytest.mark.parametrize("kind", ["InertObject", "dict"])
def test_build_cannot_poison_what_is_made(kind: str) -> None:
    made = _global("torch_geometric.data.data", "Data") + b")R" if kind == "InertObject" else b"}"
    for key in ("__setstate__", "__class__", "__dict__", "state"):
        for state in (b"}" + _text(key) + b"K\x01s", b"N}" + _text(key) + b"K\x01s\x86"):
            try:
                value = load_value(b"\x80\x02" + made + state + b"b.", "bad")
            except InputError:
                continue
            # what a Data is given is kept as content, not as attributes
            assert type(value).__name__ == "InertObject"
            assert value.state == {key: 1}
            assert "__setstate__" not in vars(type(value)) or callable(vars(type(value))["__setstate__"])


@pytest.mark.parametrize(
    "opcode",
    [b"\x8e" + b"\xff" * 8, b"\x8e" + struct.pack("<Q", 1 << 40), b"\x8d" + struct.pack("<Q", 1 << 40),
     b"\x96" + struct.pack("<Q", 1 << 40), b"\x8b" + struct.pack("<i", (1 << 31) - 1), b"B" + b"\xff" * 4],
    ids=["BINBYTES8 most", "BINBYTES8", "BINUNICODE8", "BYTEARRAY8", "LONG4", "BINBYTES"],
)  # fmt: skip
def test_lengths_that_are_not_there(opcode: bytes) -> None:
    with pytest.raises(InputError, match=r"bad: .*ends before its last opcode"):
        load_value(b"\x80\x04" + opcode + b"x.", "bad")


def test_a_frame_that_is_not_there() -> None:
    with pytest.raises(InputError, match="bad: "):
        load_value(b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.", "bad")


def _archive(names: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _in_tensor(storage: bytes) -> bytes:
    rest = (0, (1,), (1,), False, {})
    loaded = _Call(torch.storage._load_from_bytes, (storage,))
    return pickle.dumps({"pos": _Call(torch._utils._rebuild_tensor_v2, (loaded, *rest))})


def test_archives_in_place_of_records_and_storages(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    evil = pickle.dumps(_Call(os.system, (f"touch {flag}",)), 2)
    archives = {
        "torch zip": _archive({"archive/data.pkl": evil, "archive/version": b"3"}),
        "TorchScript": _archive(
            {"a/data.pkl": evil, "a/code/__torch__.py": b"import os", "a/constants.pkl": evil, "a/version": b"3"}
        ),
        "nested": _archive({"archive/data.pkl": _archive({"archive/data.pkl": evil})}),
        "legacy": b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}." + evil,
        "legacy tar": b"sys_info".ljust(512, b"\0") + evil,
        "pickle": evil,
    }
    for raw in archives.values():
        with pytest.raises(InputError, match=r"bad\.lmdb#1"):
            load_record(raw, "bad.lmdb#1")
        with pytest.raises(InputError, match=r"bad\.lmdb#1: field 'pos'|posix\.system"):
            load_record(_in_tensor(raw), "bad.lmdb#1")
    assert not flag.exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_object_arrays_are_refused(protocol: int) -> None:
    for array in (np.array([_Call(os.getpid, ())], dtype=object), np.zeros(2, dtype=[("a", "O")])):
        with pytest.raises(InputError, match=r"bad: .*not allowed"):
            load_value(pickle.dumps(array, protocol), "bad")


def _repeated(prepared: bytes, call: bytes, n: int) -> bytes:
    """A list of ``n`` results of a call on what stands in the memo."""
    return b"\x80\x04" + prepared + b"](" + call * n + b"e."


N = 2_000_000
LENGTH = struct.pack("<I", N)
TEXT = b"X" + LENGTH + b"a" * N + b"q\x010" + LATIN1 + b"q\x020" + _global("_codecs", "encode") + b"q\x030"
STORAGE = (
    b"\x96" + struct.pack("<Q", N) + b"a" * N + b"q\x010" + _global("torch.storage", "_load_from_bytes") + b"q\x030"
)
BUFFER = (
    b"B" + LENGTH + b"a" * N + b"q\x010" + _global("numpy", "dtype") + _text("u1") + b"\x85Rq\x020"
    + b"J" + LENGTH + b"\x85q\x040" + _global("numpy.core.numeric", "_frombuffer") + b"q\x030"
)  # fmt: skip
PAIRS = b"](" + b"".join(b"J" + struct.pack("<i", k) + b"N\x86" for k in range(19_000)) + b"eq\x010"
NESTED = b"".join(b"0](" + (b"h" + bytes([k])) * 50 + b"eq" + bytes([k + 1]) for k in range(12))
HEADER = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02"
COPIED = "many times its size"
BOMBS = {
    "text to bytes": (_repeated(TEXT, b"h\x03h\x01h\x02\x86R", 19_000), COPIED),
    "storages": (_repeated(STORAGE, b"h\x03h\x01\x85R", 19_000), COPIED),
    "arrays": (_repeated(BUFFER, b"h\x03(h\x01h\x02h\x04tR", 19_000), COPIED),
    "dicts": (_repeated(PAIRS + _global("collections", "OrderedDict") + b"q\x030", b"h\x03h\x01\x85R", 900), COPIED),
    "tuples in tuples as a key": (b"\x80\x04}N" + b"\x85" * 1_000_000 + b"K\x01s.", "more than 20000 tuples"),
    "message": (b"\x80\x04" + _global("torch", "Size") + b"]q\x00" + NESTED + b"\x85R.", "is not a short tuple"),
    "bytes of any length in a tensor": (
        _in_tensor(HEADER + _global("builtins", "bytearray") + b"J\x00\x00\x00\x70\x85R."),
        "builtins.bytearray",
    ),
    "archive in a tensor": (_in_tensor(_archive({"archive/data/0": bytes(400 << 20)})), "zip archive"),
}
"""Each takes gigabytes, hours or the process where its guard is missing."""

CHILD = """
import resource, sys, numpy
from molflt.data.safe_pickle import load_record
from molflt.errors import InputError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for line in sys.stdin.read().split():
    try:
        load_record(bytes.fromhex(line), "bad.lmdb#1")
    except InputError as error:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(grown >> 10, str(error)[:300].replace(chr(10), " "), flush=True)
"""


def _outcomes(raws: list[bytes], child: str = CHILD) -> list[tuple[int, str]]:
    """In a process of its own: MiB that reading took up to here, and the error."""
    done = subprocess.run(
        [sys.executable, "-c", child],
        input="\n".join(raw.hex() for raw in raws),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-500:])
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return [(int(grown), text) for grown, text in lines]


def test_bombs_end_in_an_error_and_take_no_memory() -> None:
    outcomes = _outcomes([raw for raw, _ in BOMBS.values()])
    assert len(outcomes) == len(BOMBS)
    for (name, (_, expected)), (grown, text) in zip(BOMBS.items(), outcomes, strict=True):
        assert text.startswith("bad.lmdb#1"), (name, text)
        assert expected in text, (name, text)
        # the allowance, and what a few megabytes of opcodes make
        assert grown < 700, (name, grown)
