"""Pages of the site from elsewhere in the repository, and the reference from the code.

``mkdocs.yml`` names this file. Links are written as they work in the repository; here they are turned into links of
the site, and links to files that the site does not hold become plain text.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "data/fg/README.md": "data/fg.md",
    "molflt/pretrained/acac.md": "models/acac.md",
    "molflt/pretrained/fg.md": "models/fg.md",
    "molflt/pretrained/organic.md": "models/organic.md",
    "molflt/pretrained/qm7-small.md": "models/qm7-small.md",
    "molflt/pretrained/wwl.md": "models/wwl.md",
}
"""Pages of the repository, and where they are on the site."""
NOTEBOOKS = {f"notebooks/{path.name}": f"tutorials/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
PLACES = {**ELSEWHERE, **NOTEBOOKS, "README.md": "index.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Put the packages into the navigation."""
    reference = next(section["Reference"] for section in config.nav if "Reference" in section)
    packages = next(entry for entry in reference if "Python" in entry)
    packages["Python"] = [{Path(page).stem: page} for page in sorted(_modules(), key=_molflt_first)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for source, target in ELSEWHERE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    for source, target in NOTEBOOKS.items():
        stem = Path(source).stem
        text, resources = MarkdownExporter().from_filename(
            str(ROOT / source), resources={"unique_key": stem, "output_files_dir": f"{stem}_files"}
        )
        files.append(File.generated(config, target, content=text))
        for name, content in resources["outputs"].items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    files.append(File.generated(config, "cli.md", content=_commands()))
    for target, content in _modules().items():
        files.append(File.generated(config, target, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Turn links of the repository into links of the site."""
    here = page.file.src_uri
    sources = {target: source for source, target in PLACES.items() if target != "index.md"}
    source = sources.get(here, f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        on_site = PLACES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(on_site) is None:
            # Elsewhere in the repository; what is nowhere stays, for mkdocs to complain of.
            return text if (ROOT / path).exists() else found[0]
        return f"{picture}[{text}]({posixpath.relpath(on_site, posixpath.dirname(here) or '.')}{anchor})"

    fenced = re.split(r"(^```.*?^```\s*?$)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in fenced)


def _molflt_first(page: str) -> tuple[bool, str]:
    return page != "api/molflt.md", page


def _commands() -> str:
    """The command line, from its own help."""
    command = [sys.executable, "-m", "typer", "molflt.cli.main", "utils", "docs", "--name", "molflt"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return "# Command line\n\n" + text.partition("\n")[2].lstrip()


def _modules() -> dict[str, str]:
    """One page for each package in molflt/, and one for the modules beside them."""
    pages: dict[str, list[str]] = {}
    for path in sorted((ROOT / "molflt").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        # The command line has a page of its own.
        if parts[-1] == "__main__" or parts[1] == "cli":
            continue
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        group = parts[1] if len(parts) > 1 and (ROOT / "molflt" / parts[1]).is_dir() else "molflt"
        pages.setdefault(group, []).append(".".join(parts))
    content = {}
    for group, names in pages.items():
        title = "molflt" if group == "molflt" else f"molflt.{group}"
        content[f"api/{group}.md"] = "\n\n".join([f"# `{title}`", *(f"::: {name}" for name in names)]) + "\n"
    return content
