"""Files that may be compressed, unpacked with a limit on what they may grow to."""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path

from ase.io.formats import open_with_compression

from molflt.errors import InputError, ordinary_file

_BLOCK = 1 << 20
_ALWAYS_ALLOWED = 64 << 20
_MOST_RATIO = 200
"""Structures shrink to a third or a twentieth; what shrinks a thousand times is empty."""
BYTE_ORDER_MARK = "\ufeff"
COMPRESSED = (".gz", ".bz2", ".xz")


def bare_name(file: Path) -> str:
    """Name of a file in lower case, without the ending of a compression."""
    name = file.name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def bare_suffix(file: Path) -> str:
    """Ending of that name, with its dot."""
    return Path(bare_name(file)).suffix


def content(file: Path) -> bytes:
    """Content of a file, unpacked where its name ends in ``.gz``, ``.bz2`` or ``.xz``.

    Raises:
        InputError: no such file, damaged, or it unpacks to hundreds of times its size.
    """
    size = ordinary_file(file).stat().st_size
    if not file.name.lower().endswith(COMPRESSED):
        return file.read_bytes()
    most = max(_ALWAYS_ALLOWED, _MOST_RATIO * size)
    blocks, n_bytes = [], 0
    try:
        with open_with_compression(str(file), "rb") as stream:
            while block := stream.read(_BLOCK):
                blocks.append(block)
                n_bytes += len(block)
                if n_bytes > most:
                    raise InputError(
                        f"{file}: refused, it unpacks to more than {_MOST_RATIO} times its size; unpack it"
                    )
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{file}: cannot be unpacked ({error}); copy or compress it again") from error
    return b"".join(blocks)


def read_text(file: Path) -> str:
    """Content of a text file in UTF-8, with lines that end in ``\\n`` whatever the system that wrote them.

    Byte-order marks are left out, also within the text, where they come from files put one behind the other.

    Raises:
        InputError: as of :func:`content`, or it is not text.
    """
    try:
        text = content(file).decode().replace(BYTE_ORDER_MARK, "")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a readable text file: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
