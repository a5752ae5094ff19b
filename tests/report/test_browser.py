"""Both pages in a real browser: they draw, answer and turn, ask for nothing, and no name in them runs."""

import io
import shutil

import numpy as np
import pytest
from ase.data import chemical_symbols, covalent_radii
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from PIL import Image
from scipy.spatial.transform import Rotation

from molflt.data.ase import from_atoms
from molflt.data.reading import ReadOptions
from molflt.report.explain import explain
from molflt.report.explain_page import write_page
from molflt.vocabulary import TAG_ADSORBATE
from tests.report.conftest import slab
from tests.report.test_explanation import make_loaded

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-unsafe-swiftshader"]
_TIMEOUT = 120_000
"""Milliseconds; without a graphics card every 3D scene takes a second or two."""
WIDTHS = (400, 1024, 1920)
HIDDEN_LEGENDS = """() => Array.from(document.querySelectorAll('.legend, .scale')).filter(legend => {
    legend.scrollIntoView({behavior: 'instant', block: 'center'});
    const box = legend.getBoundingClientRect();
    const there = document.elementFromPoint(box.left + 5, box.top + box.height / 2);
    const outside = Array.from(legend.children).some(part => part.getBoundingClientRect().right > innerWidth);
    return outside || !legend.contains(there);
}).map(legend => legend.textContent)"""
"""Legends that something covers, or that leave the window."""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield opened
        opened.close()


