"""Structures in 3D: what a page holds of them. How they look in a browser is in test_browser."""

import html
import json
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
from molflt.report.page import Page
from molflt.report.viewer import MOST_WITH_BONDS, structure_view


def held(atoms, **options):
    """What the script gets, and the place."""
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
