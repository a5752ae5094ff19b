"""Changes of bytes and of JSON, drawn from a generator of random numbers."""

from __future__ import annotations

import copy
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

_NUMBERS = (
    0,
    1,
    127,
    128,
    255,
    256,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 62),
    (1 << 63),
    (1 << 64) - 1,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    -1e308,
    1e-308,
    0.5,
    "",
    "x",
    "\ud800",
    "\x1b[31m",
    "<script>",
    "=1+1",
    "${oc.env:HOME}",
    "../../x",
    [],
    {},
    [[]],
    [None],
    {"a": {}},
    "9" * 5000,
    "é" * 300,
)


def mutated(random: Random, raw: bytes, others: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Some bytes, changed in one to six places."""
    content = bytearray(raw)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        size = len(content)
        place, length = random.randrange(size + 1), random.choice((1, 2, 4, 8, 16, 64, 1000))
        match random.randrange(10):
            case 0 | 1 if size:
                content[place % size] = random.randrange(256)
            case 2 if size:
                content[place % size] ^= 1 << random.randrange(8)
            case 3:
                del content[place : place + length]
            case 4:
                content[place:place] = content[place : place + length] * random.choice((1, 2, 50))
            case 5:
                form = random.choice(("<B", "<H", "<I", "<Q", ">I"))
                number = random.choice(_NUMBERS) & ((1 << 8 * struct.calcsize(form)) - 1)
                content[place : place + struct.calcsize(form)] = struct.pack(form, number)
            case 6:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                content[place : place + length * random.randrange(2)] = other[start : start + length]
            case 7 | 8 if tokens:
                content[place:place] = random.choice(tokens)
            case _:
                if random.random() < 0.2:
                    del content[place:]
    return bytes(content)


def mutated_json(random: Random, value: Any) -> Any:
    """A copy with one to three values replaced, removed, renamed or doubled."""
    whole = {"": copy.deepcopy(value)}
    for _ in range(random.choice((1, 1, 2, 3))):
        parent: Any = whole
        key: Any = ""
        while isinstance(parent[key], dict | list) and parent[key] and random.random() < 0.85:
            parent = parent[key]
            key = random.choice(list(parent)) if isinstance(parent, dict) else random.randrange(len(parent))
        match random.randrange(6):
            case 0 if parent is not whole:
                del parent[key]
                if not parent:
                    return whole[""]
            case 1 if isinstance(parent, dict) and parent is not whole:
                parent[random.choice(("x", "__class__", "", "a" * 300))] = parent[key]
            case 2 if isinstance(parent[key], int | float):
                parent[key] = parent[key] * random.choice((-1, 0, 2, 10**9, 10**18, 0.5))
            case 3 if isinstance(parent, list):
                parent.append(parent[key])
            case 4:
                parent[key] = {"a": parent[key]} if random.random() < 0.5 else [parent[key]] * 3
            case _:
                parent[key] = copy.deepcopy(random.choice(VALUES))
    return whole[""]
