"""Pages that need nothing from outside and let nothing in: plotly.js and all content are part of the file."""

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
        template: name of a template that extends ``page.html``, without its suffix.
        script: its script, without its suffix; None: of the same name.
    """

    def __init__(self, template: str, script: str | None = None) -> None:
        self._template, self._script = template, script or template
        self._held: dict[str, Markup] = {}

    def hold(self, key: str, content: str) -> None:
        """Keep JSON for the script, in an element with this id."""
        # Nothing in it can end the element.
        for character in "<>&":
            content = content.replace(character, f"\\u{ord(character):04x}")
        self._held[key] = Markup(content)  # noqa: S704

    def figure(self, figure: go.Figure, height: int | None = None) -> Markup:
        """The place where a figure will be drawn; ``height`` in pixels unless the figure has one."""
        key = f"content-{len(self._held) + 1}"
        self.hold(key, figure.to_json())
        pixels = int(figure.layout.height if height is None else height)
        return Markup('<div class="figure" data-content="{}" style="height:{}px"></div>').format(key, pixels)

    def write(self, path: Path, **content: Any) -> None:
        """Render the template with its variables and write the file, atomically."""
        # As a browser reads it, which matters for the hash.
        plotly = get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")
        scripts = [plotly, _source(f"{self._script}.js")]
        text = _TEMPLATES.get_template(f"{self._template}.html").render(
            **content,
            held=self._held,
            style=Markup(_source("style.css")),  # noqa: S704
            scripts=[Markup(script) for script in scripts],  # noqa: S704
            # A hash lets these two scripts run and no other, whatever a name in the data may hold.
            hashes=Markup(" ".join(f"'sha256-{_hash(script)}'" for script in scripts)),  # noqa: S704
        )
        with atomic_file(path) as temporary:
            # Line ends as they are: the page's policy names its scripts by their hashes.
            # An escape stands for what is no text, as in the names of files that are not UTF-8.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def _source(name: str) -> str:
    """A style sheet or script, which is part of the page as it stands."""
    assert _TEMPLATES.loader is not None
    return _TEMPLATES.loader.get_source(_TEMPLATES, name)[0]


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
