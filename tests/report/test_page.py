"""The page as text: complete, and deaf to what data says."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from molflt.report.model import write_report
from molflt.training.run_directory import read_records
from tests.report.conftest import EVIL, evaluated_set
from tests.report.test_rpe_curves import make_model


class Page(HTMLParser):
    """Elements with their attributes, text outside scripts, and scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.scripts = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = attributes, before + data
        elif self._inside != "style":
            self.text += data

    @property
    def headings(self):
        return [str(attrs["id"]) for tag, attrs in self.elements if tag == "section"]


def test_sections_numbers_and_provenance(report, model_path):
    page = Page(report.read_text(encoding="utf-8"))
    keys = ["overview", "curves", "residuals", "uncertainty", "groups", "worst", "rpe", "invariance", "provenance"]
    assert page.headings == keys
    links = [attrs["href"] for tag, attrs in page.elements if tag == "a"]
    assert links == [f"#{key}" for key in keys]
    for text in (
        str(model_path),
        "EwT",
        "MAE / eV",
        "RMSE / eV",
        "n_basis: 4",
        "torch",
        "Failed: rotation.",
        "max_epochs",
    ):
        assert text in page.text
    # the numbers of the first set, worked out here
    error = evaluated_set().predicted - evaluated_set().expected
    assert f"{np.abs(error).mean():.4f}" in page.text
    assert f"{np.sqrt((error**2).mean()):.4f}" in page.text
    assert len([tag for tag, attrs in page.elements if attrs.get("class") == "card"]) == 10


def test_the_result_comes_first(report):
    """Error, baseline and picture before anything about the model; fingerprints last."""
    text = report.read_text(encoding="utf-8")
    metrics = evaluated_set(std=True).metrics
    overview, rest = text[text.index('<section id="overview">') :].split("</section>", 1)
    assert f"<strong>{metrics.energy_mae:.4f} eV</strong>" in overview
    assert f"{metrics.mad:.4f} eV (MAD)" in overview
    assert overview.count('class="figure"') == 1
    assert "fingerprint" not in overview
    assert "fingerprint" in rest[rest.index('id="provenance"') :]


def test_nothing_comes_from_outside(report):
    page = Page(report.read_text(encoding="utf-8"))
    for tag, attrs in page.elements:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert not re.match(r"\s*(https?:|//|file:|ftp:)", attrs.get(name) or ""), (tag, attrs)
    assert not any("src" in attrs for attrs, _ in page.scripts)
    style = re.search(r"<style>(.*?)</style>", report.read_text(encoding="utf-8"), re.DOTALL)
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    (policy,) = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert "unsafe-eval" not in policy


def test_hostile_names_stay_text(report):
    page = Page(report.read_text(encoding="utf-8"))
    assert not any(tag == "img" for tag, _ in page.elements)
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert EVIL in page.text
    programs = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    assert len(programs) == 2
    contents = [text for attrs, text in page.scripts if attrs.get("type") == "application/json"]
    assert len(contents) == len([a for _, a in page.elements if a.get("class") == "structure"]) == 10
    for text in contents:
        assert "<" not in json.dumps(json.loads(text))


def test_a_page_has_the_sections_that_it_has_content_for(loaded, tmp_path):
    path = tmp_path / "new folder" / "r.html"
    write_report(path, loaded, [])
    assert Page(path.read_text(encoding="utf-8")).headings == ["overview", "rpe", "invariance", "provenance"]
    write_report(path, loaded, [evaluated_set(n=1, adsorbates=False)])
    page = Page(path.read_text(encoding="utf-8"))
    assert page.headings == ["overview", "residuals", "groups", "worst", "rpe", "invariance", "provenance"]
    assert "molflt check-invariance" in page.text
    assert "By adsorbate" not in page.text
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]


def test_what_cannot_be_shown_is_told(loaded, tmp_path):
    """Structures left out, members of an ensemble that agree, attention that sees no distances."""
    some = replace(evaluated_set(n=5), skipped=["a: is broken"])
    same = replace(some, prediction=replace(some.prediction, std=np.zeros(5)))
    loaded.model = make_model(mechanism="kernelised")
    write_report(tmp_path / "r.html", loaded, [same])
    text = Page((tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "Left out everywhere, because they cannot be used: 1 of val." in text
    assert "their predictions agree exactly" in text
    assert "its heads see no distances" in text


def test_a_report_of_many_structures_stays_small(loaded, tiny_run, tmp_path):
    write_report(tmp_path / "r.html", loaded, [evaluated_set(n=300)], read_records(tiny_run))
    assert (tmp_path / "r.html").stat().st_size < 3e6
