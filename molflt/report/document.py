"""A page that needs nothing from outside and lets nothing in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from molflt.report.plain_text import for_html
from molflt.report.style import SCRIPT, STYLE


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: its anchor.
        heading: text.
        body: HTML.
    """

    key: str
    heading: str
    body: str


class Document:
    """A page in the making: figures are kept until it is rendered.

    Args:
        title: text.
        subtitle: text.
    """

    def __init__(self, title: str, subtitle: str) -> None:
        self.title = title
        self.subtitle = subtitle
        self._contents: list[str] = []

    def figure(self, figure: go.Figure, height: int | None = None) -> str:
        """HTML of the place where a figure will be drawn; ``height`` in pixels unless the figure has one."""
        if height is None:
            height = int(figure.layout.height)
        self._contents.append(figure.to_json())
        key = f"content-{len(self._contents)}"
        return f'<div class="figure" data-content="{key}" style="height:{height}px"></div>'

    def render(self, sections: Sequence[Section]) -> str:
        """The whole page."""
        links = "".join(f'<a href="#{s.key}">{for_html(s.heading)}</a>' for s in sections)
        main = [f'<nav aria-label="Contents">{links}</nav>']
        main += [f'<section id="{s.key}"><h2>{for_html(s.heading)}</h2>\n{s.body}</section>' for s in sections]
        contents = {f"content-{k + 1}": content for k, content in enumerate(self._contents)}
        return frame(self.title, self.subtitle, "\n".join(main), contents, SCRIPT, STYLE)


def frame(title: str, subtitle: str, main: str, contents: Mapping[str, str], script: str, style: str) -> str:
    """A whole page with plotly.js in it, which runs its own scripts only and asks nothing of a network.

    Args:
        title: text.
        subtitle: text.
        main: HTML.
        contents: JSON by the id of the element that holds it, for the script.
        script: JavaScript, run after plotly.js.
        style: CSS.
    """
    scripts = [_line_feeds(get_plotlyjs()), script]
    # A hash lets these two scripts run and no other, whatever a name in the data may hold.
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    held = [
        f'<script type="application/json" id="{key}">{_for_script(content)}</script>'
        for key, content in contents.items()
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{for_html(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            f"<header><div><h1>{for_html(title)}</h1><p>{for_html(subtitle)}</p></div></header>",
            f"<main>{main}</main>",
            "<footer>Written by molflt. The page holds all it needs: it can be mailed, archived and opened "
            "without a network.</footer>",
            *held,
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>",
            "",
        ]
    )


def caption(text: str) -> str:
    """HTML of a remark under a figure."""
    return f'<p class="caption">{for_html(text)}</p>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """HTML of a table of texts."""
    top = "".join(f'<th scope="col">{for_html(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{for_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def definitions(pairs: Iterable[tuple[str, Any]]) -> str:
    """HTML of names with their values."""
    return "<dl>" + "".join(f"<dt>{for_html(k)}</dt><dd>{for_html(v)}</dd>" for k, v in pairs) + "</dl>"


def folded(summary: str, body: str) -> str:
    """HTML that opens on a click."""
    return f"<details><summary>{for_html(summary)}</summary>{body}</details>"


def _for_script(json: str) -> str:
    """JSON in which nothing can end the element that holds it."""
    return json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _line_feeds(text: str) -> str:
    """As a browser reads it, which matters for the hash."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
