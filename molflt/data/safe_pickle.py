"""Unpickling of records from strangers.

OC20 records are pickles, and a pickle is a program. Here it runs on a machine whose only callables are the
inert classes below: they copy numbers out of bytes and check what they are given. Not even NumPy's own
reconstruction functions are used, because a crafted ``dtype`` state makes those read arbitrary memory. A name
that is not in the exact allow-list is refused, and so is everything that a listed class does not expect.
"""

from __future__ import annotations

import copyreg
import io
import math
import pickle
import pickletools
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from molflt.errors import InputError

_MAX_DEPTH = 8
_MAX_AXES = 8
_MAX_EXPANDED = 1 << 26
"""Elements a tensor may have beyond its storage (stride 0 repeats one element for free)."""
_DTYPE_CODE = re.compile(r"\?|b1|[iu][1248]|f[248]|[US][1-9]\d{0,5}")


class _Frozen(type):
    """A class a pickle cannot change: BUILD on a class would otherwise set its attributes."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"a record may not set {cls.__name__}.{name}")

    def __delattr__(cls, name: str) -> None:
        raise pickle.UnpicklingError(f"a record may not delete {cls.__name__}.{name}")


class _Object(metaclass=_Frozen):
    """What stands for a PyG ``Data`` or storage: its state, uninterpreted."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}

    def __new__(cls) -> _Object:
        # NEWOBJ does not call __init__
        made = super().__new__(cls)
        made.state = {}
        return made

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError(f"object state is {type(state).__name__}, expected a dict")
        self.state = state


class _Dtype(metaclass=_Frozen):
    """What stands for ``numpy.dtype``: plain booleans, integers, floats and text, nothing that points."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, align: object = False, copy: object = True) -> None:
        if not isinstance(code, str) or not _DTYPE_CODE.fullmatch(code):
            raise pickle.UnpicklingError(f"array element type {code!r:.40} is not allowed")
        self.code, self.order = code, "="

    def __setstate__(self, state: object) -> None:
        # (version, byte order, subdtype, names, fields, item size, alignment, flags, ...); the rest follows
        # from the code and is not believed
        plain = isinstance(state, tuple) and len(state) >= 5 and all(part is None for part in state[2:5])
        if not plain or state[1] not in ("<", ">", "|", "="):  # type: ignore[index]
            raise pickle.UnpicklingError("structured array element types are not allowed")
        self.order = state[1]  # type: ignore[index]

    def resolve(self) -> np.dtype[Any]:
        """The real dtype."""
        return np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)  # type: ignore[arg-type]


def _read_array(raw: object, dtype: object, shape: object, order: str) -> np.ndarray:
    if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes | bytearray):
        raise pickle.UnpicklingError("an array must hold plain numbers, given as bytes")
    sizes = _sizes(shape, "array shape")
    flat = np.frombuffer(raw, dtype=dtype.resolve()) if raw else np.empty(0, dtype=dtype.resolve())
    if flat.size != math.prod(sizes):
        raise pickle.UnpicklingError(f"{flat.size} elements do not fill an array of shape {sizes}")
    array = flat.reshape(sizes, order="F" if order == "F" else "C")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(sizes)


class _Array(metaclass=_Frozen):
    """``numpy.ndarray`` as protocols 2 to 4 write it: ``_reconstruct(...)``, then a state."""

    __slots__ = ("value",)

    def __init__(self, kind: object = None, shape: object = None, code: object = None) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("malformed array state")
        _, shape, dtype, fortran, raw = state
        self.value = _read_array(raw, dtype, shape, "F" if fortran is True else "C")


class _BufferArray(metaclass=_Frozen):
    """``numpy.ndarray`` as protocol 5 writes it: ``_frombuffer(buffer, dtype, shape, order)``."""

    __slots__ = ("value",)

    def __init__(self, raw: object, dtype: object, shape: object, order: object = "C") -> None:
        self.value = _read_array(raw, dtype, shape, "F" if order == "F" else "C")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("an array has one state only")


class _Scalar(metaclass=_Frozen):
    """``numpy.core.multiarray.scalar``: becomes a Python number at once."""

    def __new__(cls, dtype: object, raw: object) -> Any:
        return _read_array(raw, dtype, (), "C").item()


class _Latin1(metaclass=_Frozen):
    """``_codecs.encode``, by which protocol 2 writes bytes as text."""

    def __new__(cls, text: object, encoding: object) -> Any:
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("only latin1 text can stand for bytes")
        return text.encode("latin1")


class _EmptyBytes(metaclass=_Frozen):
    """``bytes()``, by which protocol 2 writes empty bytes."""

    def __new__(cls) -> Any:
        return b""


class _Size(metaclass=_Frozen):
    """``torch.Size``: becomes a tuple."""

    def __new__(cls, sizes: object) -> Any:
        return _sizes(sizes, "torch.Size")


class _Storage(metaclass=_Frozen):
    """``torch.storage._load_from_bytes``: keeps the bytes; read only if a wanted field needs them."""

    __slots__ = ("raw",)

    def __init__(self, raw: object) -> None:
        if not isinstance(raw, bytes | bytearray):
            raise pickle.UnpicklingError("a tensor's storage must be bytes")
        self.raw = bytes(raw)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a storage has no state")


class _Tensor(metaclass=_Frozen):
    """``torch._utils._rebuild_tensor_v2``: keeps the arguments; gradients and hooks are dropped."""

    __slots__ = ("offset", "size", "storage", "stride")

    def __init__(self, storage: object, offset: object, size: object, stride: object, *_: object) -> None:
        if not isinstance(storage, _Storage):
            raise pickle.UnpicklingError("a tensor needs a storage")
        self.storage, self.offset = storage, _natural(offset, "tensor offset")
        self.size, self.stride = _sizes(size, "tensor size"), _sizes(stride, "tensor stride")
        if len(self.size) != len(self.stride):
            raise pickle.UnpicklingError(f"tensor of size {self.size} has stride {self.stride}")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a tensor has no state")

    def resolve(self) -> np.ndarray:
        """Cut the tensor out of its storage, with every bound checked first."""
        storage = _load_storage(self.storage.raw)
        # TypedStorage.untyped() says the same but warns
        flat = torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
        n_elements = math.prod(self.size)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        if n_elements and (last >= flat.numel() or n_elements > flat.numel() + _MAX_EXPANDED):
            raise pickle.UnpicklingError(
                f"tensor of size {self.size}, stride {self.stride}, offset {self.offset} "
                f"does not fit its storage of {flat.numel()} elements"
            )
        if not n_elements:
            return flat.new_empty(self.size).numpy()
        tensor = flat.as_strided(self.size, self.stride, self.offset).clone()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _load_storage(raw: bytes) -> torch.storage.TypedStorage:
    """Read what ``torch.save`` made of a storage; a payload inside meets PyTorch's own allow-list."""
    try:
        storage = torch.load(io.BytesIO(raw), weights_only=True, map_location="cpu")
    except Exception as error:
        # PyTorch's message ends in advice to switch the protection off: only the name is passed on
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise pickle.UnpicklingError(f"refused: a tensor's bytes ask for '{found[1]}'") from error
        # PyTorch stops at some opcodes before it meets a name; this finds the name, and no storage
        load_value(raw, "a tensor's bytes")
        raise pickle.UnpicklingError("a tensor's bytes hold no storage") from error
    if not isinstance(storage, torch.storage.TypedStorage):
        raise pickle.UnpicklingError(f"a tensor's bytes hold {type(storage).__name__}, not a storage")
    return storage


_ALLOWED: Mapping[tuple[str, str], type] = {
    ("torch_geometric.data.data", "Data"): _Object,
    ("torch_geometric.data.data", "DataEdgeAttr"): _Object,
    ("torch_geometric.data.data", "DataTensorAttr"): _Object,
    ("torch_geometric.data.storage", "BaseStorage"): _Object,
    ("torch_geometric.data.storage", "NodeStorage"): _Object,
    ("torch_geometric.data.storage", "EdgeStorage"): _Object,
    ("torch_geometric.data.storage", "GlobalStorage"): _Object,
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
    ("torch.storage", "_load_from_bytes"): _Storage,
    ("torch", "Size"): _Size,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy._core.multiarray", "scalar"): _Scalar,
    ("numpy.core.numeric", "_frombuffer"): _BufferArray,
    ("numpy._core.numeric", "_frombuffer"): _BufferArray,
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): _Latin1,
    ("builtins", "bytes"): _EmptyBytes,
    ("__builtin__", "bytes"): _EmptyBytes,
}


class _RecordUnpickler(pickle.Unpickler):
    """An unpickler that knows the names in the allow-list and no others."""

    def __init__(self, raw: bytes, where: str) -> None:
        super().__init__(io.BytesIO(raw))
        self._where = where

    def find_class(self, module: str, name: str) -> type:
        """The inert class for an allowed name; dotted names are never looked into."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise InputError(
                f"{self._where}: refused: the record asks for '{module}.{name}', which structure records do "
                "not need; it may be malicious. Convert the data with the program that wrote it to plain "
                "dicts of NumPy arrays"
            ) from None


def load_value(raw: bytes, where: str) -> object:
    """Unpickle one value: numbers, text, containers and the inert objects of this module.

    Args:
        raw: the pickle.
        where: file and record, for messages.

    Raises:
        InputError: the pickle is damaged, or needs a name that is not allowed.
    """
    try:
        # an extension code that some library has registered and used comes from a cache, past find_class
        if getattr(copyreg, "_inverted_registry", None):
            for opcode, _, _ in pickletools.genops(raw):
                if opcode.name.startswith("EXT"):
                    raise InputError(f"{where}: refused: the record uses pickle extension codes")
        return _RecordUnpickler(raw, where).load()
    except InputError:
        raise
    # whatever a damaged or hostile pickle raises, to the user it is one thing
    except Exception as error:
        raise InputError(f"{where}: not a readable record: {_reason(error)}") from error


def load_record(raw: bytes, where: str, only: Collection[str] | None = None) -> dict[str, Any]:
    """Unpickle one record: a PyG-1 or PyG-2 ``Data``, or a plain dict.

    Args:
        raw: the pickle.
        where: file and record, for messages.
        only: the keys wanted; others are dropped without being decoded (a tensor costs about a millisecond).

    Returns:
        NumPy arrays (tensors become arrays), Python numbers, text, and lists, tuples and dicts of these, by
        name. Private names and values of ``None`` are left out.

    Raises:
        InputError: the pickle is damaged, needs a name that is not allowed, or is not a record.
    """
    record = load_value(raw, where)
    fields: dict[Any, Any] = {}
    if isinstance(record, _Object):
        fields.update(record.state)
        store = record.state.get("_store")
        if isinstance(store, _Object) and isinstance(mapping := store.state.get("_mapping"), dict):
            fields.update(mapping)
    elif isinstance(record, dict):
        fields.update(record)
    else:
        raise InputError(f"{where}: the record is {type(record).__name__}, expected a Data object or a dict")
    return {
        key: _decode(value, f"{where}: field '{key}'")
        for key, value in fields.items()
        if isinstance(key, str) and not key.startswith("_") and value is not None and (only is None or key in only)
    }


def _decode(value: object, where: str, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise InputError(f"{where} is nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, _Array | _BufferArray) and value.value is not None:
        return value.value
    if isinstance(value, _Tensor):
        try:
            return value.resolve()
        # as in load_value
        except Exception as error:
            raise InputError(f"{where}: not a readable tensor: {_reason(error)}") from error
    if isinstance(value, list | tuple):
        return type(value)(_decode(item, where, depth + 1) for item in value)
    if isinstance(value, dict):
        return {_decode(k, where, depth + 1): _decode(v, where, depth + 1) for k, v in value.items()}
    raise InputError(f"{where} holds {type(value).__name__.lstrip('_')}, which is no number, text or array")


def _natural(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise pickle.UnpicklingError(f"{what} {value!r:.40} is not a count")
    return value


def _sizes(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > _MAX_AXES:
        raise pickle.UnpicklingError(f"{what} {value!r:.40} is not a short tuple")
    return tuple(_natural(size, what) for size in value)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:600]}" if text else type(error).__name__
