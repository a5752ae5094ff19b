"""Records as pickles, and hostile programs for them."""

from __future__ import annotations

import os
import pickle
import struct
from random import Random
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from fuzzing.mutations import VALUES, mutated, mutated_json
from molflt.data.records import to_data
from molflt.data.safe_pickle import load_record

_NAMES = (
    ("torch_geometric.data.data", "Data"), ("torch_geometric.data.storage", "GlobalStorage"),
    ("torch._utils", "_rebuild_tensor_v2"), ("torch.storage", "_load_from_bytes"), ("torch", "Size"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"), ("numpy.core.numeric", "_frombuffer"), ("collections", "OrderedDict"),
    ("_codecs", "encode"), ("builtins", "bytes"), ("os", "system"), ("builtins", "eval"), ("builtins", "getattr"),
    ("torch", "FloatStorage"), ("numpy", "ndarray.tofile"), ("builtins", "bytearray"), ("functools", "partial"),
)  # fmt: skip
_PLAIN_OPCODES = b"(.012NR\x81\x85\x86\x87}]atsbuoe\x88\x89)\x8f\x90\x91\x94\x92Q\x97\x98ld"


class _Call:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def corpus() -> tuple[list[bytes], list[bytes]]:
    """Records in PyG 1's form, and in others."""
    fields: dict[str, Any] = {
        "pos": torch.rand(4, 3), "cell": torch.eye(3)[None] * 5, "atomic_numbers": torch.tensor([1.0, 6, 8, 29]),
        "tags": torch.tensor([0, 1, 2, 2]), "fixed": torch.tensor([1.0, 0, 0, 0]), "natoms": 4, "y_relaxed": -1.5,
        "sid": 17, "pos_relaxed": torch.rand(4, 3), "edge_index": torch.zeros(2, 3, dtype=torch.long),
    }  # fmt: skip
    arrays = {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in fields.items()}
    first = [pickle.dumps(_Call(Data, (), fields), p) for p in (2, 4)]
    second = [pickle.dumps(Data(**fields), p) for p in (2, 3, 4, 5)]
    second += [pickle.dumps({**arrays, "name": "Öl", "y_init": np.float32(2)}, p) for p in (0, 2, 4, 5)]
    return first, second


def canary(path: str) -> list[bytes]:
    """Pickles that make a file where they run, as whole programs and as pieces."""
    touch = f"touch {path}"
    whole = [pickle.dumps(_Call(os.system, (touch,)), p) for p in (0, 2, 4)]
    python = f"open({path!r}, 'w').close()"
    whole.append(pickle.dumps({"pos": _Call(eval, (python,))}, 2))
    return [*whole, *(raw[2:-1] for raw in whole[1:]), f"(S'{touch}'\nios\nsystem\n".encode()]


def program(random: Random, pieces: list[bytes]) -> bytes:
    """A pickle of random opcodes, with more allowed names and sensible arguments than chance would give."""
    parts = [random.choice((b"", b"\x80\x02", b"\x80\x04"))]
    for _ in range(random.randrange(1, 60)):
        match random.randrange(9):
            case 0 | 1:
                module, name = random.choice(_NAMES)
                parts.append(f"c{module}\n{name}\n".encode())
            case 2:
                parts.append(random.choice((b"K", b"q", b"h")) + bytes([random.randrange(6)]))
            case 3:
                text = random.choice(
                    (b"latin1", b"pos", b"f8", b"O", b"<", b"_store", b"_mapping", b"x" * 40, b"storage")
                )
                parts.append(random.choice((b"X", b"T", b"B")) + struct.pack("<I", len(text)) + text)
            case 4 if random.random() < 0.3:
                parts.append(random.choice(pieces))
            case 4 if random.random() < 0.2:
                parts.append(
                    random.choice((b"\x8e", b"\x8d", b"\x96", b"\x95")) + struct.pack("<Q", 1 << random.randrange(64))
                )
            case 5 if random.random() < 0.1:
                parts.append(bytes([random.choice(b"1(N2\x85\x86")]) * 30_000)
            case _:
                parts.append(bytes([random.choice(_PLAIN_OPCODES)]))
    return b"".join(parts) + random.choice((b".", b".", b"s.", b"b.", b""))


def odd_fields(random: Random) -> bytes:
    """A dict record whose values are of wrong kinds, sizes and numbers."""
    record: dict[str, Any] = {
        "pos": np.ones((2, 3)) * [[1.0], [2.0]], "cell": np.eye(3), "pbc": [True, False, True], "natoms": 2,
        "atomic_numbers": [1, 2], "tags": [0, 1], "fixed": [0, 1], "y_relaxed": 1.0, "sid": 3,
        "forces": np.zeros((2, 3)), "name": "n", "adsorbate": "CO", "pos_relaxed": np.ones((2, 3)),
    }  # fmt: skip
    arrays: tuple[Any, ...] = (
        np.zeros((0, 3)), np.full((2, 3), np.nan), np.array("x"), np.array([1, 2], np.uint64) * 2**63, np.inf, 1e300,
        np.zeros((2, 2, 2)), np.full((2, 3), 1e308), np.eye(3) * 1e-300, np.ones((3, 3)), 2**63, 10**5000,
        float("nan"),
    )  # fmt: skip
    for _ in range(random.randrange(1, 4)):
        record[random.choice(list(record))] = random.choice(arrays + VALUES)
    if random.random() < 0.3:
        record = mutated_json(random, record)
    return pickle.dumps(record, protocol=random.choice((2, 4, 5)))


def read(raw: bytes) -> None:
    """As a data set reads a record."""
    to_data(load_record(raw, "fuzz.lmdb#0"), "fuzz.lmdb#0")


def make(random: Random, base: list[bytes], others: list[bytes], pieces: list[bytes]) -> bytes:
    """One hostile record."""
    kind = random.random()
    if kind < 0.55:
        return mutated(random, random.choice(base), others, pieces)
    return program(random, pieces) if kind < 0.8 else odd_fields(random)
