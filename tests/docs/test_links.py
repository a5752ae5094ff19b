"""Links between the pages lead somewhere, headings included; pages name no machine; "DESIGN §3" is a heading."""

import json
import re

import pytest

from scripts.tools.notebooks import MACHINE
from tests.docs.pages import REPOSITORY

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "data").rglob("*.md")),
    *sorted((REPOSITORY / "molflt" / "pretrained").glob("*.md")),
    *sorted((REPOSITORY / "notebooks").glob("*.ipynb")),
]
INLINE = re.compile(r"\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"^\[([^\]]+)\]: \S+$", re.M)
USE = re.compile(r"\]\[([^\]]+)\]")


def text_of(page):
    """The prose of a page: without fenced blocks, and of a notebook its markdown."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```\s*?$", "", text, flags=re.M | re.S)


def anchors(page):
    """Names behind # in links to a page, by the rule that GitHub and the site share for plain headings."""
    headings = re.findall(r"^#+ (.+?)\s*$", text_of(page), re.M)
    plain = (re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).replace("`", "").lower() for heading in headings)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in plain}


def broken(page):
    """The relative links of a page that lead nowhere."""
    found = []
    for target in INLINE.findall(text_of(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_and_paths(page):
    assert not broken(page)
    text = page.read_text(encoding="utf-8")
    defined, used = set(REFERENCE.findall(text)), set(USE.findall(text_of(page)))
    assert page.suffix == ".ipynb" or used == defined, "links by reference: defined and used differ"
    found = [line.strip() for line in text.splitlines() if MACHINE.search(line)]
    assert not found, "a path of a machine"


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n## A `heading`, here\n\n[a](#a-heading-here) [b](page.md#a-page) [c](https://x.org)",
        encoding="utf-8",
    )
    assert broken(page) == []
    page.write_text("# A page\n\n[a](#heading) [b](other.md) ![c](no.png)\n\n```\n[d](d.md)\n```\n", encoding="utf-8")
    assert broken(page) == ["#heading", "other.md", "no.png"]


def test_sections_of_the_design_exist():
    """Every "DESIGN §n" and "DESIGN §3, item m" in the code and the tests."""
    text = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (\d+)\. ", text, re.M))
    items = set(re.findall(r"^#### (\d+)\. ", text, re.M))
    assert sections == set("123456")
    cited = 0
    for folder in ("molflt", "tests", "scripts"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            joined = re.sub(r"\s+", " ", file.read_text(encoding="utf-8"))
            for section, rest in re.findall(r"DESIGN §(\d)((?:, items? [\d, and]+)?)", joined):
                cited += 1
                missing = set(re.findall(r"\d+", rest)) - items
                assert section in sections, f"{file}: DESIGN §{section}"
                assert not missing, f"{file}: DESIGN §{section}, item {missing}"
    assert cited > 5
