"""Pickles as strangers would write them, put together from their opcodes."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from typing import Any

import torch


class Call:
    """Pickles to a call, perhaps with a state for what it returns."""

    def __init__(self, function: Any, arguments: tuple[Any, ...] = (), *state: Any) -> None:
        self.call = (function, arguments, *state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def as_tensor(storage: bytes, offset: Any = 0, size: Any = (1,), stride: Any = (1,)) -> Call:
    """Pickles as a tensor whose storage holds the given bytes."""
    loaded = Call(torch.storage._load_from_bytes, (storage,))
    return Call(torch._utils._rebuild_tensor_v2, (loaded, offset, size, stride, False, OrderedDict()))


def in_tensor(storage: bytes, **geometry: Any) -> bytes:
    """A record with such a tensor as its positions."""
    return pickle.dumps({"pos": as_tensor(storage, **geometry)})


def legacy_save(value: object, **options: Any) -> bytes:
    """Save as ``torch.save`` does without zip."""
    stream = io.BytesIO()
    torch.save(value, stream, **{"_use_new_zipfile_serialization": False, **options})
    return stream.getvalue()


def text(value: str) -> bytes:
    """BINUNICODE."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def global_(module: str, name: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{name}\n".encode()


def stack_global(module: str, name: str) -> bytes:
    """STACK_GLOBAL, which takes any text as a name."""
    return text(module) + text(name) + b"\x93"
