"""Parts of the fuzzer's inputs: changed bytes and JSON, words of formats, hostile pickles."""

from __future__ import annotations

import copy
import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

_NUMBERS = (
    0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, -1e308, 1e-308, 0.5, "", "x", "\ud800", "\x1b[31m", "<script>",
    "=1+1", "${oc.env:HOME}", "../../x", [], {}, [[]], [None], {"a": {}}, "9" * 5000, "é" * 300,
)  # fmt: skip


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


XYZ = (
    b"Properties=species:S:1:pos:R:3 ", b"Properties=species:S:1:pos:R:99999999999", b":R:3", b":I:1", b":L:1",
    b"1000000000\n", b'Lattice="1 0 0 0 1 0 0 0 1" ', b'Lattice="nan 0 0 0 inf 0 0 0 1" ', b'pbc="T T T" ',
    b"pbc=F ", b"_JSON ", b"energy=nan ", b'x=_JSON "[[1],[2,3]]" ', b"\x1b[2J", b"\xff", b"1e400", b"H 0 0 0\n",
    b"Xx 0 0 0\n", b"move_mask=", b"momenta:R:3", b"initial_charges:R:1", b"a=[1,2,3] ", b"tags:I:1", b"-1\n",
    b"0\n\n", b"VEC1 1 0 0", b"$", b"'", b'"', b"\\", b"{", b"sid=1.5 ",
)  # fmt: skip
SDF = (
    b"M  END\n", b"M  CHG  1   1   9\n", b"M  V30 COUNTS 999999 999999 0 0 0\n", b"V3000", b"V2000", b"999999",
    b"$$$$\n", b"\x00", b"\xff", b"> <energy>\nnan\n\n", b"> <y_relaxed>\n1e999\n\n", b"R#", b"M  RAD  1   1   3\n",
    b"  1  2  9  0\n", b"nan", b"M  ISO  1   1 999\n", b"M  ALS   1  2 F C   N   \n", b"A    1\n", b"*",
    b"M  V30 BEGIN ATOM\n", b"1e400", b"M  SUB  1   1  -2\n",
)  # fmt: skip
HEADER = (
    b"{", b"}", b"[" * 500, b'"', b'"F64"', b'"shape":[', b"18446744073709551615", b"NaN", b"1e999", b"\\ud800",
    b"null", b"-1", b"Infinity", b'"__metadata__":', b'"dtype":"I64",', b'"data_offsets":[0,9223372036854775807]',
    b"99999999999999999999",
)  # fmt: skip
YAML = (
    b"!!python/object/apply:os.system [ls]", b"!!float ", b"&a ", b"*a", b"${oc.env:HOME}", b"${seed}", b"${",
    b"? ", b"- " * 30, b"[" * 50, b"{", b"\t", b"\x00", b"\xff", b"9" * 5000, b"nan", b".inf", b"1e999", b"<<: ",
    b"---\n", b"...\n", b"|\n", b"null", b"'", b'"', b"2001-99-99", b": ", b"???", b"${oc.decode:'['}", b"${data}",
    b"-", b"!", b"%YAML 9.9\n", b"0x", b"1_0", b"~", b"model: ", b"attention: ", b"\xe2\x80\xa8",
)  # fmt: skip
_SMILES = (
    "C", "C", "C", "N", "O", "c1ccccc1", "(", ")", "(C)", "=", "#", "$", "1", "2", "%10", "%(99999)", "[Na+]",
    "[Cl-]", ".", "[2H]", "[Fe]", "[C@@H]", "[C@H](O)", "/", "\\", "[", "]", "*", "[*:1]", "[U]", "[118Og]",
    "[CH9]", "[N+15]", "B", "Br", ":", "~", "->", "F", "S(=O)(=O)", "c", "n", "[nH]", "[H]", "[HH]", "|$;$|", " ",
    "\x00", "é", "\udc80", "[Zz]", "[#200]", "[999999999C]", ">>", "C1CC1", "{", "[C:99999999999]",
)  # fmt: skip


def smiles(random: Random) -> str:
    """A molecule, or what looks like one."""
    usual = random.random() < 0.5
    words = ("C", "N", "O", "=O", "(C)", "C1CC1", "c1ccccc1", "[Na+].", "S") if usual else _SMILES
    return "".join(random.choice(words) for _ in range(random.randrange(1, 9)))


