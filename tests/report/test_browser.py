"""The report in a real browser: it draws, turns, asks for nothing, and no name in it runs."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from molflt.model.model_file import LoadedModel
from molflt.report.page import write_report
from tests.report.test_rpe_curves import make_model

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
    """A page with all its figures drawn, and what happened on the way."""

    def __init__(self, browser: Any, path: Path, width: int = 1200) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.set_default_timeout(_TIMEOUT)
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.goto(path.as_uri())
        self.n_figures = self.page.evaluate("document.querySelectorAll('.figure').length")
        for k in range(self.n_figures):
            self.page.evaluate("k => document.querySelectorAll('.figure')[k].scrollIntoView()", k)
            self.page.wait_for_function(
                "k => document.querySelectorAll('.figure')[k]._fullLayout !== undefined"
                " && document.querySelectorAll('.figure')[k].querySelector('svg.main-svg') !== null",
                arg=k,
            )

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def picture(self, selector: str, k: int = 0) -> Image.Image:
        place = self.page.locator(selector).nth(k)
        place.scroll_into_view_if_needed()
        self.page.wait_for_timeout(200)
        return Image.open(io.BytesIO(place.screenshot(timeout=_TIMEOUT))).convert("RGB")


@pytest.fixture(scope="module")
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    found = Opened(browser, report)
    yield found
    found.page.close()


def n_colours(picture: Image.Image) -> int:
    colours = picture.getcolors(1 << 24)
    assert colours is not None
    return len(colours)


def test_it_opens_without_network_and_without_errors(opened: Opened) -> None:
    assert opened.problems == []
    assert opened.requests
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.requests), opened.requests
    assert opened.page.locator("img").count() == 0
    # the two programs and the content of the figures, nothing that a name brought in
    assert opened.page.evaluate("document.querySelectorAll('script:not([type])').length") == 2


def test_every_figure_has_drawn(opened: Opened) -> None:
    assert opened.page.locator(".js-plotly-plot").count() == opened.n_figures >= 17
    for k in range(opened.n_figures):
        assert n_colours(opened.picture(".figure", k)) > 20, k


def test_ten_structures_are_coloured_balls(opened: Opened) -> None:
    assert opened.page.locator(".card canvas").count() >= 10
    for k in range(10):
        picture = opened.picture(".card .figure", k)
        width, height = picture.size
        middle = picture.crop((width // 5, height // 5, 4 * width // 5, 4 * height // 5))
        # Shaded spheres have many shades; edges and bonds alone would have few.
        assert n_colours(middle) > 120, k


def test_a_drag_turns_a_structure(opened: Opened) -> None:
    before = opened.picture(".card .figure", 1)
    box = opened.page.locator(".card .figure").nth(1).bounding_box()
    eye = "() => document.querySelectorAll('.card .figure')[1]._fullLayout.scene._scene.getCamera().eye"
    first = opened.page.evaluate(eye)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.page.mouse.move(x, y)
    opened.page.mouse.down()
    opened.page.mouse.move(x + 80, y + 30, steps=8)
    opened.page.mouse.up()
    opened.page.wait_for_timeout(500)
    second = opened.page.evaluate(eye)
    assert max(abs(first[n] - second[n]) for n in "xyz") > 0.1
    assert opened.picture(".card .figure", 1).tobytes() != before.tobytes()
    assert opened.problems == []


def test_pointing_at_a_dot_shows_the_name_as_text(opened: Opened) -> None:
    figure = "Array.from(document.querySelectorAll('#parity .figure'))[0]"
    opened.page.evaluate(f"{figure}.scrollIntoView()")
    opened.page.evaluate(f"Plotly.Fx.hover({figure}, [{{curveNumber: 2, pointNumber: 0}}])")
    opened.page.wait_for_timeout(300)
    text = opened.page.evaluate(f"{figure}.querySelector('.hoverlayer').textContent")
    assert "<script>alert(1)" in text
    assert "expected" in text
    assert opened.page.locator("img").count() == 0
    assert opened.problems == []


def test_the_menu_shows_another_layer(browser: Any, model: LoadedModel, tmp_path: Path) -> None:
    model.model = make_model()
    write_report(tmp_path / "r.html", model, [])
    opened = Opened(browser, tmp_path / "r.html")
    visible = "() => document.querySelector('#rpe .figure').data.map(trace => trace.visible)"
    before = opened.page.evaluate(visible)
    opened.page.locator("#rpe .figure").first.locator(".updatemenu-header").click()
    opened.page.locator("#rpe .figure").first.locator(".updatemenu-dropdown-button").nth(1).click()
    opened.page.wait_for_timeout(300)
    after = opened.page.evaluate(visible)
    n = len(before) // 3
    assert before == [True] * n + [False] * 2 * n
    assert after == [False] * n + [True] * n + [False] * n
    assert opened.problems == []
    opened.page.close()


def test_it_fits_a_narrow_window(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(report.as_uri(), timeout=_TIMEOUT)
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_a_script_that_got_in_would_not_run(browser: Any, report: Path, tmp_path: Path) -> None:
    path = tmp_path / "tampered.html"
    path.write_text(
        report.read_text().replace(
            "<main>", "<main><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
        )
    )
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=_TIMEOUT)
    assert page.evaluate("window.ran") is None
    page.close()


def test_screenshot_is_not_blank(opened: Opened) -> None:
    opened.page.evaluate("window.scrollTo({top: 0, behavior: 'instant'})")
    picture = Image.open(io.BytesIO(opened.page.screenshot(timeout=_TIMEOUT))).convert("RGB")
    assert picture.size == (1200, 900)
    assert n_colours(picture) > 50
    assert picture.getpixel((5, 5)) == (20, 50, 77)
