"""Fenced blocks of the documentation, and how to run them.

```bash and ```python blocks of a page are run, from top to bottom, in one sandbox; ```console is a transcript and is
not. A ```text block directly below a block that is run shows its output: each of its lines must be printed, in order,
with numbers that agree to the digits shown; other lines may stand between. Only the languages in ``LANGUAGES`` may
stand behind a fence, so that nothing escapes by a misspelling.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
LANGUAGES = ("", "bash", "console", "diff", "python", "text", "yaml")
RUN = ("bash", "python")
_END, _MARK = "END_OF_THE_BLOCK", "END OF BLOCK "
_NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?")
_TRAP = "trap 'echo \"stopped at line $LINENO: $BASH_COMMAND\" >&2' ERR"


class Block(NamedTuple):
    """The word behind a fence, the line of the opening one, from 1, and the lines between them."""

    language: str
    line: int
    lines: tuple[str, ...]


def pages() -> list[Path]:
    """README and docs."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page.

    Raises:
        ValueError: a fence that is not closed.
    """
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = re.fullmatch(r"```\s*(\S*).*", line)
        if opened is None and fence:
            opened, inside = (fence.group(1), number), []
        elif opened is not None and line.rstrip() == "```":
            found.append(Block(opened[0], opened[1], tuple(inside)))
            opened = None
        else:
            inside.append(line)
    if opened is not None:
        raise ValueError(f"the block opened in line {opened[1]} is not closed")
    return found


def outputs(text: str, languages: tuple[str, ...] = RUN) -> dict[int, tuple[str, ...]]:
    """Shown output, by the line of the fence that opens the block which prints it."""
    found, lines = {}, text.splitlines()
    for ran, shown in pairwise(blocks(text)):
        between = lines[ran.line + len(ran.lines) + 1 : shown.line - 1]
        if ran.language in languages and shown.language == "text" and not any(map(str.strip, between)):
            found[ran.line] = shown.lines
    return found


def missing(shown: Sequence[str], output: Sequence[str]) -> list[str]:
    """The first of the shown lines that is not printed after those before it, in a list; empty if all are."""
    waiting = iter(output)
    for line in shown:
        if not any(_agree(line, printed) for printed in waiting):
            return [line]
    return []


def _agree(shown: str, printed: str) -> bool:
    """Compare two lines; a number may differ by two units of its last digit, as rounding on another machine does."""
    ours, theirs = _NUMBER.findall(shown), _NUMBER.findall(printed)
    same = [" ".join(_NUMBER.sub("#", line).split()) for line in (shown, printed)]
    if same[0] != same[1]:
        return False
    units = (10.0 ** -len(number.partition(".")[2]) if "." in number else 0.0 for number in ours)
    return all(
        abs(float(a.replace("−", "-")) - float(b.replace("−", "-"))) <= 2.001 * unit
        for a, b, unit in zip(ours, theirs, units, strict=True)
    )


def script(text: str, languages: tuple[str, ...] = RUN) -> str:
    """A page as a bash script: commands stay in their lines, so that messages name lines of the page."""
    n_lines = len(text.splitlines()) + 2
    lines = [""] * n_lines
    for block in blocks(text):
        if block.language not in languages:
            continue
        python = block.language == "python"
        # The fence's own lines, which hold no text, take the heredoc's.
        lines[block.line - 1] = f"python - <<'{_END}'" if python else ""
        lines[block.line : block.line + len(block.lines)] = block.lines
        lines[block.line + len(block.lines)] = _END if python else ""
        # Below the fence, where a line is free, so that the output can be told apart.
        lines[block.line + len(block.lines) + 1] = f"echo '{_MARK}{block.line}'"
    # A page begins with a heading, so its first line is free.
    assert not lines[0]
    lines[0] = _TRAP
    return "\n".join(lines) + "\n"


def sandbox(folder: Path) -> Path:
    """A working directory like the repository's: its data, scripts and docs, and an activation that does nothing."""
    for name in ("data", "scripts", "docs"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text("", encoding="utf-8")
    return folder


class Done(NamedTuple):
    """A page's exit status and output."""

    status: int | None
    output: str

    @property
    def of_blocks(self) -> dict[int, list[str]]:
        """Lines printed by each block, by the line of its opening fence."""
        found: dict[int, list[str]] = {}
        lines: list[str] = []
        for line in self.output.splitlines():
            if line.startswith(_MARK):
                found[int(line.removeprefix(_MARK))], lines = lines, []
            else:
                lines.append(line)
        return found


def run(page: str, folder: Path, timeout: float, languages: tuple[str, ...] = RUN) -> Done:
    """Run a page's blocks in a sandbox; status None when the time was up."""
    file = folder / "page.sh"
    file.write_text(script(page, languages), encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    environment |= {"NO_COLOR": "1", "MPLBACKEND": "Agg", "COLUMNS": "120"}
    process = subprocess.Popen(
        ["bash", "-Eeuo", "pipefail", str(file)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # The shell's children as well: training would go on without it.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return Done(None, output)
    return Done(process.returncode, output)