GOOD = ("C", "O", "CO", "CCO", "C=C", "CC#N", "c1ccccc1", "C1CC1", "CC(=O)O", "[Na+].[Cl-]")
WRONG = ("C(C", "c1ccc", "C1CC", "[Zz]", "N(C)(C)(C)(C)C", "C=(", "Cl(C)(C)C", "F=F=F", "", "[CH9]")


def right_and_wrong_smiles(random: Random) -> bytes:
    """Twenty SMILES, a line each, every second one wrong."""
    return "\n".join(random.choice((GOOD, WRONG)[k % 2]) for k in range(20)).encode()


def yaml(random: Random) -> bytes:
    """A small document of known and unknown keys, anchors, tags and interpolations."""
    keys = "data model train val attention seed loss x a << trainer optimiser 1 null".split()  # noqa: SIM905

    def value(depth: int) -> str:
        match random.randrange(7):
            case 0 if depth < 5:
                return "[" + ", ".join(value(depth + 1) for _ in range(random.randrange(4))) + "]"
            case 1 | 2 if depth < 5:
                inner = (f"{random.choice(keys)}: {value(depth + 1)}" for _ in range(random.randrange(4)))
                return "{" + ", ".join(inner) + "}"
            case 3:
                return random.choice(YAML).decode("latin1")
            case 4:
                return random.choice(("&a ", "!!str ", "")) + random.choice(
                    ("flt", "1", "-3", "1e-3", "'x'", "true", "*a")
                )
        return random.choice(("1", "0.5", "flt", "bundled:fg/val.lmdb", "${seed}", "${x}", "${.a}", "[]"))

    lines = [f"{random.choice(keys)}: {value(0)}" for _ in range(random.randrange(1, 8))]
    return "\n".join(lines).encode("utf-8", "replace")


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


def record_corpus() -> tuple[list[bytes], list[bytes]]:
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
    whole.append(pickle.dumps({"pos": _Call(eval, (python,))}, 2))  # noqa: S307 (not called)
    return [*whole, *(raw[2:-1] for raw in whole[1:]), f"(S'{touch}'\nios\nsystem\n".encode()]


def pickle_program(random: Random, pieces: list[bytes]) -> bytes:
    """A pickle of random opcodes, many of them with allowed names and sensible arguments."""
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


ENCODINGS = (
    "utf-8", "utf-8", "utf-8-sig", "latin-1", "cp1252", "cp437", "utf-16", "utf-16-le", "utf-32", "shift_jis",
    "gb18030", "utf-7", "koi8-r", "mac-roman", "cp500",
)  # fmt: skip
BROKEN_TEXT = (
    b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\x00", b"\x85",
    b"\xe2\x80\xa8", b"\x1b[2J", b"\r", b"\x1a", b"\xf8\x88\x80\x80\x80", b"\xe2\x80\xae", b"'", b'"', b"\x0b",
)  # fmt: skip
_ODD_CHARACTERS = (
    0, 1, 9, 10, 13, 0x1B, 0x22, 0x27, 0x2C, 0x3D, 0x5C, 0x7F, 0x85, 0xA0, 0xC5, 0x2028, 0x202E, 0x6C34, 0xD800,
    0xDCFF, 0xDFFF, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F600, 0x10FFFF, 0x110000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
    65, 66, 32, 0x5B, 0x5D, 0x7B, 0x7D, 0x3A, 0x23, 0x24,
)  # fmt: skip


def odd_texts(random: Random) -> bytes:
    """A record whose texts hold characters that mean something to a format, or are none."""
    record: dict[str, Any] = {"pos": np.eye(2, 3) * 2, "atomic_numbers": [1, 8], "natoms": 2, "y_relaxed": 1.0}
    for field in random.sample(("name", "adsorbate", "metals"), random.randrange(1, 4)):
        characters = [random.choice(_ODD_CHARACTERS) for _ in range(random.choice((1, 2, 5, 40)))]
        array = np.array(characters, dtype=np.uint32).view(f"U{len(characters)}")
        text = "".join(chr(c) for c in characters if c <= 0x10FFFF)
        values = (
            text,
            text,
            array,
            array.reshape(()),
            array.astype(array.dtype.newbyteorder(">")),
            text.encode("utf-16-le", "surrogatepass"),
            [text],
        )
        record[field] = random.choice(values)
    raw = pickle.dumps(record, protocol=random.choice((2, 4, 5)))
    return mutated(random, raw, [raw], BROKEN_TEXT) if random.random() < 0.2 else raw


