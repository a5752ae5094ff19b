"""The numbers of a tensor's storage, as ``torch.save`` writes it inside a pickled tensor, read without PyTorch.

The form: five small pickles (magic number, version, facts about the machine, the storage's description, its key), the
number of elements, the elements. In nearly every storage these pickles are the same, so they are first compared with
a template, byte by byte, which takes a twentieth of the time. What differs from it in any way is read by an unpickler
that has nothing to call. PyTorch's own reader of untrusted files keeps code out but does not limit sizes: it makes
byte arrays of any length, takes the memory that a storage announces before it looks at the bytes, and unpacks
compressed archives.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

import numpy as np

from molflt.data.pickle_limits import refuse_opcodes
from molflt.terminal_text import shown

_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "Double": "<f8",
        "Float": "<f4",
        "Half": "<f2",
        "BFloat16": "<u2",
        "Long": "<i8",
        "Int": "<i4",
        "Short": "<i2",
        "Char": "i1",
        "Byte": "u1",
        "Bool": "u1",
        "ComplexFloat": "<c8",
        "ComplexDouble": "<c16",
    }.items()
}
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
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
    + rb"X(?P<length>[\x01-\x14])\x00\x00\x00(?P<key>[0-9]{1,20})q\x02X\x03\x00\x00\x00cpuq\x03"
    + _COUNT
    + rb"Ntq\x04Q\.\x80\x02\]q\x00X(?P=length)\x00\x00\x00(?P=key)q\x01a\.(?P<stored>.{8})",
    re.DOTALL,
)


def read_storage(raw: bytes) -> np.ndarray:
    """The elements of a storage as ``torch.save`` writes it without zip; bytes behind them are left alone.

    Returns:
        (n_elements,), read-only and without a copy where the type allows; bfloat16 becomes float32.

    Raises:
        pickle.UnpicklingError: the bytes ask for a name, announce more than they hold, or are no such storage. A
            damaged pickle raises others as well.
    """
    kind, n_elements, header = plain_header(raw) or _unpickled_header(raw)
    dtype = _TYPES[kind]
    stored, present = int.from_bytes(raw[header - 8 : header], "little", signed=True), len(raw) - header
    if not 0 <= n_elements == stored or present < n_elements * dtype.itemsize:
        raise pickle.UnpicklingError(
            f"a storage of {shown(n_elements)} elements announces {stored} and has {present} bytes"
        )
    elements = np.frombuffer(raw, dtype, n_elements, header) if n_elements else np.empty(0, dtype)
    if kind == "Bool":
        # a byte that is neither 0 nor 1 makes no valid boolean
        return elements != 0
    if kind == "BFloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements


def plain_header(raw: bytes) -> tuple[str, int, int] | None:
    """Type, number of elements and length of the header; None where it has not exactly the usual form."""
    found = _HEADER.match(raw)
    if found is None or (kind := found["type"].decode()) not in _TYPES or found["length"][0] != len(found["key"]):
        return None
    return kind, int.from_bytes(found["one"] or found["two"] or found["four"], "little"), found.end()


class _Description(tuple[Any, ...]):
    """What a storage's persistent id says."""

    __slots__ = ()


class _StorageUnpickler(pickle.Unpickler):  # noqa: S301 (it calls nothing)
    """An unpickler to which names are text: types of storages, and nothing that can be called."""

    def find_class(self, module: str, name: str) -> str:
        """The type's name."""
        kind = name.removesuffix("Storage")
        if module not in ("torch", "torch.cuda") or kind == name or kind not in _TYPES:
            raise pickle.UnpicklingError(f"refused: a tensor's bytes ask for '{module}.{name}'")
        return kind

    def persistent_load(self, pid: object) -> _Description:
        """A storage's description, unchecked."""
        if not isinstance(pid, tuple):
            _refuse()
        return _Description(pid)


def _unpickled_header(raw: bytes) -> tuple[str, int, int]:
    if raw.startswith(b"PK"):
        raise pickle.UnpicklingError("refused: a tensor's bytes are a zip archive, which PyTorch makes of no tensor")
    stream = io.BytesIO(raw)
    magic, protocol, _, described, keys = (_load(raw, stream) for _ in range(5))
    if magic != _MAGIC or protocol != _PROTOCOL or type(described) is not _Description or len(described) != 6:
        _refuse()
    word, kind, key, _, n_elements, view = described
    if word != "storage" or view is not None or type(n_elements) is not int or keys != [key]:
        _refuse()
    if not isinstance(kind, str) or kind not in _TYPES:
        _refuse()
    return kind, n_elements, stream.tell() + 8


def _load(raw: bytes, stream: io.BytesIO) -> Any:
    refuse_opcodes(raw[stream.tell() :])
    return _StorageUnpickler(stream).load()


def _refuse() -> NoReturn:
    raise pickle.UnpicklingError("a tensor's bytes hold no storage")
