"""The page, opened from a file in a browser without network: draws, answers to its menus, asks for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from molflt.data.sources import StructureDataset
from molflt.explain.explanation import explain
from molflt.explain.page import write_page
from tests.explain.test_explanation import make_loaded

playwright_api = pytest.importorskip("playwright.sync_api")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome to open the page with")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
)


@pytest.fixture(scope="module")
def open_page() -> Iterator[Callable[[Path], tuple[Any, list[str]]]]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=list(ARGUMENTS))

        def open_file(path: Path) -> tuple[Any, list[str]]:
            page = browser.new_page(viewport={"width": 1200, "height": 1400})
            complaints: list[str] = []
            page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda r: None if r.url == path.as_uri() else complaints.append(f"asks for {r.url}"))
            page.goto(path.as_uri(), timeout=120_000)
            page.wait_for_function("document.body.dataset.shown", timeout=120_000)
            return page, complaints

        yield open_file
        browser.close()


def colours(page: Any) -> np.ndarray:
    """Of the atoms' traces in the view of the attention, one number per point."""
    script = """() => document.getElementById("attention-view")._fullData
        .map(t => t.type == "mesh3d" ? t.intensity : t.mode == "markers" ? t.marker.color : null)
        .filter(c => c != null).flatMap(c => Array.from(c))"""
    return np.asarray(page.evaluate(script))


def test_draws_and_answers(open_page: Any, val_set: StructureDataset, tmp_path: Path) -> None:
    loaded = make_loaded()
    found = explain(loaded, val_set[1], 2)
    write_page(tmp_path / "page.html", found, loaded, [])
    page, complaints = open_page(tmp_path / "page.html")
    assert page.locator("canvas").count() >= 2
    assert page.locator("#distance-plot .point").count() == 5 * len(found.learnt)
    assert page.locator("tbody tr").count() == len(found.learnt)

    def check(expected: np.ndarray, shown: str) -> None:
        page.wait_for_function(f"document.body.dataset.shown === '{shown}'")
        np.testing.assert_allclose(np.unique(colours(page).round(5)), np.unique(expected.round(5)), atol=2e-5)
        end = page.evaluate("document.getElementById('attention-view').layout.coloraxis.cmax")
        assert end == pytest.approx(np.abs(expected).max(), rel=1e-5)

    check(found.attention[1].mean(axis=0), "1 -1 false")
    page.select_option("#head", "3")
    check(found.attention[1, 3], "1 3 false")
    page.select_option("#layer", "0")
    check(found.attention[0, 3], "0 3 false")
    page.check("#log")
    check(found.attention[0, 3], "0 3 true")
    assert page.evaluate("document.getElementById('distance-plot').layout.yaxis.type") == "log"
    drawn = page.evaluate("Array.from(document.getElementById('distance-plot').data[1].y)")
    np.testing.assert_allclose(drawn, np.abs(found.attention[0, 3]), rtol=1e-5)
    page.screenshot(path=tmp_path / "page.png")
    assert complaints == []
    page.close()


def test_both_views_have_the_atoms_in_their_colours(
    open_page: Any, val_set: StructureDataset, tmp_path: Path
) -> None:
    """Each vertex's hover text names its atom and that atom's weight."""
    loaded = make_loaded("softmax")
    found = explain(loaded, val_set[0], 0)
    write_page(tmp_path / "page.html", found, loaded, [])
    page, complaints = open_page(tmp_path / "page.html")
    known = page.evaluate(
        """() => document.getElementById("attention-view").data.filter(t => t.type == "mesh3d")
            .flatMap(t => t.customdata.map((row, k) => [...row, t.intensity[k]]))"""
    )
    index, _, weight, colour = np.asarray(known).T
    np.testing.assert_allclose(weight, found.attention[1].mean(axis=0)[index.astype(int)], rtol=1e-5)
    np.testing.assert_array_equal(weight, colour)
    assert page.evaluate("document.getElementById('attention-view').layout.coloraxis.cmin") == 0
    assert complaints == []
    page.close()
