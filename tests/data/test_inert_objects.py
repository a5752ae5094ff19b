"""The objects that stand for those of a record's pickle believe nothing they are told."""

import pickle

import numpy as np
import pytest

from molflt.data.oc20.inert import (
    InertArray,
    InertBufferArray,
    InertDtype,
    InertMapping,
    InertObject,
    InertScalar,
    InertStorage,
    InertTensor,
    Latin1,
    natural,
    sizes_of,
)
from molflt.data.oc20.limits import allowance

FLOAT = InertDtype("f8")
RAW = np.arange(6.0).tobytes()


@pytest.fixture(autouse=True)
def plenty():
    """Bytes to copy."""
    with allowance(10_000):
        yield


def _array(*state):
    array = InertArray()
    array.__setstate__(state)
    assert array.value is not None
    return array.value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InertDtype("O"), "element type"),
        (lambda: InertDtype("V8"), "element type"),
        (lambda: InertDtype(8), "element type"),
        (lambda: FLOAT.__setstate__([3, "<", None, None, None]), "structured"),
        (lambda: FLOAT.__setstate__((3, "<", None, None)), "structured"),
        (lambda: FLOAT.__setstate__((3, "<", None, ("a",), {"a": FLOAT})), "structured"),
        (lambda: FLOAT.__setstate__((3, "!", None, None, None)), "structured"),
        (lambda: InertBufferArray(RAW, np.dtype("f8"), (6,)), "plain numbers"),
        (lambda: InertBufferArray("text", FLOAT, (6,)), "plain numbers"),
        (lambda: InertBufferArray(RAW, FLOAT, (7,)), "6 elements do not fill"),
        (lambda: InertBufferArray(RAW, FLOAT, (-6,)), "not a count"),
        (lambda: InertBufferArray(RAW, FLOAT, (1,) * 9), "not a short tuple"),
        (lambda: InertBufferArray(RAW, FLOAT, (6,)).__setstate__({}), "one state only"),
        (lambda: _array(1, (6,), FLOAT, False), "malformed array state"),
        (lambda: InertArray().__setstate__([1, (6,), FLOAT, False, RAW]), "malformed array state"),
        (lambda: InertScalar(FLOAT, RAW), "do not fill"),
        (lambda: Latin1(b"raw", "latin1"), "latin1"),
        (lambda: Latin1("text", "rot13"), "latin1"),
        (lambda: InertMapping({"a": 1}), "pairs"),
        (lambda: InertMapping([("a", 1), ("b",)]), "pairs"),
        (lambda: InertMapping(["ab", 1]), "pairs"),
        (lambda: InertStorage("text"), "must be bytes"),
        (lambda: InertStorage(b"").__setstate__({}), "no state"),
        (lambda: InertTensor(b"raw", 0, (1,), (1,)), "needs a storage"),
        (lambda: InertTensor(InertStorage(b""), 0, (1, 2), (1,)), "has stride"),
        (lambda: InertTensor(InertStorage(b""), -1, (1,), (1,)), "not a count"),
        (lambda: InertTensor(InertStorage(b""), 0, (1,), (1,)).__setstate__({}), "no state"),
        (lambda: InertObject().__setstate__([("pos", 1)]), "expected a dict"),
        (lambda: natural(True, "it"), "not a count"),
        (lambda: natural(1.0, "it"), "not a count"),
        (lambda: natural(1 << 62, "it"), "not a count"),
        (lambda: sizes_of(8, "it"), "not a short tuple"),
    ],
)
def test_refused(make, message):
    with pytest.raises(pickle.UnpicklingError, match=message):
        make()


def test_plain_values_are_read():
    assert Latin1("é", "latin1") == b"\xe9"
    assert InertMapping([("a", 1)]) == {"a": 1}
    assert natural((1 << 62) - 1, "it") == (1 << 62) - 1
    assert sizes_of([1] * 8, "it") == (1,) * 8
    # a boolean is zero or one
    assert _array(1, (3,), InertDtype("?"), False, b"\x00\x01\x07").view(np.uint8).tolist() == [0, 1, 1]
