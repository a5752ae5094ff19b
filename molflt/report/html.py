"""Pages that need nothing from outside and let nothing in: libraries and all content are part of the file."""

from __future__ import annotations

import base64
import hashlib
import html
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from molflt.files import atomic_file


def for_plotly(text: object) -> str:
    """For titles, names and hover texts of plotly, which reads ``<b>``, ``<a href>`` and entities.

    Quotes stay: plotly knows no entity for them. A percent sign before a brace would be filled in as a template.
    """
    return html.escape(str(text), quote=False).replace("%{", "%&#123;")


def energy(value: float, sign: str = "-") -> str:
    """An energy in eV to a tenth of a meV, with a minus sign that is one."""
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
    """A page in the making; it keeps the content of figures until it is written.

    Args:
        template: name of a template that extends ``page.html``.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        self._held: dict[str, Markup] = {}
        self._scripts: list[str] = []

    def need(self, *scripts: str) -> None:
        """Add scripts, in this order, once each: files of ``templates``, or plotly's ``plotly.min.js``."""
        self._scripts += [name for name in scripts if name not in self._scripts]

    def part(self, template: str, **content: Any) -> Markup:
        """A template by itself, to be put into another."""
        return Markup(_TEMPLATES.get_template(template).render(**content))  # noqa: S704

    def hold(self, key: str | None, content: str) -> str:
        """Keep JSON for a script, in an element with this id, or an id of its own, and return the id."""
        key = f"content-{len(self._held) + 1}" if key is None else key
        # Nothing in it can end the element.
        for character in "<>&":
            content = content.replace(character, f"\\u{ord(character):04x}")
        self._held[key] = Markup(content)  # noqa: S704
        return key

    def figure(self, figure: go.Figure) -> Markup:
        """The place where a figure will be drawn, as high as the figure unless the style sheet says otherwise."""
        self.need("plotly.min.js", "figures.js")
        pixels = int(figure.layout.height)
        # By Python's own writer: that of orjson, where it is installed, refuses paths that are no text.
        content = go.Figure(figure).update_layout(height=None).to_json(engine="json")
        key = self.hold(None, content)
        return Markup('<div class="figure" data-content="{}" style="height:{}px"></div>').format(key, pixels)

    def write(self, path: Path, **content: Any) -> None:
        """Render the template with its variables and write the file, atomically."""
        scripts = [_source(name) for name in self._scripts]
        text = _TEMPLATES.get_template(self._template).render(
            **content,
            held=self._held,
            style=Markup(_source("style.css")),  # noqa: S704
            scripts=[Markup(script) for script in scripts],  # noqa: S704
            # A hash lets these scripts run and no other, whatever a name in the data may hold.
            hashes=Markup(" ".join(f"'sha256-{_hash(script)}'" for script in scripts)),  # noqa: S704
        )
        with atomic_file(path) as temporary:
            # Line ends as they are: the page's policy names its scripts by their hashes.
            # An escape stands for what is no text, as in the names of files that are not UTF-8.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def _source(name: str) -> str:
    """A style sheet or script, which is part of the page as it stands, with the line ends that a browser hashes."""
    assert _TEMPLATES.loader is not None
    text = get_plotlyjs() if name == "plotly.min.js" else _TEMPLATES.loader.get_source(_TEMPLATES, name)[0]
    return str(text).replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
