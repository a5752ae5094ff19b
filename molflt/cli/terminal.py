"""Output of commands, standard streams, and shared options.

Results go to standard output, all else to standard error or nowhere.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from molflt import __version__
from molflt.data import progress
from molflt.errors import InputError, InputWarning
from molflt.files import sole_writer
from molflt.terminal_text import printable


class Terminal(Console):
    """The only console through which molflt writes to a terminal.

    All text passes through :func:`printable`, in tables as well.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text for the terminal, with visible replacements for control characters."""
        return super().render_str(printable(text, keep="\n\t"), **options)


def open_streams() -> None:
    """Open closed standard streams, on nothing.

    Otherwise the next opened file would get the number of one of them, and a library's output would go into that
    file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                nothing = os.open(os.devnull, os.O_RDWR)
                if nothing != number:
                    os.dup2(nothing, number)
                    os.close(nothing)
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def forget_output() -> None:
    """Discard pending standard output, which the interpreter would fail to write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def prepare_streams() -> None:
    """Make the standard streams accept any text, in UTF-8 unless interactive or set otherwise.

    A terminal keeps its encoding, and gets an escape such as ``\\xc5`` for characters that it cannot show. A pipe or
    a file gets UTF-8, which molflt reads, whatever the locale.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            asked_for = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if asked_for else "utf-8", errors="backslashreplace")


_PACKAGE = Path(__file__).parents[1]
_MOST_OF_A_DEFECT = 300
"""Characters shown of an unexpected error's text."""

# Names of files are printed as they are, without markup and without :emoji:.
errors = Terminal(stderr=True, highlight=False, soft_wrap=True, emoji=False)
output = Terminal(highlight=False, soft_wrap=True, emoji=False)


class Verbosity:
    """Amount of output; set once by ``molflt --quiet`` or ``--verbose``."""

    quiet = False
    verbose = False

    @classmethod
    def set(cls, quiet: bool, verbose: bool) -> None:
        """Apply the options."""
        cls.quiet, cls.verbose = quiet, verbose
        progress.set_shown(not quiet)


def warn(message: str) -> None:
    """Print a warning on standard error."""
    errors.print("Warning:", message, style="yellow", markup=False)


def show_input_warnings() -> None:
    """Print every ``InputWarning`` as a warning of the command, each text once."""
    python, said = warnings.showwarning, set[str]()

    def show(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
        if not issubclass(category, InputWarning):
            python(message, category, *place, **options)
        elif str(message) not in said:
            said.add(str(message))
            warn(str(message))

    warnings.filterwarnings("always", category=InputWarning)
    warnings.showwarning = show


def answer(message: str) -> None:
    """Print the answer of a command on standard output, at once even through a pipe."""
    output.print(message, markup=False)
    sys.stdout.flush()


def answer_json(content: dict[str, Any]) -> None:
    """Print the answer as one JSON object; NaN and infinity, which JSON lacks, become null."""
    print(json.dumps(_finite(content)), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(message: str) -> None:
    """Print progress on standard error, as the answer may be piped on; not with ``--quiet``."""
    if not Verbosity.quiet:
        errors.print(message, markup=False)


def detail(message: str) -> None:
    """Print details on standard error, with ``--verbose`` only."""
    if Verbosity.verbose:
        errors.print(message, style="dim", markup=False)


def show_place() -> None:
    """Print the traceback of the current error, with ``--verbose`` or ``MOLFLT_DEBUG=1``."""
    if Verbosity.verbose or os.environ.get("MOLFLT_DEBUG", "0") not in ("", "0"):
        errors.print_exception()


def defect(error: Exception) -> str:
    """Describe an unexpected error in a line: what, where in molflt, and how to report it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "unknown"
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_OF_A_DEFECT]
    return (
        f"{text} (at {place}). This is an internal error of molflt {__version__}: please report it with the command "
        "and, from the same command after MOLFLT_DEBUG=1, the traceback"
    )


def command_line() -> str:
    """Return the running command, for the report that it writes."""
    return " ".join(["molflt", *sys.argv[1:]])


_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, or choose a place on another disk"),
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "choose a place that can be written to",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "choose a place where you may read and write"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a part of this path is a file; choose another place"),
    # LMDB's name for an incomplete write, too.
    errno.EIO: "the disk is full or reports an error; make room, or choose another",
}


def system_error(error: OSError) -> str:
    """Describe an error of the system in a line: the file, the reason, the remedy, its notes."""
    text = str(error) if error.strerror is None else error.strerror
    if error.strerror is not None and error.filename is not None:
        text = f"{error.filename}: {text}"
    remedy = _REMEDIES.get(error.errno or 0)
    return "; ".join([text, *([remedy] if remedy else []), *getattr(error, "__notes__", ())])


DEVICE = typer.Option("auto", metavar="DEVICE", help="auto, cpu or cuda.")
MAX_ATOMS = typer.Option(2048, min=1, help="Atoms per batch; affects memory, not results.")
METHOD = typer.Option(None, "--far-field-method", help="Evaluate the far field by this method.")
TAGS = typer.Option("auto", help="Convention of tags: OC20's, or ASE's layer numbers.")
ALLOW_CHARGED = typer.Option(False, "--allow-charged", help="Treat ions and radicals as neutral and closed-shell.")
PAIRS = typer.Option(
    False, "--pairs", help="Read files or folders called initial and relaxed as a relaxation, not as two structures."
)
ACCEPT_UNCONVERGED = typer.Option(
    False, "--accept-unconverged", help="Read unconverged and unfinished calculations as well."
)
CONFORMERS = typer.Option(8, min=1, help="Conformers per SMILES; the lowest energy is reported.")
ON_ERROR = typer.Option("raise", help="raise: stop at a structure that cannot be used. skip: leave it out.")
JSON = typer.Option(False, "--json", help="Print one JSON object instead of text.")
OVERWRITE = typer.Option(False, "--overwrite", help="Replace an existing file.")
MODEL = typer.Argument(..., help="Model file, run directory, ensemble, or pretrained:NAME.", show_default=False)


def unused(path: Path) -> Path:
    """Return a path, with a number behind its name if the file exists."""
    found, number = path, 2
    while found.exists():
        found, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return found


def claim(context: typer.Context, path: Path, check: Callable[[], None], part: str = "") -> None:
    """Check a file to write before computing for it, and keep it until the command ends.

    ``part`` names the part that the command writes if several may share the file.

    Raises:
        InputError: as ``check`` does; or another process is writing the file.
    """
    check()
    context.with_resource(sole_writer(path, part))
    # Another process may have finished in between.
    check()


def claim_new_file(
    context: typer.Context, path: Path, suffixes: Sequence[str], overwrite: bool, what: str = "output"
) -> None:
    """Claim a file that is new or may be replaced.

    Raises:
        InputError: another suffix, a folder, a file that exists, or one that another process is writing.
    """

    def check() -> None:
        if path.suffix.lower() not in suffixes:
            raise InputError(f"{path}: {what} must end in {' or '.join(suffixes)}")
        if path.is_dir():
            raise InputError(f"{path}: is a folder; choose another name")
        if path.exists() and not overwrite:
            raise InputError(f"{path}: exists already; choose another name or give --overwrite")

    claim(context, path, check)
