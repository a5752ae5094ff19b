"""Records from strangers: what is read, and what is refused without having run."""

from __future__ import annotations

import contextlib
import copyreg
import io
import os
import pickle
import shutil
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch_geometric.data import Data

from molflt.data import safe_pickle
from molflt.data.safe_pickle import load_record, load_value
from molflt.errors import InputError


class _Call:
    """Pickles to a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def _global(module: str, name: str) -> bytes:
    """STACK_GLOBAL, which takes any text as a name."""
    return b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"


def _legacy_save(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def _zip_save(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class _AsTensor:
    """Pickles as a tensor whose storage holds the given bytes."""

    def __init__(self, storage: bytes, offset: Any = 0, size: Any = (1,), stride: Any = (1,)) -> None:
        self.storage, self.rest = storage, (offset, size, stride, False, OrderedDict())

    def __reduce__(self) -> tuple[Any, ...]:
        storage = _Call(torch.storage._load_from_bytes, self.storage)
        return (torch._utils._rebuild_tensor_v2, (storage, *self.rest))


FLAG = "flag"


def _attacks(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that create a file when they run, and the name each must be refused by."""
    touch = f"touch {folder / FLAG}"
    python = f"open({str(folder / FLAG)!r}, 'w').close()"
    system = _Call(os.system, touch)
    evil = pickle.dumps(system)
    return {
        "os.system": (pickle.dumps({"pos": system}), "system"),
        "os.system, protocol 0": (pickle.dumps(system, protocol=0), "system"),
        "inst opcode": (f"(S'{touch}'\nios\nsystem\n.".encode(), "os.system"),
        "builtins.eval": (pickle.dumps(_Call(eval, python)), "builtins.eval"),
        "python 2 name": (f"c__builtin__\neval\n(S{python!r}\ntR.".encode(), "__builtin__.eval"),
        "exec": (pickle.dumps(_Call(exec, python)), "builtins.exec"),
        "getattr": (
            pickle.dumps(_Call(_Call(getattr, os, "system").call[0], _Call(__import__, "os"), "system")),
            "builtins.getattr",
        ),
        "dotted name": (
            b"\x80\x04" + _global("torch_geometric.data.data", "Data.__init__.__globals__") + b".",
            "torch_geometric.data.data.Data.__init__.__globals__",
        ),
        "dotted module of numpy": (
            b"\x80\x04" + _global("numpy", "ndarray.tofile") + b".",
            "numpy.ndarray.tofile",
        ),
        "payload in a storage": (pickle.dumps({"pos": _AsTensor(evil)}), "posix.system"),
        "saved payload in a storage": (pickle.dumps({"pos": _AsTensor(_legacy_save(system))}), "posix.system"),
        "zip payload in a storage": (pickle.dumps({"pos": _AsTensor(_zip_save(system))}), "zip archive"),
        "payload in the middle of a Data": (pickle.dumps(Data(pos=system)), "posix.system"),
        "functools.partial": (
            b"\x80\x04" + _global("functools", "partial") + _global("os", "system") + b"\x85R.",
            "functools.partial",
        ),
    }


@pytest.mark.parametrize("attack", sorted(_attacks(Path("unused"))))
def test_attack_is_refused_by_name_and_does_not_run(attack: str, tmp_path: Path) -> None:
    raw, name = _attacks(tmp_path)[attack]
    with pytest.raises(InputError) as refusal:
        load_record(raw, "bad.lmdb#7")
    assert name in str(refusal.value)
    assert "bad.lmdb#7" in str(refusal.value)
    assert not (tmp_path / FLAG).exists()


@pytest.mark.parametrize(
    "attack", ["os.system", "os.system, protocol 0", "inst opcode", "builtins.eval", "python 2 name", "exec"]
)
def test_attacks_are_real(attack: str, tmp_path: Path) -> None:
    raw, _ = _attacks(tmp_path)[attack]
    pickle.loads(raw)
    assert (tmp_path / FLAG).exists()


@pytest.mark.parametrize("save", [pickle.dumps, _legacy_save])
def test_payload_in_a_storage_is_real(save: Any, tmp_path: Path) -> None:
    raw = save(_Call(os.system, f"touch {tmp_path / FLAG}"))
    if save is pickle.dumps:
        pickle.loads(raw)
    else:
        torch.load(io.BytesIO(raw), weights_only=False)
    assert (tmp_path / FLAG).exists()


