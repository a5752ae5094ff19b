"""Options that several commands share, and the check of a file that a command is to write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from molflt.errors import InputError

DEVICE = typer.Option("auto", help="auto, cpu or cuda.")
MAX_ATOMS = typer.Option(2048, min=1, help="Atoms per batch; changes memory, no result.")
FREQUENCIES = typer.Option(None, help="Evaluate the far field by this method.")
TAGS = typer.Option("auto", help="How to read tags: OC20's, or ASE's layers.")
ON_ERROR = typer.Option("raise", help="skip: go on without structures that fail.")
JSON = typer.Option(False, "--json", help="Print one JSON object instead of text.")


def check_new_file(path: Path, suffixes: Sequence[str], overwrite: bool, what: str = "output") -> None:
    """Refuse a file to write, before anything is computed for it.

    Raises:
        InputError: another suffix, a folder, or a file that exists.
    """
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{path}: {what} must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; choose another name")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; choose another name or give --overwrite")
