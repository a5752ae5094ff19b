"""Unpickling of untrusted records.

OC20 records are pickles, and a pickle is a program. Here it runs on a machine whose only callables are the
classes of ``oc20.inert``, which copy numbers out of bytes and check their input. Not even NumPy's own
reconstruction functions are used, because with a crafted ``dtype`` state these read arbitrary memory. A name
that is not in the exact allow-list is refused, and so is anything unexpected by a listed class.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from molflt.data.oc20.inert import (
    EmptyBytes,
    InertArray,
    InertBufferArray,
    InertDtype,
    InertMapping,
    InertObject,
    InertScalar,
    InertSize,
    InertStorage,
    InertTensor,
    Latin1,
)
from molflt.data.oc20.limits import allowance, refuse_opcodes
from molflt.errors import InputError
from molflt.terminal_text import printable, shown

_MAX_DEPTH = 8
_MAX_BYTES = 1 << 26
"""Most bytes of an unpacked record; the largest OC20 structures take a few MiB with their graph."""
_MAX_COPIES = 4
"""Most copies of each byte of a valid record: from text to bytes, from bytes to an array."""
_PYTHON_OBJECT = 64
"""Approximate bytes of a Python object."""


def _read_tensor(tensor: InertTensor) -> np.ndarray:
    """Cut a tensor out of its storage, after a check of all bounds."""
    flat = read_storage(tensor.storage.raw)
    n_elements = math.prod(tensor.size)
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.size, tensor.stride, strict=True))
    if n_elements and last >= flat.size:
        raise pickle.UnpicklingError(
            f"tensor of size {tensor.size}, stride {tensor.stride}, offset {tensor.offset} "
            f"does not fit its storage of {flat.size} elements"
        )
    if not n_elements:
        return np.empty(tensor.size, dtype=flat.dtype)
    # along an axis of one element the stride is unused, so it may be any number, even one too large for NumPy
    steps = tuple(flat.itemsize * step if n > 1 else 0 for n, step in zip(tensor.size, tensor.stride, strict=True))
    # NumPy checks the bounds again; a copy, because a record's bytes are read-only and may be misaligned
    return np.ndarray(tensor.size, flat.dtype, flat.data, tensor.offset * flat.itemsize, steps).copy()


_ALLOWED: Mapping[tuple[str, str], type] = {
    ("torch_geometric.data.data", "Data"): InertObject,
    ("torch_geometric.data.data", "DataEdgeAttr"): InertObject,
    ("torch_geometric.data.data", "DataTensorAttr"): InertObject,
    ("torch_geometric.data.storage", "BaseStorage"): InertObject,
    ("torch_geometric.data.storage", "NodeStorage"): InertObject,
    ("torch_geometric.data.storage", "EdgeStorage"): InertObject,
    ("torch_geometric.data.storage", "GlobalStorage"): InertObject,
    ("torch._utils", "_rebuild_tensor_v2"): InertTensor,
    ("torch.storage", "_load_from_bytes"): InertStorage,
    ("torch", "Size"): InertSize,
    ("numpy", "ndarray"): InertArray,
    ("numpy", "dtype"): InertDtype,
    ("numpy.core.multiarray", "_reconstruct"): InertArray,
    ("numpy._core.multiarray", "_reconstruct"): InertArray,
    ("numpy.core.multiarray", "scalar"): InertScalar,
    ("numpy._core.multiarray", "scalar"): InertScalar,
    ("numpy.core.numeric", "_frombuffer"): InertBufferArray,
    ("numpy._core.numeric", "_frombuffer"): InertBufferArray,
    ("collections", "OrderedDict"): InertMapping,
    ("_codecs", "encode"): Latin1,
    ("builtins", "bytes"): EmptyBytes,
    ("__builtin__", "bytes"): EmptyBytes,
}


class _RecordUnpickler(pickle.Unpickler):  # noqa: S301 (its names call nothing)
    """Unpickler that accepts only the names in the allow-list."""

    def __init__(self, raw: bytes, where: str) -> None:
        super().__init__(io.BytesIO(raw))
        self._where = where

    def find_class(self, module: str, name: str) -> type:
        """Return the inert class for an allowed name; dotted names are refused."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise InputError(
                f"{self._where}: refused: the record asks for '{module}.{name}', which structure records do "
                "not need; it may be malicious. Convert the data with the program that wrote it to plain "
                "dicts of NumPy arrays"
            ) from None


def load_value(raw: bytes, where: str) -> object:
    """Unpickle one value: numbers, text, containers and the inert objects of ``oc20.inert``.

    Raises:
        InputError: the pickle is damaged, or needs a name that is not allowed.
    """
    try:
        refuse_opcodes(raw)
        with allowance(_MAX_BYTES + _MAX_COPIES * len(raw)):
            return _RecordUnpickler(raw, where).load()
    except InputError:
        raise
    # any error of a damaged or hostile pickle is the same to the user
    except Exception as error:
        raise InputError(f"{where}: not a readable record: {_reason(error)}") from error


def load_record(raw: bytes, where: str, only: Collection[str] | None = None) -> dict[str, Any]:
    """Unpickle one record: a PyG-1 or PyG-2 ``Data``, or a plain dict.

    ``only`` selects keys; None: all.

    Returns:
        NumPy arrays (also for tensors), Python numbers, text, and lists, tuples and dicts of these, by name. Private
        names and values of ``None`` are left out.

    Raises:
        InputError: the pickle is damaged, needs a name that is not allowed, or is not a record.
    """
    record = load_value(raw, where)
    fields: dict[Any, Any] = {}
    if isinstance(record, InertObject):
        fields.update(record.state)
        store = record.state.get("_store")
        if isinstance(store, InertObject) and isinstance(mapping := store.state.get("_mapping"), dict):
            fields.update(mapping)
    elif isinstance(record, dict):
        fields.update(record)
    else:
        raise InputError(f"{where}: the record is {type(record).__name__}, expected a Data object or a dict")
    decoder = _Decoder()
    return {
        key: decoder.decode(value, f"{where}: field '{printable(key):.80}'")
        for key, value in fields.items()
        if isinstance(key, str) and not key.startswith("_") and value is not None and (only is None or key in only)
    }


