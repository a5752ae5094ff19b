"""Storages in ``torch.save``'s form without zip that are not exactly the usual ones, read without PyTorch.

PyTorch's own reader of untrusted files keeps code out, but not sizes: it makes byte arrays of any length, takes the
memory that a storage announces before it looks at the bytes, and unpacks compressed archives.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

import numpy as np

from molflt.data.opcodes import refuse_opcodes
from molflt.printable import shown

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


class _Description(tuple[Any, ...]):
    """What a storage's persistent id says."""

    __slots__ = ()


class _StorageUnpickler(pickle.Unpickler):
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


def read_other_storage(raw: bytes) -> np.ndarray:
    """The elements of a storage.

    Args:
        raw: what ``torch.save`` wrote of a storage, without zip: five pickles (magic number, version, facts about the
            machine, the storage's description, its key), the number of elements, the elements.

    Returns:
        (n_elements,), read-only where the type allows; bfloat16 becomes float32.

    Raises:
        pickle.UnpicklingError: the bytes ask for a name, announce more than they hold, or are no such storage. A
            damaged pickle raises others as well.
    """
    if raw.startswith(b"PK"):
        raise pickle.UnpicklingError("refused: a tensor's bytes are a zip archive, which PyTorch makes of no tensor")
    stream = io.BytesIO(raw)
    magic, protocol, _, described, keys = (_load(raw, stream) for _ in range(5))
    if magic != _MAGIC or protocol != _PROTOCOL or type(described) is not _Description or len(described) != 6:
        _refuse()
    word, kind, key, _, n_elements, view = described
    if word != "storage" or view is not None or type(n_elements) is not int or keys != [key]:
        _refuse()
    dtype = _TYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        _refuse()
    header = stream.tell() + 8
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


def _load(raw: bytes, stream: io.BytesIO) -> Any:
    refuse_opcodes(raw[stream.tell() :])
    return _StorageUnpickler(stream).load()


def _refuse() -> NoReturn:
    raise pickle.UnpicklingError("a tensor's bytes hold no storage")