def _build(target: bytes, state: object) -> bytes:
    """BUILD with a state on what ``target`` leaves on the stack."""
    return b"\x80\x04" + target + pickle.dumps(state, protocol=4)[2:-1].replace(b"\x80\x04", b"") + b"b."


@pytest.mark.parametrize(("module", "name"), sorted(safe_pickle._ALLOWED))
@pytest.mark.parametrize("state", [{"__setstate__": 1}, (None, {"__setstate__": 1}), (None, {"__call__": 1})])
def test_a_record_cannot_change_an_allowed_class(module: str, name: str, state: object) -> None:
    before = {key: dict(vars(kind)) for key, kind in safe_pickle._ALLOWED.items()}
    with pytest.raises(InputError):
        load_value(_build(_global(module, name), state), "x")
    assert {key: dict(vars(kind)) for key, kind in safe_pickle._ALLOWED.items()} == before


def test_object_array_is_refused() -> None:
    with pytest.raises(InputError, match="'O8'"):
        load_record(pickle.dumps({"pos": np.array([1, None], dtype=object)}), "x")


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_dtype_state_cannot_make_pointers_of_bytes(protocol: int) -> None:
    # NumPy would take flags and element type from the state and follow these eight bytes as a pointer
    class Dtype:
        def __reduce__(self) -> tuple[Any, ...]:
            return (np.dtype, ("i8", False, True), (3, "|", (np.dtype("O"), (1,)), None, None, 8, 8, 0))

    with pytest.raises(InputError):
        load_value(pickle.dumps(Dtype(), protocol=protocol), "x")


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [(0, (5,), (1,)), (4, (1,), (1,)), (0, (2, 2), (3, 1)), (1 << 40, (1,), (1,)), (0, (2,), (1 << 61,))],
)
def test_tensor_outside_its_storage_is_refused(offset: int, size: Any, stride: Any) -> None:
    storage = _legacy_save(torch.arange(4.0)._typed_storage())
    raw = pickle.dumps({"pos": _AsTensor(storage, offset, size, stride)})
    with pytest.raises(InputError, match="does not fit its storage"):
        load_record(raw, "x")


@pytest.mark.parametrize(("offset", "size", "stride"), [(-1, (1,), (1,)), (0, (-1,), (1,)), (0, (2,), (-1,))])
def test_negative_tensor_geometry_is_refused(offset: int, size: Any, stride: Any) -> None:
    storage = _legacy_save(torch.arange(4.0)._typed_storage())
    with pytest.raises(InputError, match="not a count"):
        load_record(pickle.dumps({"pos": _AsTensor(storage, offset, size, stride)}), "x")


def test_extension_codes_are_refused() -> None:
    copyreg.add_extension("os", "system", 241)
    try:
        pickle.loads(b"\x80\x02\x82\xf1.")  # now it is in the cache, which find_class does not guard
        with pytest.raises(InputError, match="extension codes"):
            load_value(b"\x80\x02\x82\xf1.", "x")
    finally:
        copyreg.remove_extension("os", "system", 241)


def test_memo_places_that_would_take_all_memory_are_refused() -> None:
    with pytest.raises(InputError, match="memo place"):
        load_value(b"\x80\x02Nr\xff\xff\xff\x7f.", "x")


def test_repetition_is_bounded() -> None:
    value: Any = [0] * 1000
    for _ in range(4):
        value = [value] * 1000
    with pytest.raises(InputError, match="unfolds to more than"):
        load_record(pickle.dumps({"pos": value}), "x")
    giant = _AsTensor(_legacy_save(torch.zeros(1)._typed_storage()), size=(1 << 40,), stride=(0,))
    with pytest.raises(InputError, match="unfolds to more than"):
        load_record(pickle.dumps({"pos": giant}), "x")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b".",
        b"garbage",
        b"\x80\x04",
        b"\x80\x04N",
        b"Pid\n.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"a",
        pickle.dumps([1, 2]),
        pickle.dumps(None),
        pickle.dumps({"pos": {1, 2}}),
        pickle.dumps({"pos": 1j}),
    ],
)
def test_what_is_no_record_is_an_input_error_with_the_place(raw: bytes) -> None:
    with pytest.raises(InputError, match=r"shard\.lmdb#3"):
        load_record(raw, "shard.lmdb#3")


