"""Words and sentences of the text formats."""

from __future__ import annotations

from random import Random

XYZ = (
    b"Properties=species:S:1:pos:R:3 ",
    b"Properties=species:S:1:pos:R:99999999999",
    b":R:3",
    b":I:1",
    b":L:1",
    b"1000000000\n",
    b'Lattice="1 0 0 0 1 0 0 0 1" ',
    b'Lattice="nan 0 0 0 inf 0 0 0 1" ',
    b'pbc="T T T" ',
    b"pbc=F ",
    b"_JSON ",
    b"energy=nan ",
    b'x=_JSON "[[1],[2,3]]" ',
    b"\x1b[2J",
    b"\xff",
    b"1e400",
    b"H 0 0 0\n",
    b"Xx 0 0 0\n",
    b"move_mask=",
    b"momenta:R:3",
    b"initial_charges:R:1",
    b"a=[1,2,3] ",
    b"tags:I:1",
    b"-1\n",
    b"0\n\n",
    b"VEC1 1 0 0",
    b"$",
    b"'",
    b'"',
    b"\\",
    b"{",
    b"sid=1.5 ",
)
SDF = (
    b"M  END\n",
    b"M  CHG  1   1   9\n",
    b"M  V30 COUNTS 999999 999999 0 0 0\n",
    b"V3000",
    b"V2000",
    b"999999",
    b"$$$$\n",
    b"\x00",
    b"\xff",
    b"> <energy>\nnan\n\n",
    b"> <y_relaxed>\n1e999\n\n",
    b"R#",
    b"M  RAD  1   1   3\n",
    b"  1  2  9  0\n",
    b"nan",
    b"M  ISO  1   1 999\n",
    b"M  ALS   1  2 F C   N   \n",
    b"A    1\n",
    b"*",
    b"M  V30 BEGIN ATOM\n",
    b"1e400",
    b"M  SUB  1   1  -2\n",
)
HEADER = (
    b"{",
    b"}",
    b"[" * 500,
    b'"',
    b'"F64"',
    b'"shape":[',
    b"18446744073709551615",
    b"NaN",
    b"1e999",
    b"\\ud800",
    b"null",
    b"-1",
    b"Infinity",
    b'"__metadata__":',
    b'"dtype":"I64",',
    b'"data_offsets":[0,9223372036854775807]',
    b"99999999999999999999",
)
YAML = (
    b"!!python/object/apply:os.system [ls]",
    b"!!float ",
    b"&a ",
    b"*a",
    b"${oc.env:HOME}",
    b"${seed}",
    b"${",
    b"? ",
    b"- " * 30,
    b"[" * 50,
    b"{",
    b"\t",
    b"\x00",
    b"\xff",
    b"9" * 5000,
    b"nan",
    b".inf",
    b"1e999",
    b"<<: ",
    b"---\n",
    b"...\n",
    b"|\n",
    b"null",
    b"'",
    b'"',
    b"2001-99-99",
    b": ",
    b"???",
    b"${oc.decode:'['}",
    b"${data}",
    b"-",
    b"!",
    b"%YAML 9.9\n",
    b"0x",
    b"1_0",
    b"~",
    b"model: ",
    b"attention: ",
    b"\xe2\x80\xa8",
)
_SMILES = (
    "C",
    "C",
    "C",
    "N",
    "O",
    "c1ccccc1",
    "(",
    ")",
    "(C)",
    "=",
    "#",
    "$",
    "1",
    "2",
    "%10",
    "%(99999)",
    "[Na+]",
    "[Cl-]",
    ".",
    "[2H]",
    "[Fe]",
    "[C@@H]",
    "[C@H](O)",
    "/",
    "\\",
    "[",
    "]",
    "*",
    "[*:1]",
    "[U]",
    "[118Og]",
    "[CH9]",
    "[N+15]",
    "B",
    "Br",
    ":",
    "~",
    "->",
    "F",
    "S(=O)(=O)",
    "c",
    "n",
    "[nH]",
    "[H]",
    "[HH]",
    "|$;$|",
    " ",
    "\x00",
    "é",
    "\udc80",
    "[Zz]",
    "[#200]",
    "[999999999C]",
    ">>",
    "C1CC1",
    "{",
    "[C:99999999999]",
)


def smiles(random: Random) -> str:
    """A molecule, or what looks like one."""
    usual = random.random() < 0.5
    words = ("C", "N", "O", "=O", "(C)", "C1CC1", "c1ccccc1", "[Na+].", "S") if usual else _SMILES
    return "".join(random.choice(words) for _ in range(random.randrange(1, 9)))


def yaml(random: Random) -> bytes:
    """A small document of known and unknown keys, anchors, tags and interpolations."""
    keys = (
        "data",
        "model",
        "train",
        "val",
        "attention",
        "seed",
        "loss",
        "x",
        "a",
        "<<",
        "trainer",
        "optimiser",
        "1",
        "null",
    )

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
        return random.choice(("1", "0.5", "flt", "bundled:adsorption/val.lmdb", "${seed}", "${x}", "${.a}", "[]"))

    lines = [f"{random.choice(keys)}: {value(0)}" for _ in range(random.randrange(1, 8))]
    return "\n".join(lines).encode("utf-8", "replace")
