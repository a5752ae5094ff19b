"""The walk over a pickle's opcodes against the standard library's."""

import pickle
import pickletools
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molflt.data.oc20.limits import refuse_opcodes
from molflt.data.oc20.unpickle import load_value
from molflt.errors import InputError

VALUES = [
    {"pos": np.arange(600.0).reshape(200, 3), "natoms": 200, "name": "Öl", "big": 1 << 100, "none": None},
    {"pos": torch.arange(6.0), "y": [1.5, -2, True, "x" * 300], "raw": b"\x82\x83\x84pqr." * 50},
    [[str(k), (k, k * 1000, -k), {k}, frozenset([k])] for k in range(300)],
    bytearray(b"..."),
]


SMALL = {"a": 1.5, "b": [1, "text", b"raw"], "c": (None, 1 << 70)}


def _oracle(raw):
    """``fine``, ``refused``, or ``damaged``."""
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name.startswith("EXT"):
                return "refused"
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(str(argument)) > len(raw):
                return "refused"
    except Exception:
        return "damaged"
    return "fine"


def _ours(raw):
    try:
        refuse_opcodes(raw)
    except (pickle.UnpicklingError, ValueError) as error:
        return "refused" if str(error).startswith("refused") else "damaged"
    return "fine"


@pytest.mark.parametrize("protocol", range(6))
def test_real_pickles_pass(protocol):
    for value in VALUES:
        raw = pickle.dumps(value, protocol=protocol)
        assert _oracle(raw) == _ours(raw) == "fine"


def _argument(opcode):
    """An argument full of stops: who takes it for opcodes sees none of what follows."""
    if opcode.arg is None:
        return b""
    n = opcode.arg.n
    if n >= 0:
        return b"." * n if opcode.name not in ("LONG_BINPUT", "FRAME") else b"\x00" * n
    if n == pickletools.UP_TO_NEWLINE:
        return b".\n.\n" if opcode.name in ("GLOBAL", "INST") else b"1\n" if opcode.name == "PUT" else b"..\n"
    form = {
        pickletools.TAKEN_FROM_ARGUMENT1: "<B",
        pickletools.TAKEN_FROM_ARGUMENT4: "<i",
        pickletools.TAKEN_FROM_ARGUMENT4U: "<I",
        pickletools.TAKEN_FROM_ARGUMENT8U: "<Q",
    }[n]
    return struct.pack(form, 5) + b"....."


@pytest.mark.parametrize(
    "harm", [b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00", b"p99999\n", b"r\xff\xff\x00\x00"]
)
def test_harm_is_seen_behind_every_opcode(harm):
    for opcode in pickletools.opcodes:
        if opcode.name != "STOP":
            raw = opcode.code.encode("latin1") + _argument(opcode) + harm + b"."
            assert _ours(raw) == "refused", opcode.name


def test_places_beyond_a_short_pickle_and_what_follows_its_end():
    with pytest.raises(pickle.UnpicklingError, match="memo place 255 in 4 bytes"):
        refuse_opcodes(b"Nq\xff.")
    refuse_opcodes(b"N.\x82\x01")


@pytest.mark.parametrize(
    "raw",
    [b"", b"N", b"\xff.", b"Ino newline.", b"cmodule\nname.", b"\x8c\x05abc", b"T\xff\xff\xff\xff.....",
     b"\x8b\xfb\xff\xff\xff.....", b"\x8e" + b"\xff" * 8 + b".", b"pxy\n.", b"q", b"r\x00\x00", b"J\x00"]
    + [code + (1 << 40).to_bytes(8, "little") + b"x." for code in (b"\x8e", b"\x8d", b"\x96")]
    + [b"\x8b\xff\xff\xff\x7fx.", b"B\xff\xff\xff\xffx."],
)  # fmt: skip
def test_damaged_pickles_are_refused(raw):
    """Also those that announce what is not there, by the reader of records as well."""
    assert _ours(raw) == _oracle(raw) == "damaged"
    with pytest.raises(InputError, match=r"^bad: "):
        load_value(b"\x80\x04" + raw, "bad")


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_nothing_passes_that_the_standard_library_sees_harm_in(data):
    protocol = data.draw(st.integers(0, 5))
    raw = bytearray(pickle.dumps(data.draw(st.sampled_from([SMALL, [1, 2], "x" * 300])), protocol=protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.sampled_from([*b"\x82\x83\x84pqrX\x8c\x8eBUTcI.\n\x95", *range(256)]))
    expected, found = _oracle(bytes(raw)), _ours(bytes(raw))
    # where only an argument cannot be decoded, the walk may go on: that pickle fails when it is read
    assert found == expected or expected == "damaged"


@pytest.mark.parametrize("protocol", range(5))
def test_integers_that_may_have_the_same_hash_are_counted(protocol):
    modulus = (1 << 61) - 1
    refuse_opcodes(pickle.dumps([modulus - 1 - k for k in range(100)] + list(range(-1000, 1000)), protocol))
    for wide in (lambda k: k * modulus, lambda k: -k * modulus, lambda k: 1 << (61 + k)):
        refuse_opcodes(pickle.dumps([wide(k) for k in range(1, 257)], protocol))
        with pytest.raises(pickle.UnpicklingError, match="more than 256 integers"):
            refuse_opcodes(pickle.dumps([wide(k) for k in range(1, 259)], protocol))
