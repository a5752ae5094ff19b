"""Write the outputs that pages show anew: the numbers of the text block below each block that is run.

    python -m scripts.tools.shown README.md docs/organic.md

A page is run as its test runs it (tests/docs/pages.py). A shown line is replaced by the first line printed, behind
those before it, that differs in its numbers alone, with as many digits as the shown one has; where there is none, it
is left and named.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from molflt.files import atomic_file
from scripts import results

NUMBER = re.compile(r"[-−+]?\d+(?:\.\d+)?")


def form(line: str) -> str:
    """A line without its numbers and widths."""
    return " ".join(NUMBER.sub("#", line).split())


def renewed(shown: str, printed: Iterator[str]) -> str | None:
    """The shown line with the numbers that were printed; None if there is no such line."""
    for line in printed:
        if form(line) == form(shown):
            return NUMBER.sub("{}", shown.replace("{", "{{").replace("}", "}}")).format(
                *map(with_digits_of, NUMBER.findall(shown), NUMBER.findall(line))
            )
    return None


def with_digits_of(old: str, new: str) -> str:
    """A number with as many digits behind the point as another, and its kind of sign."""
    digits = len(old.partition(".")[2])
    sign = "+" if old[0] == "+" or new[0] == "+" else ""
    text = f"{float(new.replace('−', '-')):{sign}.{digits}f}"
    return text.replace("-", "−") if "−" in old or "−" in new else text


def page(text: str, printed: dict[int, list[str]]) -> tuple[str, list[str]]:
    """The page with what was printed by its blocks, by line of their fences; and the shown lines that were not."""
    from tests.docs.pages import outputs

    lines, lost = text.splitlines(), []
    for fence, shown in outputs(text).items():
        waiting, block = iter(printed[fence]), lines.index("```text", fence)
        for k, line in enumerate(shown, start=block + 1):
            if (new := renewed(line, waiting)) is None:
                lost.append(line)
                break
            lines[k] = new
    return "\n".join(lines) + "\n", lost


def main() -> None:
    """Run the pages and write them."""
    from tests.docs.pages import run, sandbox

    parser = results.command(__doc__)
    parser.add_argument("pages", nargs="+", help="from the root of the repository")
    for name in parser.parse_args().pages:
        path = results.ROOT / name
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            done = run(text, sandbox(Path(folder)), 3600)
        if done.status != 0:
            raise SystemExit(f"error: {name}: exit status {done.status}\n{done.output[-3000:]}")
        new, lost = page(text, done.of_blocks)
        if new != text:
            with atomic_file(path) as temporary:
                temporary.write_text(new, encoding="utf-8")
        print(
            f"{name}: {'changed' if new != text else 'as it was'}",
            *(f"  not printed: {line}" for line in lost),
            sep="\n",
        )


if __name__ == "__main__":
    main()