def test_deep_nesting_is_refused() -> None:
    value: Any = []
    for _ in range(50):
        value = [value]
    with pytest.raises(InputError, match="nested"):
        load_record(pickle.dumps({"pos": value}), "x")


def test_a_record_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InputError, match="nested"):
        load_record(pickle.dumps({"pos": value}), "x")


@given(
    array=hnp.arrays(
        dtype=st.one_of(
            hnp.boolean_dtypes(),
            hnp.integer_dtypes(),
            hnp.unsigned_integer_dtypes(),
            hnp.floating_dtypes(endianness="?"),
            hnp.unicode_string_dtypes(max_len=4),
        ),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    protocol=st.integers(2, 5),
    fortran=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_numpy_arrays_come_back(array: np.ndarray, protocol: int, fortran: bool) -> None:
    array = np.asfortranarray(array).reshape(array.shape) if fortran else array
    read = load_record(pickle.dumps({"pos": array}, protocol=protocol), "x")["pos"]
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12).reshape(3, 4).T,
        torch.arange(12.0, dtype=torch.float64)[3:9:2],
        torch.tensor([True, False]),
        torch.tensor(3, dtype=torch.int32),
        torch.zeros(0, 3),
        torch.ones(1).expand(5),
        torch.ones(2, requires_grad=True),
        torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    ],
)
def test_tensors_come_back(tensor: torch.Tensor, protocol: int) -> None:
    read = load_record(pickle.dumps({"pos": tensor}, protocol=protocol), "x")["pos"]
    expected = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
    assert read.shape == tuple(expected.shape)
    assert read.dtype == expected.numpy().dtype
    np.testing.assert_array_equal(read, expected.numpy())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_back(protocol: int) -> None:
    record = {"a": 1, "b": 2.5, "c": "text", "d": [1, (2, 3)], "e": OrderedDict(x=1), "f": torch.Size([2, 3])}
    raw = pickle.dumps({**record, "g": np.float32(0.5), "h": np.int64(7), "none": None, "_private": 1}, protocol)
    assert load_record(raw, "x") == {**record, "e": {"x": 1}, "f": (2, 3), "g": 0.5, "h": 7}


def test_only_the_wanted_fields_are_decoded() -> None:
    broken = _AsTensor(b"no storage")
    raw = pickle.dumps({"natoms": 3, "force": broken})
    assert load_record(raw, "x", only=("natoms",)) == {"natoms": 3}
    with pytest.raises(InputError, match="force"):
        load_record(raw, "x")


def _valid() -> bytes:
    return pickle.dumps(Data(pos=torch.ones(2, 3), tags=np.array([1, 2]), natoms=2))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_records_raise_nothing_but_input_errors(data: st.DataObject) -> None:
    raw = bytearray(_valid())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        with contextlib.suppress(InputError):
            assert isinstance(load_record(damaged, "x"), dict)


def _raw_records(file: Path) -> list[bytes]:
    with lmdb.open(str(file), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        return [transaction.get(str(k).encode()) for k in range(5)]


@pytest.mark.parametrize("name", ["pyg1.lmdb", "pyg2.lmdb"])
def test_real_records_equal_plain_unpickling(oc20: Path, tmp_path: Path, name: str) -> None:
    # a copy: this process may have the file itself open, and LMDB opens none twice
    for raw in _raw_records(Path(shutil.copy(oc20 / name, tmp_path / name))):
        original = pickle.loads(raw)
        # PyG 1 kept the fields in __dict__ itself
        expected = original.__dict__ if "_store" not in original.__dict__ else original.to_dict()
        expected = {k: v for k, v in expected.items() if v is not None and not k.startswith("_")}
        read = load_record(raw, name)
        assert set(read) == set(expected)
        for key, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert read[key].dtype == value.numpy().dtype
                np.testing.assert_array_equal(read[key], value.numpy())
            else:
                assert read[key] == value
