"""Ways in which files of structures are damaged, and what is to be read of them afterwards."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from random import Random

from scripts.hardening.damage_files import File

_BOM = b"\xef\xbb\xbf"
_NOTHING = re.compile(r"\s*(END|ENDMDL|M  END|CONECT.*|TER.*|\$\$\$\$)?\s*")
"""A line without which the structure before it is whole."""
Damaged = tuple[bytes, list[list[int]]]
"""The bytes, and which of the structures that were written may be read of them, in order, unless they are refused."""


def _as_they_are(change: Callable[[Random, File], str | bytes]) -> Callable[[Random, File], Damaged]:
    """A damage after which all structures are to be read as they were."""

    def damage(random: Random, file: File) -> Damaged:
        text = change(random, file)
        return text.encode() if isinstance(text, str) else text, [list(range(len(file.expected)))]

    return damage


def _line_ends(random: Random, text: str) -> bytes:
    lines = text.encode().split(b"\n")
    return b"".join(line + random.choice((b"\n", b"\r\n")) for line in lines[:-1]) + lines[-1]


def _blocks(change: Callable[[Random, list[int]], list[int]]) -> Callable[[Random, File], Damaged]:
    """Damage that leaves whole frames in another order, twice or not at all."""

    def damage(random: Random, file: File) -> Damaged:
        kept = change(random, list(range(len(file.blocks))))
        text = file.header + "".join(file.blocks[k] for k in kept) + file.footer
        return text.encode(), [kept]

    return damage


def _truncated(random: Random, file: File) -> Damaged:
    """Cut at the end of a line; a cut between two frames cannot be seen."""
    lines = file.text().split("\n")
    n = random.randrange(1, len(lines))
    text = "\n".join(lines[:n]) + "\n"
    if file.counted:
        return text.encode(), [list(range(len(file.expected)))]
    ends = [len(file.header + "".join(file.blocks[: k + 1])) for k in range(len(file.blocks))]
    whole = [k for k, end in enumerate(ends) if len(text) >= end]
    # Of the next one, nothing that matters may be missing.
    missing = file.text()[len(text) : ends[len(whole)]] if len(whole) < len(ends) else "?"
    enough = all(_NOTHING.fullmatch(line) for line in missing.split("\n"))
    return text.encode(), [whole, *([[*whole, len(whole)]] if enough else [])]


def _rows(random: Random, file: File, times: int) -> str:
    """Repeat one row of one atom, or leave it out."""
    lines = file.text().split("\n")
    rows = [k for k, line in enumerate(lines) if file.row is not None and re.match(file.row, line)]
    if not rows:
        return file.text()
    k = random.choice(rows)
    return "\n".join([*lines[:k], *[lines[k]] * times, *lines[k + 1 :]])


def _columns(random: Random, file: File) -> str:
    """Repeat the last column of every row."""
    if file.row is None:
        return file.text()
    doubled = (
        f"{line} {line.split()[-1]}" if line.split() and re.match(file.row, line) else line
        for line in file.text().split("\n")
    )
    return "\n".join(doubled)


def _keys(change: Callable[[str], str]) -> Callable[[Random, File], str]:
    def changed(random: Random, file: File) -> str:
        return (
            re.sub(file.keys, lambda found: change(found[0]), file.text(), flags=re.MULTILINE)
            if file.keys
            else file.text()
        )

    return changed


def _between(extra: Callable[[Random, File], str]) -> Callable[[Random, File], str]:
    """Put something between the frames."""
    return lambda random, file: file.header + extra(random, file).join(file.blocks) + file.footer


DAMAGES: dict[str, Callable[[Random, File], Damaged]] = {
    "blank lines at the end": _as_they_are(lambda random, file: file.text() + "\n" * random.randrange(1, 4)),
    "blank lines at the start": _as_they_are(lambda random, file: "\n" * random.randrange(1, 3) + file.text()),
    "blank lines between frames": _as_they_are(_between(lambda random, file: "\n" * random.randrange(1, 3))),
    "blanks at the ends of lines": _as_they_are(
        lambda random, file: re.sub("\n", lambda _: random.choice(("\n", " \n", "\t\n")), file.text())
    ),
    "indented lines": _as_they_are(lambda random, file: re.sub(r"^(?=[^\s])", "  ", file.text(), flags=re.MULTILINE)),
    "tabs for blanks": _as_they_are(lambda random, file: re.sub(r"(?<=\S) +(?=\S)", "\t", file.text())),
    "no newline at the end": _as_they_are(lambda random, file: file.text().rstrip("\n")),
    "line ends of Windows": _as_they_are(lambda random, file: file.text().replace("\n", "\r\n")),
    "line ends of old Macintoshes": _as_they_are(lambda random, file: file.text().replace("\n", "\r")),
    "mixed line ends": _as_they_are(lambda random, file: _line_ends(random, file.text())),
    "a byte-order mark": _as_they_are(lambda random, file: _BOM + file.text().encode()),
    "a byte-order mark between frames": _as_they_are(_between(lambda random, file: "\ufeff")),
    "keys in upper case": _as_they_are(_keys(str.upper)),
    "keys in lower case": _as_they_are(_keys(str.lower)),
    "comments at the end": _as_they_are(lambda random, file: file.text() + f"{file.comment} written by hand\n"),
    "comments at the start": _as_they_are(lambda random, file: f"{file.comment} written by hand\n" + file.text()),
    "comments between frames": _as_they_are(_between(lambda random, file: f"{file.comment} the next\n")),
    "END after each frame": _as_they_are(_between(lambda random, file: f"{file.end}\n")),
    "END at the end": _as_they_are(lambda random, file: file.text() + f"{file.end}\n"),
    "columns doubled": _as_they_are(_columns),
    "a row doubled": _as_they_are(lambda random, file: _rows(random, file, 2)),
    "a row missing": _as_they_are(lambda random, file: _rows(random, file, 0)),
    "truncated at the end of a line": _truncated,
    "compressed": _as_they_are(lambda random, file: gzip.compress(file.text().encode())),
    "frames in reverse": _blocks(lambda random, order: order[::-1]),
    "a frame twice": _blocks(lambda random, order: [*order, random.choice(order)]),
    "a frame missing": _blocks(lambda random, order: [k for k in order if k != order[-1]] or order),
    "all frames twice": _blocks(lambda random, order: order * 2),
}