def bomb(random: Random) -> bytes:
    """A small record that would be large as arrays: repetition, unequal texts, huge keys."""
    n, many = random.choice((10, 10_000, 500_000)), random.choice((3, 3000, 100_000))
    things: tuple[Any, ...] = (
        np.zeros(n),
        np.zeros(n, np.float32),
        "x" * n,
        b"x" * n,
        [0] * min(n, 1000),
        torch.ones(n),
    )
    thing = random.choice(things)
    value: Any = [thing] * many
    match random.randrange(5):
        case 0:
            value = [[[thing] * 20] * 20] * 20
        case 1:
            value = [thing, *[""] * many]
        case 2:
            value = {k * ((1 << 61) - 1): thing for k in range(random.choice((5, 2000)))}
        case 3:
            value = tuple(value)
    record = {"pos": np.eye(2, 3), "cell": np.eye(3) * 9, "atomic_numbers": [1, 2], "natoms": 2}
    record[random.choice(("pos", "tags", "name", "natoms", "sid", "forces", "y_relaxed", "x"))] = value
    return pickle.dumps(record, protocol=random.choice((2, 4, 5)))


def extents(random: Random) -> bytes:
    """A record with numbers of every size as positions and cell."""
    n = random.choice((1, 2, 5, 300))
    numbers = np.random.default_rng(random.randrange(1 << 30))
    sizes = [
        10.0 ** random.uniform(-4, 8) if random.random() < 0.5 else random.choice((1.0, 5.0, 20.0)) for _ in range(6)
    ]
    cell = np.diag(sizes[3:]) + random.choice((0.0, 0.3, 30.0)) * numbers.normal(size=(3, 3))
    record = {
        "pos": numbers.uniform(-1, 1, size=(n, 3)) * sizes[:3], "cell": cell, "atomic_numbers": np.ones(n),
        "pbc": [random.random() < 0.6 for _ in range(3)],
    }  # fmt: skip
    if random.random() < 0.3:
        record["pos_relaxed"] = record["pos"] * random.choice((1.0, 1.01, 1e6))
    return pickle.dumps(record)


def archive(random: Random) -> bytes:
    """A compressed tar archive with odd names, kinds, sizes and attributes, perhaps damaged."""
    names = (
        "is2res/a", "is2res/b/c", "../x", "/x", "is2res/../../x", "a" * 300, "is2res/" + "a/" * 50, "", ".", "..",
        "C:x", "is2res/\x1b[2J", "is2res/\udcff", "is2res/a\\b", "is2res",
    )  # fmt: skip
    keys = ("path", "size", "linkpath", "mtime", "uid", "hdrcharset", "GNU.sparse.map", "GNU.sparse.size",
            "GNU.sparse.major", "GNU.sparse.name", "GNU.sparse.realsize", "SCHILY.xattr.x")  # fmt: skip
    values = ("../x", "-5", "1" * 30, "nan", "x", "0,1", "1", "BINARY", "0", "9" * 5000, "a\0b")
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w", format=random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    ) as tar:
        for _ in range(random.choice((0, 1, 2, 3, 30))):
            info = tarfile.TarInfo(random.choice(names))
            info.type = random.choice((b"0", b"0", b"0", b"5", b"1", b"2", b"3", b"6", b"S", b"x", b"g", b"L", b"Z"))
            content = bytes(random.choice((0, 10, 5000, 200_000)))
            info.size, info.linkname = len(content), random.choice(names)
            if random.random() < 0.4:
                info.pax_headers = {random.choice(keys): random.choice(values) for _ in range(2)}
            tar.addfile(info, io.BytesIO(content))
    raw = stream.getvalue()
    if random.random() < 0.4:
        raw = mutated(random, raw, [raw], (b"\0" * 512, raw[:512] * 1500, b"11 path=aa\n"))
    raw = gzip.compress(raw, 1, mtime=0)
    return mutated(random, raw, [raw], (b"",)) if random.random() < 0.2 else raw


def make_record(random: Random, base: list[bytes], others: list[bytes], pieces: list[bytes]) -> bytes:
    """One hostile record."""
    kind = random.random()
    if kind < 0.55:
        return mutated(random, random.choice(base), others, pieces)
    return pickle_program(random, pieces) if kind < 0.8 else odd_fields(random)