class _Decoder:
    """Converter of unpickled objects to plain values of bounded size; pickles can repeat them."""

    def __init__(self) -> None:
        self._left = _MAX_BYTES
        # by identity, with the tensor, so that its identity is not reused
        self._read: dict[int, tuple[InertTensor, np.ndarray]] = {}

    def decode(self, value: object, where: str, depth: int = 0) -> Any:
        """Convert to a plain value.

        Raises:
            InputError: not plain, nested too deep, or too large.
        """
        if depth > _MAX_DEPTH:
            raise InputError(f"{where} is nested more than {_MAX_DEPTH} deep")
        self._take(_PYTHON_OBJECT, where)
        if isinstance(value, str | bytes):
            self._take(len(value), where)
            return value
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, InertArray | InertBufferArray) and value.value is not None:
            # for each occurrence: to convert a list to an array copies it as often
            self._take(value.value.nbytes, where)
            return value.value
        if isinstance(value, InertTensor):
            # a storage is scanned for each tensor that shares it
            self._take(max(8 * math.prod(value.size), len(value.storage.raw)), where)
            if (known := self._read.get(id(value))) is not None:
                return known[1]
            try:
                self._read[id(value)] = value, _read_tensor(value)
                return self._read[id(value)][1]
            # as in load_value
            except Exception as error:
                raise InputError(f"{where}: not a readable tensor: {_reason(error)}") from error
        if isinstance(value, list | tuple):
            return type(value)(self.decode(item, where, depth + 1) for item in value)
        if isinstance(value, dict):
            items = ((key, self.decode(item, where, depth + 1)) for key, item in value.items())
            return {key: item for key, item in items if isinstance(key, str | int)}
        raise InputError(f"{where} holds {type(value).__name__}, which is not a number, text or array")

    def _take(self, n_bytes: int, where: str) -> None:
        self._left -= n_bytes
        if self._left < 0:
            raise InputError(f"{where}: the record unfolds to more than {_MAX_BYTES >> 20} MiB")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:600]}" if text else type(error).__name__


# The numbers of a tensor's storage, as torch.save writes it inside a pickled tensor: five small pickles (magic
# number, version, facts about the machine, the storage's description, its key), the number of elements, the elements.
# These are always the same, so they are matched, not run. PyTorch's own reader of untrusted files executes no code
# but does not limit sizes: it makes byte arrays of any length, allocates the announced memory of a storage before it
# looks at the bytes, and unpacks compressed archives.
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
_MACHINE = (
    rb"\x80[\x02\x03]}q\x00\(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03"
    rb"X\x0d\x00\x00\x00little_endianq\x02[\x88\x89]"
    rb"X\x0a\x00\x00\x00type_sizesq\x03}q\x04\(X\x05\x00\x00\x00shortq\x05K\x02X\x03\x00\x00\x00intq\x06K\x04"
    rb"X\x04\x00\x00\x00longq\x07K[\x04\x08]uu\."
)
_COUNT = rb"(?:K(?P<one>.)|M(?P<two>..)|J(?P<four>.{3}[\x00-\x7f]))"
_HEADER = re.compile(
    # the magic number and the version
    rb"\x80[\x02\x03]\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19\.\x80[\x02\x03]M\xe9\x03\."
    + _MACHINE
    + rb"\x80[\x02\x03]\(X\x07\x00\x00\x00storageq\x00ctorch(?:\.cuda)?\n(?P<type>[A-Za-z0-9]{3,13})Storage\nq\x01"
    + rb"X(?P<length>[\x01-\x14])\x00\x00\x00(?P<key>[0-9]{1,20})q\x02"
    + rb"(?:X\x03\x00\x00\x00cpu|X\x06\x00\x00\x00cuda:[0-9])q\x03"
    + _COUNT
    + rb"Ntq\x04Q\.\x80[\x02\x03]\]q\x00X(?P=length)\x00\x00\x00(?P=key)q\x01a\.(?P<stored>.{8})",
    re.DOTALL,
)


def read_storage(raw: bytes) -> np.ndarray:
    """Read the elements of a storage as ``torch.save`` writes it without zip.

    Bytes after them are ignored.

    Returns:
        (n_elements,), read-only and without a copy where the type allows; bfloat16 becomes float32.

    Raises:
        pickle.UnpicklingError: the bytes announce more than they hold, or are not a storage.
    """
    found = _HEADER.match(raw)
    if found is None or found["length"][0] != len(found["key"]) or (kind := found["type"].decode()) not in _TYPES:
        raise pickle.UnpicklingError("a tensor's bytes hold no storage as torch.save writes it")
    n_elements, header = int.from_bytes(found["one"] or found["two"] or found["four"], "little"), found.end()
    dtype = _TYPES[kind]
    stored, present = int.from_bytes(raw[header - 8 : header], "little", signed=True), len(raw) - header
    if n_elements != stored or present < n_elements * dtype.itemsize:
        raise pickle.UnpicklingError(
            f"a storage of {shown(n_elements)} elements announces {stored} and has {present} bytes"
        )
    elements = np.frombuffer(raw, dtype, n_elements, header) if n_elements else np.empty(0, dtype)
    if kind == "Bool":
        # only 0 and 1 are valid bytes of booleans
        return elements != 0
    if kind == "BFloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements
