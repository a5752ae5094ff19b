"""Storages in the one form in which ``torch.save`` writes them inside pickled tensors, read without running anything.

The form: five small pickles (magic number, version, facts about the machine, the storage's description, its key), the
number of elements, the elements. The pickles are compared with a template, byte by byte, and never run. What differs
from it in any way is left to ``other_storage``.
"""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np

_TYPES: dict[bytes, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        b"Double": "<f8",
        b"Float": "<f4",
        b"Half": "<f2",
        b"BFloat16": "<u2",
        b"Long": "<i8",
        b"Int": "<i4",
        b"Short": "<i2",
        b"Char": "i1",
        b"Byte": "u1",
        b"Bool": "u1",
    }.items()
}
_MACHINE = (
    rb"\x80\x02}q\x00\(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\x0d\x00\x00\x00little_endianq\x02\x88"
    rb"X\x0a\x00\x00\x00type_sizesq\x03}q\x04\(X\x05\x00\x00\x00shortq\x05K\x02X\x03\x00\x00\x00intq\x06K\x04"
    rb"X\x04\x00\x00\x00longq\x07K[\x04\x08]uu\."
)
_COUNT = rb"(?:K(?P<one>.)|M(?P<two>..)|J(?P<four>.{3}[\x00-\x7f]))"
_HEADER = re.compile(
    # the magic number and the version
    rb"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19\.\x80\x02M\xe9\x03\."
    + _MACHINE
    + rb"\x80\x02\(X\x07\x00\x00\x00storageq\x00ctorch\n(?P<type>[A-Za-z0-9]{3,8})Storage\nq\x01"
    + rb"X(?P<key>[\x01-\x14]\x00\x00\x00[0-9]{1,20})q\x02X\x03\x00\x00\x00cpuq\x03"
    + _COUNT
    + rb"Ntq\x04Q\.\x80\x02\]q\x00X(?P=key)q\x01a\.(?P<elements>.{8})",
    re.DOTALL,
)


def read_plain_storage(raw: bytes) -> np.ndarray | None:
    """The elements of a storage; None where the bytes have not exactly the usual form.

    Args:
        raw: what ``torch.save`` wrote of a storage, without zip, on any little-endian machine.

    Returns:
        (n_elements,), read-only and without a copy where the type allows; bfloat16 becomes float32.

    Raises:
        pickle.UnpicklingError: the form is right, but the numbers of elements contradict each other or the bytes.
    """
    header = _HEADER.match(raw)
    if header is None or (dtype := _TYPES.get(header["type"])) is None:
        return None
    key = header["key"]
    if int.from_bytes(key[:4], "little") != len(key) - 4:
        return None
    described = int.from_bytes(header["one"] or header["two"] or header["four"], "little")
    stored = int.from_bytes(header["elements"], "little", signed=True)
    present = len(raw) - header.end()
    if stored == described and present > described * dtype.itemsize:
        return None
    if stored != described or present < described * dtype.itemsize:
        raise pickle.UnpicklingError(
            f"a storage of {described} elements of {dtype.itemsize} bytes announces {stored} and has {present} bytes"
        )
    elements = np.frombuffer(raw, dtype, offset=header.end()) if described else np.empty(0, dtype)
    if header["type"] == b"Bool":
        # a byte that is neither 0 nor 1 makes no valid boolean
        return elements != 0
    if header["type"] == b"BFloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements
