"""Stand-ins for the names in a record's pickle: they copy numbers and check what they are given.

None of them has attributes a pickle could set, and none calls what it is given. They are made by ``__new__`` alone,
because a pickle may ask for an object without a call of ``__init__``.
"""

from __future__ import annotations

import math
import pickle
import re
from typing import Any

import numpy as np

from molflt.data.oc20.limits import take
from molflt.terminal_text import holds_text, shown

_MAX_AXES = 8
_PER_PAIR = 100
"""Bytes, about."""
_DTYPE_CODE = re.compile(r"\?|b1|[iu][1248]|f[248]|[US][1-9]\d{0,5}")


class Frozen(type):
    """A class a pickle cannot change: BUILD on a class would otherwise set its attributes."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"a record may not set {cls.__name__}.{name}")


class InertObject(metaclass=Frozen):
    """Stand-in for a PyG ``Data`` or storage: its state, uninterpreted."""

    __slots__ = ("state",)
    state: dict[Any, Any]

    def __new__(cls) -> InertObject:
        """An object with a state even where the pickle gives none: NEWOBJ does not call ``__init__``."""
        made = super().__new__(cls)
        made.state = {}
        return made

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError(f"object state is {type(state).__name__}, expected a dict")
        self.state = state


class InertDtype(metaclass=Frozen):
    """Stand-in for ``numpy.dtype``: booleans, integers, floats and text, nothing that points."""

    __slots__ = ("code", "order")

    code: str
    order: Any

    def __new__(cls, code: object, align: object = False, copy: object = True) -> InertDtype:
        """From NumPy's code of it."""
        if not isinstance(code, str) or not _DTYPE_CODE.fullmatch(code):
            raise pickle.UnpicklingError(f"array element type {shown(code)} is not allowed")
        made = super().__new__(cls)
        made.code, made.order = code, "="
        return made

    def __setstate__(self, state: object) -> None:
        # (version, byte order, subdtype, names, fields, item size, alignment, flags, ...); the rest follows
        # from the code and is not believed
        plain = isinstance(state, tuple) and len(state) >= 5 and all(part is None for part in state[2:5])
        if not plain or state[1] not in ("<", ">", "|", "="):  # type: ignore[index]
            raise pickle.UnpicklingError("structured array element types are not allowed")
        self.order = state[1]  # type: ignore[index]

    def resolve(self) -> np.dtype[Any]:
        """The real dtype."""
        return np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)


def _read_array(raw: object, dtype: object, shape: object, order: str) -> np.ndarray:
    if not isinstance(dtype, InertDtype) or not isinstance(raw, bytes | bytearray):
        raise pickle.UnpicklingError("an array must hold plain numbers, given as bytes")
    sizes = sizes_of(shape, "array shape")
    take(len(raw))
    flat = np.frombuffer(raw, dtype=dtype.resolve()) if raw else np.empty(0, dtype=dtype.resolve())
    if flat.size != math.prod(sizes):
        raise pickle.UnpicklingError(f"{flat.size} elements do not fill an array of shape {sizes}")
    if flat.dtype.kind == "b":
        # a byte that is neither 0 nor 1 makes no valid boolean
        flat = flat.view(np.uint8) != 0
    flat = flat.astype(flat.dtype.newbyteorder("="))
    if flat.dtype.kind == "U" and not holds_text(flat):
        raise pickle.UnpicklingError("text with characters beyond Unicode is not allowed")
    array = flat.reshape(sizes, order="F" if order == "F" else "C")
    return np.ascontiguousarray(array).reshape(sizes)


class InertArray(metaclass=Frozen):
    """``numpy.ndarray`` as protocols 2 to 4 write it: ``_reconstruct(...)``, then a state."""

    __slots__ = ("value",)

    value: np.ndarray | None

    def __new__(cls, kind: object = None, shape: object = None, code: object = None) -> InertArray:
        """An array without a value until it is given its state."""
        made = super().__new__(cls)
        made.value = None
        return made

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("malformed array state")
        _, shape, dtype, fortran, raw = state
        self.value = _read_array(raw, dtype, shape, "F" if fortran is True else "C")


