"""Docstrings mark names as Sphinx does, :class:`Model`; the site shows them as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Takes the role off every name in a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object of the package."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
