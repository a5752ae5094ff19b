"""Structures in 3D: what is drawn, at which scale."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import covalent_radii

from molflt.data.ase_io import from_atoms
from molflt.report.structure_view import RADIUS, structure_figure, unit_sphere


@pytest.mark.parametrize("level", [0, 1, 2])
def test_spheres_are_closed_and_face_outwards(level: int) -> None:
    points, faces = unit_sphere(level)
    assert (len(points), len(faces)) == (10 * 4**level + 2, 20 * 4**level)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    a, b, c = (points[faces[:, k]] for k in range(3))
    assert ((np.cross(b - a, c - a) * a).sum(axis=1) > 0).all()
    directed = {(int(f[k]), int(f[(k + 1) % 3])) for f in faces for k in range(3)}
    assert len(directed) == 3 * len(faces)
    assert all((j, i) in directed for i, j in directed)


def _meshes(figure: object) -> list[object]:
    return [trace for trace in figure.data if trace.type == "mesh3d"]  # type: ignore[attr-defined]


def test_water() -> None:
    data = from_atoms(molecule("H2O"), name="w")
    figure = structure_figure(data, title="<b>water</b>")
    assert "<b>" not in figure.layout.title.text
    oxygen, hydrogen = _meshes(figure)
    assert (oxygen.name, hydrogen.name) == ("O", "H")
    corners = np.stack([oxygen.x, oxygen.y, oxygen.z], axis=1)
    centre = data.positions.numpy()[0]
    np.testing.assert_allclose(np.linalg.norm(corners - centre, axis=1), RADIUS * covalent_radii[8], rtol=1e-5)
    (bonds,) = [trace for trace in figure.data if trace.type == "scatter3d"]
    assert np.isnan(bonds.x).sum() == 2
    assert set(np.asarray(hydrogen.customdata)[:, 0]) == {1, 2}


def test_equal_scale_along_the_axes_and_cell_edges() -> None:
    data = from_atoms(bulk("NaCl", "rocksalt", 5.64), name="c")
    figure = structure_figure(data)
    ratio, scene = figure.layout.scene.aspectratio, figure.layout.scene
    scales = [getattr(ratio, n) / np.diff(getattr(scene, f"{n}axis").range)[0] for n in "xyz"]
    np.testing.assert_allclose(scales, scales[0])
    cell = figure.data[0]
    assert np.isnan(cell.x).sum() == 12
    isolated = structure_figure(from_atoms(molecule("CO"), name="m"))
    assert len(isolated.data) == 3


def test_values_colour_and_diverge_from_zero() -> None:
    data = from_atoms(molecule("CH4"), name="m")
    both = structure_figure(data, np.array([-2.0, 1, 0, 0, 0.5]), value_name="e / eV <i>", highlight=0)
    axis = both.layout.coloraxis
    assert (axis.cmin, axis.cmax) == (-2, 2)
    assert "<i>" not in axis.colorbar.title.text
    carbon = next(trace for trace in _meshes(both) if trace.name == "C")
    assert set(np.asarray(carbon.intensity)) == {-2.0}
    assert len(both.data) == len(structure_figure(data).data) + 1
    negative = structure_figure(data, np.full(5, -3.0)).layout.coloraxis
    assert negative.cmin < -3 < negative.cmax
    with pytest.raises(ValueError, match="4 values for 5 atoms"):
        structure_figure(data, np.zeros(4))


def test_many_atoms_stay_small() -> None:
    random = np.random.default_rng(0)
    for n, most in ((400, 2.0e6), (5000, 0.5e6)):
        data = from_atoms(Atoms(["Cu"] * n, random.uniform(0, 60, (n, 3))), name="m")
        text = structure_figure(data).to_json()
        json.loads(text)
        assert len(text) < most
