"""Pages as text: complete, deaf to what data says; and the structures in 3D that they hold."""

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.data import atomic_numbers
from ase.data.colors import jmol_colors
from ase.io import read
from matplotlib.colors import to_rgb
from scipy.spatial.transform import Rotation

from molflt.data.ase import from_atoms
from molflt.data.reading import ReadOptions
from molflt.report.model import write_report
from molflt.report.page import Page
from molflt.report.viewer import MOST_WITH_BONDS, structure_view
from molflt.training.run_dir import read_records
from tests.report.conftest import EVIL, evaluated_set
from tests.report.test_rpe_curves import make_model


class Parsed(HTMLParser):
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
    text = report.read_text(encoding="utf-8")
    page = Parsed(text)
    keys = ["overview", "curves", "residuals", "uncertainty", "groups", "worst", "rpe", "invariance", "provenance"]
    assert page.headings == keys
    links = [attrs["href"] for tag, attrs in page.elements if tag == "a"]
    assert links == [f"#{key}" for key in keys]
    for word in ("EwT", "MAE / eV", "RMSE / eV", "(MAD)", "n_basis: 4", "torch", "Failed: rotation.", "max_epochs"):
        assert word in page.text
    assert str(model_path) in page.text
    # the numbers of the first set, worked out here
    error = evaluated_set().predicted - evaluated_set().expected
    assert f"{np.abs(error).mean():.4f}" in page.text
    assert f"{np.sqrt((error**2).mean()):.4f}" in page.text
    assert len([tag for tag, attrs in page.elements if attrs.get("class") == "card"]) == 10
    # The result comes first.
    overview, rest = text[text.index('<section id="overview">') :].split("</section>", 1)
    assert f"<strong>{np.abs(error).mean():.4f} eV</strong>" in overview
    assert (overview.count('class="figure"'), "fingerprint" in overview) == (1, False)
    assert "fingerprint" in rest[rest.index('id="provenance"') :]


def test_nothing_comes_from_outside(report):
    page = Parsed(report.read_text(encoding="utf-8"))
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
    page = Parsed(report.read_text(encoding="utf-8"))
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
    assert Parsed(path.read_text(encoding="utf-8")).headings == ["overview", "rpe", "invariance", "provenance"]
    write_report(path, loaded, [evaluated_set(n=1, adsorbates=False)])
    page = Parsed(path.read_text(encoding="utf-8"))
    assert page.headings == ["overview", "residuals", "groups", "worst", "rpe", "invariance", "provenance"]
    assert "molflt check-invariance" in page.text
    assert "By adsorbate" not in page.text
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]


def test_what_cannot_be_shown_is_told(loaded, tmp_path):
    some = replace(evaluated_set(n=5), skipped=["a: is broken"])
    same = replace(some, prediction=replace(some.prediction, uncertainty_eV=np.zeros(5)))
    loaded.model = make_model(mechanism="kernelised")
    write_report(tmp_path / "r.html", loaded, [same])
    text = Parsed((tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "Left out everywhere because they cannot be used: 1 of val." in text
    assert "their predictions agree exactly" in text
    assert "its heads do not depend on distances" in text


def test_a_report_of_many_structures_stays_small(loaded, tiny_run, tmp_path):
    write_report(tmp_path / "r.html", loaded, [evaluated_set(n=300)], read_records(tiny_run))
    assert (tmp_path / "r.html").stat().st_size < 3e6


def held(atoms, **options):
    page = Page("report.html")
    place = structure_view(page, from_atoms(atoms, "m", ReadOptions(tags="oc20")), **options)
    (content,) = page._held.values()
    return json.loads(content), str(place)


@pytest.mark.parametrize(
    "atoms", [molecule("CH3Cl"), bulk("NaCl", "rocksalt", 5.64), fcc111("Cu", (2, 2, 2), vacuum=6)]
)
def test_atoms_cell_and_colours_as_ase_has_them(atoms):
    content, place = held(atoms)
    again = read(StringIO(content["xyz"]), format="extxyz")
    assert again.get_chemical_symbols() == atoms.get_chemical_symbols()
    np.testing.assert_allclose(again.positions, atoms.positions, atol=1e-3)
    if atoms.pbc.any():
        np.testing.assert_allclose(again.cell, atoms.cell, atol=1e-3)
        np.testing.assert_allclose(content["corners"], [c @ atoms.cell for c in np.ndindex(2, 2, 2)], atol=2e-3)
    else:
        assert content["corners"] == []
    assert ("cell</button>" in place) == bool(atoms.pbc.any())
    for symbol, drawn in content["elements"].items():
        np.testing.assert_allclose(to_rgb(drawn["colour"]), jmol_colors[atomic_numbers[symbol]], atol=1 / 255)
        assert f'<i style="background:{drawn["colour"]}"></i>{symbol} ×' in place


def test_a_flat_molecule_is_seen_from_its_wide_side():
    atoms = molecule("C6H6")
    for seed in range(5):
        turned = atoms.copy()
        turned.positions = Rotation.random(random_state=seed).apply(atoms.positions)
        seen = Rotation.from_quat(held(turned)[0]["turn"]).apply(turned.positions)
        assert (np.ptp(seen, axis=0)[:2] > 3.5).all()


def test_values_have_a_scale_in_place_of_the_elements_colours():
    atoms = molecule("CH4")
    content, place = held(atoms, values=np.array([-2.0, 1, 0, 0, 0.5]), value_name="e / eV <i>", highlight=0, key="k")
    assert content["scale"]["kind"] == "signed"
    assert content["scale"]["colours"][5] == "#f7f6f6"
    assert (content["values"], content["highlight"]) == ([-2, 1, 0, 0, 0.5], 0)
    assert 'id="k"' in place
    assert html.escape("e / eV <i>") in place
    assert '<i style="background:#' not in place
    assert held(atoms, values=np.full(5, -3.0))[0]["scale"]["kind"] == "range"
    assert held(atoms, values=np.ones(5), scale="signed")[0]["scale"]["kind"] == "signed"


def test_tags_are_told_where_they_tell_something():
    slab = fcc111("Cu", (1, 1, 2), vacuum=6)
    slab.set_tags([0, 2])
    assert held(slab)[0]["tags"] == ["sub-surface", "adsorbate"]
    assert held(molecule("CO"))[0]["tags"] == []


def test_many_atoms_stay_small_and_have_no_letters():
    positions = np.argwhere(np.ones((18, 18, 18)))[:5000] * 3.3 + np.random.default_rng(0).uniform(0, 0.9, (5000, 3))
    content, place = held(Atoms(["Cu"] * 5000, positions))
    assert len(content["xyz"]) < 200_000
    assert not content["few"]
    assert "letters" not in place
    assert "letters" in held(Atoms(["Cu"] * MOST_WITH_BONDS, positions[:MOST_WITH_BONDS]))[1]
