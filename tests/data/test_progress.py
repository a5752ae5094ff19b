"""The bar changes nothing about what is iterated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from molflt.data import progress
from molflt.data.progress import track


@pytest.mark.parametrize("enabled", [None, False, True])
def test_items_pass_through(enabled: bool | None) -> None:
    assert list(track(range(5), "counting", total=5, enabled=enabled)) == list(range(5))


@pytest.mark.parametrize(("patience", "shown"), [(0.0, True), (1000.0, False)])
def test_a_bar_appears_on_standard_error_when_it_takes_long(
    patience: float, shown: bool, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    assert list(track(range(5), "counting", total=5, enabled=True)) == list(range(5))
    captured = capfd.readouterr()
    assert ("counting" in captured.err) == shown
    assert captured.out == ""


def test_errors_pass_through() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        list(track(items(), "counting", enabled=True))
