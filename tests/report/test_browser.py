"""Both pages in a real browser: they draw, answer and turn, ask for nothing, and no name in them runs."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from molflt.data.sources import StructureDataset
from molflt.report.explain_page import write_page
from molflt.report.explanation import explain
from tests.report.test_explanation import make_loaded

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-unsafe-swiftshader"]
_TIMEOUT = 120_000
"""Milliseconds; without a graphics card every 3D scene takes a second or two."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield opened
        opened.close()


class Opened:
    """A page, and what was wrong on the way: errors, dialogs, requests for anything but the file itself."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.page.set_default_timeout(_TIMEOUT)
        self.problems: list[str] = []
        self.page.on("request", lambda r: self._problem(r.url) if r.url != path.as_uri() else None)
        self.page.on("console", lambda message: self._problem(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self._problem(str(error)))
        self.page.on("dialog", lambda dialog: (self._problem(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.goto(path.as_uri())

    def _problem(self, text: str) -> None:
        # Pictures of 3D scenes are kept in memory.
        if not text.startswith(("data:", "blob:")):
            self.problems.append(text)

    def draw(self, k: int) -> None:
        """Scroll to a figure of the report and wait for it."""
        self.page.evaluate("k => document.querySelectorAll('.figure')[k].scrollIntoView()", k)
        self.page.wait_for_function(
            "k => document.querySelectorAll('.figure')[k]._fullLayout !== undefined"
            " && document.querySelectorAll('.figure')[k].querySelector('svg.main-svg') !== null",
            arg=k,
        )

    def picture(self, selector: str, k: int = 0) -> Image.Image:
        place = self.page.locator(selector).nth(k)
        place.scroll_into_view_if_needed()
        self.page.wait_for_timeout(200)
        return Image.open(io.BytesIO(place.screenshot(timeout=_TIMEOUT))).convert("RGB")

    def check(self) -> None:
        """No complaint, nothing that a name brought in, no way to send a chart away, and room on a narrow screen."""
        assert self.problems == []
        assert self.page.locator("img").count() == 0
        assert self.page.evaluate("document.querySelectorAll('script:not([type])').length") == 2
        titles = self.page.evaluate(
            "Array.from(document.querySelectorAll('.modebar-btn')).map(button => button.dataset.title)"
        )
        assert titles
        assert not [title for title in titles if "Share" in title or "Cloud" in title]
        self.page.set_viewport_size({"width": 390, "height": 800})
        # Figures follow the window after a moment.
        self.page.wait_for_function("() => document.documentElement.scrollWidth <= 390", timeout=20_000)
        self.page.set_viewport_size({"width": 1200, "height": 900})


@pytest.fixture(scope="module")
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    found = Opened(browser, report)
    yield found
    found.page.close()


def n_colours(picture: Image.Image) -> int:
    colours = picture.getcolors(1 << 24)
    assert colours is not None
    return len(colours)


def test_the_report_opens_without_network_and_without_errors(opened: Opened) -> None:
    opened.draw(0)
    assert n_colours(opened.picture(".figure")) > 20
    opened.page.evaluate("window.scrollTo({top: 0, behavior: 'instant'})")
    assert opened.picture("header").getpixel((5, 5)) == (20, 50, 77)
    opened.check()


def test_a_script_that_got_in_would_not_run(browser: Any, report: Path, tmp_path: Path) -> None:
    path = tmp_path / "tampered.html"
    attack = "<main><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    path.write_text(report.read_text(encoding="utf-8").replace("<main>", attack), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=_TIMEOUT)
    assert page.evaluate("window.ran") is None
    page.close()


@pytest.mark.slow
def test_every_figure_draws_and_structures_are_coloured_balls(opened: Opened) -> None:
    n_figures = opened.page.evaluate("document.querySelectorAll('.figure').length")
    for k in range(n_figures):
        opened.draw(k)
        assert n_colours(opened.picture(".figure", k)) > 20, k
    assert opened.page.locator(".js-plotly-plot").count() == n_figures >= 17
    assert opened.page.locator(".card canvas").count() >= 10
    for k in range(10):
        picture = opened.picture(".card .figure", k)
        width, height = picture.size
        middle = picture.crop((width // 5, height // 5, 4 * width // 5, 4 * height // 5))
        # Shaded spheres have many shades; edges and bonds alone would have few.
        assert n_colours(middle) > 120, k
    opened.check()


@pytest.mark.slow
def test_pointing_at_a_dot_shows_the_name_as_text(opened: Opened) -> None:
    opened.draw(1)
    figure = "document.querySelector('#parity .figure')"
    opened.page.evaluate(f"{figure}.scrollIntoView()")
    opened.page.evaluate(f"Plotly.Fx.hover({figure}, [{{curveNumber: 1, pointNumber: 0}}])")
    opened.page.wait_for_timeout(300)
    text = opened.page.evaluate(f"{figure}.querySelector('.hoverlayer').textContent")
    assert "<script>alert(1)" in text
    assert "expected" in text
    assert opened.page.locator("img").count() == 0
    assert opened.problems == []


@pytest.mark.slow
def test_the_menu_shows_another_layer(opened: Opened) -> None:
    figure = opened.page.locator("#rpe .figure").first
    figure.scroll_into_view_if_needed()
    opened.page.wait_for_function("() => document.querySelector('#rpe .updatemenu-header') !== null")
    visible = "() => document.querySelector('#rpe .figure').data.map(trace => trace.visible)"
    before = opened.page.evaluate(visible)
    figure.locator(".updatemenu-header").click()
    figure.locator(".updatemenu-dropdown-button").nth(1).click()
    opened.page.wait_for_timeout(300)
    n = len(before) // 3
    assert before == [True] * n + [False] * 2 * n
    assert opened.page.evaluate(visible) == [False] * n + [True] * n + [False] * n
    assert opened.problems == []


@pytest.mark.parametrize("attention", ["molflt", pytest.param("softmax", marks=pytest.mark.slow)])
def test_an_explanation_draws_and_answers(
    attention: str, browser: Any, val_set: StructureDataset, tmp_path: Path
) -> None:
    """Each vertex of the view of the attention names its atom, and has that atom's weight as text and colour."""
    loaded = make_loaded(attention)
    found = explain(loaded, val_set[0], 2)
    write_page(tmp_path / "page.html", found, loaded, [])
    opened = Opened(browser, tmp_path / "page.html")
    page = opened.page
    page.wait_for_function("() => document.body.dataset.shown")
    assert page.locator("canvas").count() >= 2
    assert page.locator("#distance-plot .point").count() == 5 * len(found.learnt)
    assert page.locator("tbody tr").count() == len(found.learnt)

    def check(expected: np.ndarray, shown: str) -> None:
        page.wait_for_function(f"() => document.body.dataset.shown === '{shown}'")
        known = page.evaluate(
            """() => document.getElementById("attention-view").data.filter(t => t.type == "mesh3d")
                .flatMap(t => t.customdata.map((row, k) => [...row, t.intensity[k]]))"""
        )
        index, _, weight, colour = np.asarray(known).T
        np.testing.assert_array_equal(np.unique(index), np.arange(len(expected)))
        np.testing.assert_allclose(weight, expected[index.astype(int)], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(weight, colour)
        axis = page.evaluate("document.getElementById('attention-view').layout.coloraxis")
        assert axis["cmax"] == pytest.approx(np.abs(expected).max(), rel=1e-5)
        # White is no weight.
        assert axis["cmin"] == (-axis["cmax"] if (found.attention < 0).any() else 0)

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
    opened.check()
    page.close()
