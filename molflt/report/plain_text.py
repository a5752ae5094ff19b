"""Text that comes from data, made harmless where HTML, or what looks like it, is read."""

from __future__ import annotations

import html


def for_html(text: object) -> str:
    """For the content or a quoted attribute of an HTML element."""
    return html.escape(str(text), quote=True)


def for_plotly(text: object) -> str:
    """For titles, names and hover texts of plotly, which reads ``<b>``, ``<a href>`` and entities.

    Quotes stay: plotly knows no entity for them. A percent sign before a brace would be filled in as a template.
    """
    return html.escape(str(text), quote=False).replace("%{", "%&#123;")
