"""Self-contained pages: libraries and all content are part of the file."""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from molflt.files import atomic_file

_SVG = "http://www.w3.org/2000/svg"


def energy(value: float, sign: str = "-") -> str:
    """Format an energy in eV to a tenth of a meV, with a true minus sign."""
    return f"{value:{sign}.4f}".replace("-", "−")


_TEMPLATES = Environment(
    loader=PackageLoader("molflt.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"energy": energy, "count": "{:,}".format, "share": "{:.1%}".format}


class Page:
    """Page in the making; it keeps the content of scripts until it is written.

    Args:
        template: name of a template that extends ``page.html``.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        self._held: dict[str, Markup] = {}
        self._scripts: list[str] = []

    def need(self, *scripts: str) -> None:
        """Add scripts from ``templates``, in this order, once each."""
        self._scripts += [name for name in scripts if name not in self._scripts]

    def part(self, template: str, **content: Any) -> Markup:
        """Render a template by itself, to be put into another."""
        return Markup(_TEMPLATES.get_template(template).render(**content))  # noqa: S704

    def hold(self, key: str | None, content: str) -> str:
        """Keep JSON for a script in an element, and return the element's id, by default a new one."""
        key = f"content-{len(self._held) + 1}" if key is None else key
        # Nothing in the content can end the element.
        for character in "<>&":
            content = content.replace(character, f"\\u{ord(character):04x}")
        self._held[key] = Markup(content)  # noqa: S704
        return key

    def write(self, path: Path, **content: Any) -> None:
        """Render the template with its variables and write the file, atomically."""
        scripts = [_source(name) for name in self._scripts]
        text = _TEMPLATES.get_template(self._template).render(
            **content,
            held=self._held,
            style=Markup(_source("style.css")),  # noqa: S704
            scripts=[Markup(script) for script in scripts],  # noqa: S704
            # The hashes allow these scripts and no others, whatever a name in the data may hold.
            hashes=Markup(" ".join(f"'sha256-{_hash(script)}'" for script in scripts)),  # noqa: S704
        )
        with atomic_file(path) as temporary:
            # Line ends unchanged: the page's policy names its scripts by their hashes.
            # Escapes replace what is not valid text, such as file names that are not UTF-8.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def _source(name: str) -> str:
    """Read a style sheet or script, with the line ends that a browser hashes."""
    assert _TEMPLATES.loader is not None
    text = _TEMPLATES.loader.get_source(_TEMPLATES, name)[0]
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def svg(drawn: Figure) -> Markup:
    """Convert a figure to SVG with real text; points that have texts show these on hover."""
    pointed = [line for axes in drawn.axes for line in axes.lines if hasattr(line, "texts")]
    for k, line in enumerate(pointed):
        line.set_gid(f"pointed-{k}")
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "molflt"}), warnings.catch_warnings():
        # The browser has glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", "Glyph")
        drawn.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    # Just written by matplotlib.
    root = ElementTree.fromstring(stream.getvalue())  # noqa: S314
    for k, line in enumerate(pointed):
        dots = root.findall(f".//{{{_SVG}}}g[@id='pointed-{k}']//{{{_SVG}}}use")
        for dot, text in zip(dots, line.texts, strict=True):
            ElementTree.SubElement(dot, f"{{{_SVG}}}title").text = text
    # Other figures of the page have groups of the same names.
    for group in root.iter(f"{{{_SVG}}}g"):
        group.attrib.pop("id", None)
    width = drawn.get_figwidth()
    del root.attrib["width"], root.attrib["height"]
    root.set("style", f"width: 100%; min-width: {70 * width:.0f}px; max-width: {110 * width:.0f}px")
    return Markup('<div class="figure">{}</div>').format(Markup(ElementTree.tostring(root, encoding="unicode")))  # noqa: S704
