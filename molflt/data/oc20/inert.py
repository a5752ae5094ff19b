"""Stand-ins for the names in a record's pickle, which copy numbers and check their input.

None of them has attributes that a pickle could set, and none calls its arguments. They are made by ``__new__`` alone,
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
"""Approximate bytes of an object."""
_DTYPE_CODE = re.compile(r"\?|b1|[iu][1248]|f[248]|[US][1-9]\d{0,5}")


class Frozen(type):
    """Class that a pickle cannot change: BUILD on a class would otherwise set its attributes."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"a record may not set {cls.__name__}.{name}")


class InertObject(metaclass=Frozen):
    """Stand-in for a PyG ``Data`` or storage: its state, uninterpreted."""

    __slots__ = ("state",)
    state: dict[Any, Any]

    def __new__(cls) -> InertObject:
        """Make an object with a state: NEWOBJ does not call ``__init__``."""
        made = super().__new__(cls)
        made.state = {}
        return made

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError(f"object state is {type(state).__name__}, expected a dict")
        self.state = state


class InertDtype(metaclass=Frozen):
    """Stand-in for ``numpy.dtype``: booleans, integers, floats and text, no pointers."""

    __slots__ = ("code", "order")

    code: str
    order: Any

    def __new__(cls, code: object, align: object = False, copy: object = True) -> InertDtype:
        """Take NumPy's code of the dtype."""
        if not isinstance(code, str) or not _DTYPE_CODE.fullmatch(code):
            raise pickle.UnpicklingError(f"array element type {shown(code)} is not allowed")
        made = super().__new__(cls)
        made.code, made.order = code, "="
        return made

    def __setstate__(self, state: object) -> None:
        # (version, byte order, subdtype, names, fields, item size, alignment, flags, ...); the rest follows
        # from the code and is ignored
        plain = isinstance(state, tuple) and len(state) >= 5 and all(part is None for part in state[2:5])
        if not plain or state[1] not in ("<", ">", "|", "="):  # type: ignore[index]
            raise pickle.UnpicklingError("structured array element types are not allowed")
        self.order = state[1]  # type: ignore[index]

    def resolve(self) -> np.dtype[Any]:
        """Return the real dtype."""
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
        # only 0 and 1 are valid bytes of booleans
        flat = flat.view(np.uint8) != 0
    flat = flat.astype(flat.dtype.newbyteorder("="))
    if flat.dtype.kind == "U" and not holds_text(flat):
        raise pickle.UnpicklingError("text with characters beyond Unicode is not allowed")
    array = flat.reshape(sizes, order="F" if order == "F" else "C")
    return np.ascontiguousarray(array).reshape(sizes)


class InertArray(metaclass=Frozen):
    """Stand-in for ``numpy.ndarray`` of protocols 2 to 4: ``_reconstruct(...)``, then a state."""

    __slots__ = ("value",)

    value: np.ndarray | None

    def __new__(cls, kind: object = None, shape: object = None, code: object = None) -> InertArray:
        """Make an array without a value, which its state will set."""
        made = super().__new__(cls)
        made.value = None
        return made

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("malformed array state")
        _, shape, dtype, fortran, raw = state
        self.value = _read_array(raw, dtype, shape, "F" if fortran is True else "C")


class InertBufferArray(metaclass=Frozen):
    """Stand-in for ``numpy.ndarray`` in protocol 5: ``_frombuffer(raw, dtype, shape, order)``."""

    __slots__ = ("value",)

    value: np.ndarray

    def __new__(cls, raw: object, dtype: object, shape: object, order: object = "C") -> InertBufferArray:
        """Read the array."""
        made = super().__new__(cls)
        made.value = _read_array(raw, dtype, shape, "F" if order == "F" else "C")
        return made

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("an array has one state only")


class InertScalar(metaclass=Frozen):
    """Stand-in for ``numpy.core.multiarray.scalar``: becomes a Python number at once."""

    def __new__(cls, dtype: object, raw: object) -> Any:
        """Return the number itself."""
        return _read_array(raw, dtype, (), "C").item()


class Latin1(metaclass=Frozen):
    """Stand-in for ``_codecs.encode``, by which protocol 2 writes bytes as text."""

    def __new__(cls, text: object, encoding: object) -> Any:
        """Return the bytes themselves."""
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("only latin1 text can stand for bytes")
        take(len(text))
        return text.encode("latin1")


class EmptyBytes(metaclass=Frozen):
    """Stand-in for ``bytes()``, by which protocol 2 writes empty bytes."""

    def __new__(cls) -> Any:
        """Return empty bytes; ``bytes(n)`` would take any amount of memory."""
        return b""


class InertMapping(metaclass=Frozen):
    """Stand-in for ``collections.OrderedDict``: a dict, empty or, in Python 2, from pairs."""

    def __new__(cls, pairs: object = ()) -> Any:
        """Return the dict itself."""
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise pickle.UnpicklingError("an OrderedDict must be empty or made of pairs")
        take(_PER_PAIR * len(pairs))
        return dict(pairs)


class InertSize(metaclass=Frozen):
    """Stand-in for ``torch.Size``: becomes a tuple."""

    def __new__(cls, sizes: object) -> Any:
        """Return the tuple itself."""
        return sizes_of(sizes, "torch.Size")


class InertStorage(metaclass=Frozen):
    """Stand-in for ``torch.storage._load_from_bytes``: keeps the bytes until a field needs them."""

    __slots__ = ("raw",)

    raw: bytes

    def __new__(cls, raw: object) -> InertStorage:
        """Keep the bytes."""
        if not isinstance(raw, bytes | bytearray):
            raise pickle.UnpicklingError("a tensor's storage must be bytes")
        take(len(raw))
        made = super().__new__(cls)
        made.raw = bytes(raw)
        return made

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a storage has no state")


class InertTensor(metaclass=Frozen):
    """Stand-in for ``torch._utils._rebuild_tensor_v2``, without gradients and hooks."""

    __slots__ = ("offset", "size", "storage", "stride")

    offset: int
    size: tuple[int, ...]
    storage: InertStorage
    stride: tuple[int, ...]

    def __new__(cls, storage: object, offset: object, size: object, stride: object, *_: object) -> InertTensor:
        """Keep the place of the elements in a storage."""
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
    """Check a count that fits in 62 bits, or raise an ``UnpicklingError``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise pickle.UnpicklingError(f"{what} {shown(value)} is not a count")
    return value


def sizes_of(value: object, what: str) -> tuple[int, ...]:
    """Check a short tuple of counts, or raise an ``UnpicklingError``."""
    if not isinstance(value, tuple | list) or len(value) > _MAX_AXES:
        raise pickle.UnpicklingError(f"{what} {shown(value)} is not a short tuple")
    return tuple(natural(size, what) for size in value)
