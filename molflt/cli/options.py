"""Options that several commands share, and the claim to a file that a command is to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from molflt.errors import InputError
from molflt.files import sole_writer

DEVICE = typer.Option("auto", help="auto, cpu or cuda.")
MAX_ATOMS = typer.Option(2048, min=1, help="Atoms per batch; changes memory, no result.")
FREQUENCIES = typer.Option(None, help="Evaluate the far field by this method.")
TAGS = typer.Option("auto", help="How to read tags: OC20's, or ASE's layers.")
ALLOW_CHARGED = typer.Option(False, "--allow-charged", help="Take ions and radicals as if neutral and closed-shell.")
PAIRS = typer.Option(
    False, "--pairs", help="Read files or folders called initial and relaxed as a relaxation, not as two structures."
)
ACCEPT_UNCONVERGED = typer.Option(
    False, "--accept-unconverged", help="Read calculations that are not converged or were cut short as well."
)
CONFORMERS = typer.Option(
    8, min=1, help="How many to make of a molecule without positions; its energy is that of the lowest."
)
ON_ERROR = typer.Option("raise", help="skip: go on without structures that fail.")
JSON = typer.Option(False, "--json", help="Print one JSON object instead of text.")


def claim(context: typer.Context, path: Path, check: Callable[[], None], part: str = "") -> None:
    """Refuse a file to write, before anything is computed for it, or keep it for this command until its end.

    ``part`` is what of it the command writes, where several may share it.

    Raises:
        InputError: as ``check`` does; or another process is writing the file.
    """
    check()
    context.with_resource(sole_writer(path, part))
    # Another process may have come to its end in between.
    check()


def claim_new_file(
    context: typer.Context, path: Path, suffixes: Sequence[str], overwrite: bool, what: str = "output"
) -> None:
    """Claim a file that is new, or may be replaced.

    Raises:
        InputError: another suffix, a folder, a file that exists, or one that another process is writing.
    """
    claim(context, path, lambda: _check_new_file(path, suffixes, overwrite, what))


def _check_new_file(path: Path, suffixes: Sequence[str], overwrite: bool, what: str) -> None:
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{path}: {what} must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; choose another name")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; choose another name or give --overwrite")