class Opened:
    """A page, and what was wrong on the way: errors, dialogs, requests for anything but the file itself."""

    def __init__(self, browser, path, n_scripts):
        self.n_scripts = n_scripts
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.page.set_default_timeout(_TIMEOUT)
        self.problems = []
        self.page.on("request", lambda r: self._problem(r.url) if r.url != path.as_uri() else None)
        self.page.on("console", lambda message: self._problem(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self._problem(str(error)))
        self.page.on("dialog", lambda dialog: (self._problem(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.goto(path.as_uri())

    def _problem(self, text):
        # Pictures of 3D scenes are kept in memory.
        if not text.startswith(("data:", "blob:")):
            self.problems.append(text)

    def picture(self, selector, k=0):
        place = self.page.locator(selector).nth(k)
        place.scroll_into_view_if_needed()
        self.page.wait_for_timeout(200)
        return Image.open(io.BytesIO(place.screenshot(timeout=_TIMEOUT))).convert("RGB")

    def check(self):
        """No complaint, nothing that a name brought in, and room on a narrow screen."""
        assert self.problems == []
        assert self.page.locator("img").count() == 0
        assert self.page.evaluate("document.querySelectorAll('script:not([type])').length") == self.n_scripts
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            # Figures follow the window after a moment.
            self.page.wait_for_function(f"() => document.documentElement.scrollWidth <= {width}")
        assert self.problems == []


@pytest.fixture(scope="module")
def opened(browser, report):
    found = Opened(browser, report, 2)
    yield found
    found.page.close()


def n_colours(picture):
    colours = picture.getcolors(1 << 24)
    return len(colours)


def test_the_report_opens_without_network_and_without_errors(opened):
    assert n_colours(opened.picture(".figure")) > 20
    opened.page.evaluate("window.scrollTo({top: 0, behavior: 'instant'})")
    assert opened.picture("header").getpixel((5, 5)) == (20, 50, 77)
    opened.check()


def test_a_script_that_got_in_would_not_run(browser, report, tmp_path):
    path = tmp_path / "tampered.html"
    attack = "<main><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    path.write_text(report.read_text(encoding="utf-8").replace("<main>", attack), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=_TIMEOUT)
    assert page.evaluate("window.ran") is None
    page.close()


@pytest.mark.slow
def test_every_figure_draws_and_structures_are_coloured_balls(opened):
    n_figures = opened.page.locator(".figure svg").count()
    assert n_figures >= 8
    for k in range(n_figures):
        assert n_colours(opened.picture(".figure", k)) > 20, k
    assert opened.page.locator(".card .structure").count() == 10
    for k in range(10):
        opened.page.evaluate("k => document.querySelectorAll('.structure')[k].scrollIntoView()", k)
        opened.page.wait_for_function(
            "k => document.querySelectorAll('.structure')[k].structure !== undefined", arg=k
        )
        # Shaded balls have many shades; edges and bonds alone would have few.
        assert n_colours(opened.picture(".structure .scene", k)) > 120, k
    opened.check()


@pytest.mark.slow
def test_pointing_at_a_dot_shows_the_name_as_text(opened):
    dot = opened.page.locator("#overview .figure use:has(title)").first
    texts = dot.evaluate("""dot => {
        dot.scrollIntoView({behavior: 'instant', block: 'center'});
        const {left, top, width, height} = dot.getBoundingClientRect();
        const here = document.elementsFromPoint(left + width / 2, top + height / 2);
        return here.map(element => element.querySelector('title')?.textContent);
    }""")
    assert dot.locator("title").text_content() in texts
    every = opened.page.locator("#overview .figure title").all_text_contents()
    assert any("<script>alert(1)" in text and "expected" in text for text in every)
    assert opened.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["molflt", "softmax"])
def test_an_explanation_draws_and_answers(attention, browser, tmp_path):
    """Every ball has the colour of its atom's weight, letters say what it is, and all rows are there."""
    loaded = make_loaded(attention)
    found = explain(loaded, from_atoms(slab("Cu"), "slab", ReadOptions(tags="oc20")), 2)
    write_page(tmp_path / "page.html", found, loaded, [])
    opened = Opened(browser, tmp_path / "page.html", 3)
    page = opened.page
    page.wait_for_function("() => document.body.dataset.shown")
    view = "document.getElementById('attention-view').structure"
    page.wait_for_function(f"() => {view}.viewer.getView()[7] !== 1")
    assert page.locator("#distance-plot .point").count() == 5 * len(found.learnt)
    symbols = [chemical_symbols[z] for z in found.structure.atomic_numbers.tolist()]
    rows = page.locator("tbody tr td:first-child").all_inner_texts()
    tags = found.structure.tags.tolist()
    order = sorted(range(len(tags)), key=lambda i: -tags[i])
    assert rows == [f"{symbols[i]} {i}" + (" ←" if i == 2 else "") for i in order]
    assert tags[order[0]] == TAG_ADSORBATE
    page.locator("thead th").nth(0).click()
    assert sorted(page.locator("tbody tr td:first-child").all_inner_texts()) == sorted(rows)
    letters = page.evaluate(f"{view}.letters.map(letter => letter.text)")
    assert letters == [f"{symbol} 2" if i == 2 else symbol for i, symbol in enumerate(symbols)]
    # A letter is hidden where another ball is in front of its own, as the oxygen is seen from above.
    page.evaluate(f"(v => v.setView([...v.getView().slice(0, 4), 0, 0, 0, 1]))({view}.viewer)")
    looked = f"[{view}.letters.map(letter => letter.sprite.visible), {view}.viewer.getView()]"
    seen, seen_from = page.evaluate(looked)
    places = found.structure.positions.numpy().astype(float)
    places = Rotation.from_quat(seen_from[4:8]).apply(places)
    radii = np.array([0.25 + 0.35 * covalent_radii[z] for z in found.structure.atomic_numbers.tolist()])
    apart = np.linalg.norm(places[:, None, :2] - places[None, :, :2], axis=-1)
    covered = ((places[None, :, 2] > places[:, None, 2] + 0.1) & (apart < radii)).any(axis=1)
    covered[2] = False
    assert [not shown for shown in seen] == covered.tolist()
    assert covered.any()
    assert n_colours(opened.picture(".scene", 0)) > 120

    def check(expected, shown):
        page.wait_for_function(f"() => document.body.dataset.shown === '{shown}'")
        np.testing.assert_allclose(page.evaluate(f"{view}.values"), expected, rtol=1e-5, atol=1e-7)
        low, high = page.evaluate(f"{view}.ends")
        assert high == pytest.approx(np.abs(expected).max(), rel=1e-5)
        # White is no weight.
        assert low == (-high if (found.attention < 0).any() else 0)
        colours = colormaps["RdBu_r" if low else "Reds"]((expected - low) / (high - low))[:, :3]
        drawn = [to_rgb(colour) for colour in page.evaluate(f"{view}.colours")]
        np.testing.assert_allclose(drawn, colours, atol=0.06)

    check(found.attention[1].mean(axis=0), "1 -1 false")
    page.select_option("#head", "3")
    check(found.attention[1, 3], "1 3 false")
    page.select_option("#layer", "0")
    check(found.attention[0, 3], "0 3 false")
    page.check("#log")
    check(found.attention[0, 3], "0 3 true")
    drawn = page.evaluate(
        "Array.from(document.querySelectorAll('.point.chosen')).map(p => [p.cx.baseVal.value, p.cy.baseVal.value])"
    )
    x, y = np.array(drawn).T
    weights = np.abs(found.attention[0, 3])
    drawn_weights = weights > 0
    for there, expected in ((x, found.distance[drawn_weights]), (y, -np.log(weights[drawn_weights]))):
        np.testing.assert_allclose(np.polyval(np.polyfit(expected, there, 1), expected), there, atol=1e-2)
    open_dots = page.evaluate(
        "Array.from(document.querySelectorAll('.point.chosen')).map(p => p.getAttribute('fill') === 'none')"
    )
    assert open_dots == (found.attention[0, 3] < 0)[drawn_weights].tolist()
    ticks = [float(text) for text in page.locator("#distance-plot .tick").all_text_contents()]
    assert len(ticks) >= 2 or np.ptp(np.log10(weights[drawn_weights])) < 1
    np.testing.assert_allclose(np.log10(ticks), np.round(np.log10(ticks)))
    opened.check()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.querySelector('canvas').clientWidth <= innerWidth")
        assert page.evaluate(HIDDEN_LEGENDS) == []
    page.close()
