"""Storages: the same numbers as PyTorch's, whatever their form, and nothing read that is not there."""

import io
import os
import pickle
import struct
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molflt.data.oc20.unpickle import load_record, read_storage
from molflt.errors import InputError
from tests.data.pickles import Call, in_tensor, legacy_save

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _without_torch():
    """``torch.load`` would take the memory that a description asks for before it looks at the data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", None)
        yield


def _save(tensor, **options):
    return legacy_save(tensor._typed_storage(), **options)


_torch_load = torch.load


def _by_torch(raw):
    storage = _torch_load(io.BytesIO(raw), weights_only=True)
    flat = torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
    return (flat.float() if flat.dtype == torch.bfloat16 else flat).numpy()


def _read(storage):
    array = load_record(in_tensor(storage, size=(3,)), "x")["pos"]
    assert isinstance(array, np.ndarray)
    return array


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_numbers_as_torch(dtype):
    numbers = 100 * torch.randn(65_536, generator=torch.Generator().manual_seed(1))
    if dtype.is_floating_point:
        numbers[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3.3e38])
    for n_elements in (0, 1, 3, 255, 256, 65_535, 65_536):
        raw = _save(numbers[:n_elements].to(dtype))
        read, expected = read_storage(raw), _by_torch(raw)
        assert read.dtype == expected.dtype
        assert read.tobytes() == expected.tobytes()


def _swap(raw, old, new, count=-1):
    assert old in raw
    return raw.replace(old, new, count)


SHORT = _save(torch.arange(5.0))
LONG = _save(torch.arange(70_000, dtype=torch.int16))
N_DATA = 5 * 4


def _stored(n_elements, raw=SHORT):
    """The same with another number of elements before the data."""
    place = len(raw) - N_DATA - 8
    return raw[:place] + struct.pack("<q", n_elements) + raw[place + 8 :]


MOST = b"J\xff\xff\xff\x7fN"


LIES = {
    "described more": _swap(SHORT, b"K\x05N", b"K\x06N"),
    "described fewer": _swap(SHORT, b"K\x05N", b"K\x04N"),
    "described none": _swap(SHORT, b"K\x05N", b"K\x00N"),
    "stored more": _stored(6),
    "stored fewer": _stored(4),
    "stored negative": _stored(-5),
    "stored huge": _stored((1 << 63) - 1),
    "both more": _stored(6, _swap(SHORT, b"K\x05N", b"K\x06N")),
    "both huge": _stored((1 << 31) - 1, _swap(SHORT, b"K\x05N", MOST)),
    "more bytes an element": _swap(SHORT, b"FloatStorage", b"DoubleStorage"),
    "cut short by a byte": SHORT[:-1],
    "cut short by an element": SHORT[:-4],
    "no data": SHORT[:-N_DATA],
}


NOT_PLAIN_AND_WRONG = {
    "negative number": _swap(SHORT, b"K\x05N", b"J\xfb\xff\xff\xffN"),
    "long number": _swap(SHORT, b"K\x05N", b"\x8a\x09\x05" + 8 * b"\xff" + b"N"),
    "wrong magic number": _swap(SHORT, b"l\xfc\x9cF", b"l\xfc\x9dF"),
    "wrong version": _swap(SHORT, b"\x80\x02M\xe9\x03.", b"\x80\x02M\xe8\x03."),
    "unknown type": _swap(SHORT, b"FloatStorage", b"FlootStorage"),
    "type of a foreign module": _swap(SHORT, b"ctorch\nFloat", b"cother\nFloat"),
    "type that runs": _swap(SHORT, b"ctorch\nFloatStorage\n", b"cos\nsystem\n"),
    "another key in the list": _swap(SHORT, b"q\x01a.", b"q\x01aX\x01\x00\x00\x007a."),
    "key of another length": _swap(SHORT, b"X\x0e\x00\x00\x00", b"X\x0d\x00\x00\x00"),
    "pickle in front": pickle.dumps(1, protocol=2) + SHORT,
    "zip archive": _save(torch.arange(5.0), _use_new_zipfile_serialization=True),
    "both huge, elsewhere": _stored(
        (1 << 31) - 1, _swap(_swap(SHORT, b"ctorch\nFloat", b"ctorch.cuda\nFloat"), b"K\x05N", MOST)
    ),
    "bytearray": _swap(SHORT, b"ctorch\nFloatStorage\n", b"cbuiltins\nbytearray\n"),
    "pickle without stop": _swap(SHORT, b"Ntq\x04Q.", b"Ntq\x04Q0"),
}


@pytest.mark.parametrize("case", [*LIES, *NOT_PLAIN_AND_WRONG])
def test_wrong_storages_are_refused(case):
    raw, message = (LIES | NOT_PLAIN_AND_WRONG)[case], ": UnpicklingError: a storage of .* elements" * (case in LIES)
    with pytest.raises(InputError, match=f"'pos': not a readable tensor{message}"):
        _read(raw)


@pytest.mark.parametrize(
    "raw",
    [
        _save(torch.arange(5.0), pickle_protocol=3),
        _swap(SHORT, b"ctorch\nFloat", b"ctorch.cuda\nFloat"),
        _save(torch.arange(5.0).to(torch.complex64)),
        # PyTorch ignores what this says
        _swap(SHORT, b"little_endianq\x02\x88", b"little_endianq\x02\x89"),
    ],
    ids=["another protocol", "type of another module", "complex numbers", "big-endian machine"],
)
def test_other_forms_are_read_as_torch_reads_them(raw):
    np.testing.assert_array_equal(read_storage(raw), _by_torch(raw))


def test_names_in_further_pickles_do_not_run(tmp_path):
    flag = tmp_path / "flag"
    payload = pickle.dumps(Call(os.system, (f"touch {flag}",)), protocol=2)
    at = SHORT.index(b"\x80\x02}")
    for raw in (payload + SHORT, SHORT[:at] + payload + SHORT[at:], SHORT[:at] + payload):
        with pytest.raises(InputError, match=r"posix\.system|magic number|not a readable tensor"):
            _read(raw)
    # behind the data it is not looked at by anybody
    np.testing.assert_array_equal(_read(SHORT + payload), [0, 1, 2])
    assert not flag.exists()


@pytest.mark.parametrize("raw", [SHORT, LONG], ids=["short", "long"])
def test_no_beginning_of_a_storage_is_read(raw):
    for cut in {*range(min(400, len(raw))), len(raw) // 2, len(raw) - 1}:
        with pytest.raises(Exception):  # noqa: B017, PT011 (a damaged pickle raises a dozen kinds of error)
            read_storage(raw[:cut])


@given(st.integers(0, len(SHORT) - 1), st.integers(0, 255))
@settings(max_examples=400, deadline=None)
def test_a_changed_storage_is_read_as_torch_reads_it(place, byte):
    """If both read it."""
    raw, read = SHORT[:place] + bytes([byte]) + SHORT[place + 1 :], []
    with suppress(Exception):
        read = [reader(raw).tobytes() for reader in (read_storage, _by_torch)]
    assert len(set(read)) < 2


def test_booleans_are_zero_or_one():
    raw = _save(torch.tensor([True, False, True]))[:-3] + b"\x02\x00\xff"
    assert _read(raw).view(np.uint8).tolist() == [1, 0, 1]