class InertBufferArray(metaclass=Frozen):
    """``numpy.ndarray`` as protocol 5 writes it: ``_frombuffer(buffer, dtype, shape, order)``."""

    __slots__ = ("value",)

    value: np.ndarray

    def __new__(cls, raw: object, dtype: object, shape: object, order: object = "C") -> InertBufferArray:
        """The array, read."""
        made = super().__new__(cls)
        made.value = _read_array(raw, dtype, shape, "F" if order == "F" else "C")
        return made

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("an array has one state only")


class InertScalar(metaclass=Frozen):
    """``numpy.core.multiarray.scalar``: becomes a Python number at once."""

    def __new__(cls, dtype: object, raw: object) -> Any:
        """The number itself."""
        return _read_array(raw, dtype, (), "C").item()


class Latin1(metaclass=Frozen):
    """``_codecs.encode``, by which protocol 2 writes bytes as text."""

    def __new__(cls, text: object, encoding: object) -> Any:
        """The bytes themselves."""
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("only latin1 text can stand for bytes")
        take(len(text))
        return text.encode("latin1")


class EmptyBytes(metaclass=Frozen):
    """``bytes()``, by which protocol 2 writes empty bytes."""

    def __new__(cls) -> Any:
        """Empty bytes; ``bytes(n)`` would take any amount of memory."""
        return b""


class InertMapping(metaclass=Frozen):
    """``collections.OrderedDict``: becomes a dict, empty or, as Python 2 writes it, from a list of pairs."""

    def __new__(cls, pairs: object = ()) -> Any:
        """The dict itself."""
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise pickle.UnpicklingError("an OrderedDict must be empty or made of pairs")
        take(_PER_PAIR * len(pairs))
        return dict(pairs)


class InertSize(metaclass=Frozen):
    """``torch.Size``: becomes a tuple."""

    def __new__(cls, sizes: object) -> Any:
        """The tuple itself."""
        return sizes_of(sizes, "torch.Size")


class InertStorage(metaclass=Frozen):
    """``torch.storage._load_from_bytes``: keeps the bytes; read only if a wanted field needs them."""

    __slots__ = ("raw",)

    raw: bytes

    def __new__(cls, raw: object) -> InertStorage:
        """The bytes, kept."""
        if not isinstance(raw, bytes | bytearray):
            raise pickle.UnpicklingError("a tensor's storage must be bytes")
        take(len(raw))
        made = super().__new__(cls)
        made.raw = bytes(raw)
        return made

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a storage has no state")


class InertTensor(metaclass=Frozen):
    """``torch._utils._rebuild_tensor_v2``: keeps the arguments; gradients and hooks are dropped."""

    __slots__ = ("offset", "size", "storage", "stride")

    offset: int
    size: tuple[int, ...]
    storage: InertStorage
    stride: tuple[int, ...]

    def __new__(cls, storage: object, offset: object, size: object, stride: object, *_: object) -> InertTensor:
        """Place of the elements in a storage."""
        if not isinstance(storage, InertStorage):
            raise pickle.UnpicklingError("a tensor needs a storage")
        made = super().__new__(cls)
        made.storage, made.offset = storage, natural(offset, "tensor offset")
        made.size, made.stride = sizes_of(size, "tensor size"), sizes_of(stride, "tensor stride")
        if len(made.size) != len(made.stride):
            raise pickle.UnpicklingError(f"tensor of size {made.size} has stride {made.stride}")
        return made

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a tensor has no state")


def natural(value: object, what: str) -> int:
    """A count that fits in 62 bits, or an ``UnpicklingError``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise pickle.UnpicklingError(f"{what} {shown(value)} is not a count")
    return value


def sizes_of(value: object, what: str) -> tuple[int, ...]:
    """A short tuple of counts, or an ``UnpicklingError``."""
    if not isinstance(value, tuple | list) or len(value) > _MAX_AXES:
        raise pickle.UnpicklingError(f"{what} {shown(value)} is not a short tuple")
    return tuple(natural(size, what) for size in value)
