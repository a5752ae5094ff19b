"""A structure in 3D, to be turned with the mouse."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from ase.data import chemical_symbols, covalent_radii
from ase.data.colors import jmol_colors
from scipy.spatial import ConvexHull, cKDTree
from torch_geometric.data import Data

from molflt.report.html import for_plotly

RADIUS = 0.6
"""Of a drawn atom, in covalent radii: small enough to see bonds, large enough to see a surface."""
BOND = 1.2
"""Longest bond, in sums of covalent radii."""
MOST_WITH_BONDS = 300
"""Atoms; in larger structures bonds hide more than they show."""
_MOST_FINE, _MOST_SPHERES = 150, 3000
"""Atoms up to which spheres are finely triangulated, and up to which there are spheres at all."""
_FIELD_OF_VIEW = np.pi / 4
_VIEW = np.array([0.72, -0.62, 0.32])
"""Direction from which it is seen first: from the side and slightly from above, as slabs want it."""
_LIGHT = {"ambient": 0.62, "diffuse": 0.65, "specular": 0.12, "roughness": 0.5, "fresnel": 0.05}


def structure_figure(
    data: Data,
    values: np.ndarray | None = None,
    *,
    value_name: str = "",
    title: str = "",
    highlight: int | None = None,
) -> go.Figure:
    """Atoms as shaded spheres, bonds within the home cell, edges of the cell; at equal scale along the axes.

    Args:
        data: a structure under the vocabulary.
        values: (n_atoms,) numbers to colour the atoms by, in place of their elements. Colours diverge from zero
            where both signs occur.
        value_name: what the values are, with their unit; for the colour bar and the hover text.
        title: above the figure.
        highlight: index of an atom to ring.
    """
    positions = data.positions.detach().cpu().numpy()
    numbers = data.atomic_numbers.cpu().numpy()
    if values is not None:
        values = np.asarray(values, dtype=np.float64).reshape(-1)
        if len(values) != len(numbers):
            raise ValueError(f"{len(values)} values for {len(numbers)} atoms")
    radii = RADIUS * covalent_radii[numbers]
    figure = go.Figure()
    edges = _cell_edges(data)
    if edges is not None:
        figure.add_trace(_lines(edges, "#9aa4b2", 2))
    if len(numbers) <= MOST_WITH_BONDS:
        bonds = _bonds(positions, numbers)
        if len(bonds):
            figure.add_trace(_lines(positions[bonds], "#7a828c", 5))
    tags = data.tags.cpu().numpy() if "tags" in data else np.zeros_like(numbers)
    columns = [np.arange(len(numbers)), tags] + ([] if values is None else [values])
    known = np.stack(columns, axis=1)
    for z in np.unique(numbers)[::-1]:
        mine = np.flatnonzero(numbers == z)
        figure.add_trace(_atoms(int(z), positions[mine], radii[mine], known[mine], value_name, len(numbers)))
    if highlight is not None:
        figure.add_trace(_ring(positions[highlight], 1.3 * radii[highlight]))
    if values is not None:
        figure.update_layout(coloraxis=_colour_axis(values, value_name))
    figure.update_layout(
        title={"text": for_plotly(title), "x": 0.5, "font": {"size": 14}} if title else None,
        scene=_scene(positions, radii, edges, 1.0 if values is None else 1.2),
        margin={"l": 0, "r": 0, "t": 36 if title else 0, "b": 0},
        legend={
            "orientation": "h",
            "x": 0.5,
            "xanchor": "center",
            "y": 0.0,
            "bgcolor": "rgba(0,0,0,0)",
            "itemsizing": "constant",
        },
        showlegend=True,
        template="none",
        font={"family": "system-ui, sans-serif"},
    )
    return figure


def _atoms(z: int, positions: np.ndarray, radii: np.ndarray, known: np.ndarray, value_name: str, n_atoms: int) -> Any:
    """All atoms of one element; ``known`` (n, 2 or 3) are index, tag and value of each."""
    symbol = chemical_symbols[z]
    template = f"{symbol}, atom %{{customdata[0]}}<br>tag %{{customdata[1]}}"
    if known.shape[1] == 3:
        template += f"<br>{for_plotly(value_name) or 'value'} %{{customdata[2]:.5g}}"
    template += "<extra></extra>"
    # White atoms would vanish against the page.
    colour = "rgb({},{},{})".format(*(round(235 * float(c)) for c in jmol_colors[z]))
    if n_atoms > _MOST_SPHERES:
        by_value = {"color": known[:, 2], "coloraxis": "coloraxis"} if known.shape[1] == 3 else {"color": colour}
        return go.Scatter3d(
            **_xyz(positions),
            mode="markers",
            marker={"size": 3, **by_value},
            name=symbol,
            customdata=known,
            hovertemplate=template,
        )
    points, triangles = unit_sphere(2 if n_atoms <= _MOST_FINE else 1)
    corners = (positions[:, None] + radii[:, None, None] * points).reshape(-1, 3)
    faces = (len(points) * np.arange(len(positions))[:, None, None] + triangles).reshape(-1, 3)
    # The figure's JSON holds the bytes: narrow numbers make a smaller page.
    faces = faces.astype(np.uint16 if len(corners) < 1 << 16 else np.int32)
    narrow = np.float32 if known.shape[1] == 3 else np.int32
    by_value = {"color": colour}
    if known.shape[1] == 3:
        by_value = {"intensity": np.repeat(known[:, 2], len(points)).astype(np.float32), "coloraxis": "coloraxis"}
    return go.Mesh3d(
        **_xyz(corners),
        i=faces[:, 0],
        j=faces[:, 1],
        k=faces[:, 2],
        **by_value,
        name=symbol,
        showlegend=known.shape[1] == 2,
        customdata=np.repeat(known, len(points), axis=0).astype(narrow),
        hovertemplate=template,
        flatshading=False,
        lighting=_LIGHT,
        lightposition={"x": 3000, "y": -6000, "z": 9000},
    )


def _xyz(points: np.ndarray) -> dict[str, np.ndarray]:
    """Single precision is plenty for a drawing, and halves the page."""
    return {name: points[:, k].astype(np.float32) for k, name in enumerate("xyz")}


def _lines(segments: np.ndarray, colour: str, width: float) -> Any:
    """Straight lines (n, 2, 3) in one trace; a NaN lifts the pen."""
    gap = np.full((len(segments), 1, 3), np.nan)
    path = np.concatenate([segments, gap], axis=1).reshape(-1, 3)
    return _line(path, colour, width)


def _line(path: np.ndarray, colour: str, width: float) -> Any:
    return go.Scatter3d(
        **_xyz(path), mode="lines", line={"color": colour, "width": width}, hoverinfo="skip", showlegend=False
    )


def _ring(centre: np.ndarray, radius: float) -> Any:
    """Three great circles: from wherever one looks, one of them is a ring."""
    angle = np.linspace(0, 2 * np.pi, 49)
    circle = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1)
    gap = np.full((1, 3), np.nan)
    path = np.concatenate([part for shift in range(3) for part in (np.roll(circle, shift, axis=1), gap)])
    return _line(centre + radius * path, "#d6006c", 5)


def _bonds(positions: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """(n_bonds, 2) pairs of atoms closer than their covalent radii allow, in the home cell."""
    radii = covalent_radii[numbers]
    pairs = cKDTree(positions).query_pairs(2 * BOND * float(radii.max()), output_type="ndarray")
    distances = np.linalg.norm(positions[pairs[:, 0]] - positions[pairs[:, 1]], axis=1)
    bonds: np.ndarray = pairs[distances < BOND * radii[pairs].sum(axis=1)]
    return bonds


def _cell_edges(data: Data) -> np.ndarray | None:
    """(12, 2, 3) Å; None for an isolated structure."""
    cell = data.cell.detach().cpu().numpy().reshape(3, 3)
    if not bool(data.pbc.any()) or not np.any(cell):
        return None
    corners = np.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    ends = [(a, b) for a in corners for b in corners if (b - a).sum() == 1 and (b >= a).all()]
    edges: np.ndarray = np.array(ends) @ cell
    return edges


def _scene(positions: np.ndarray, radii: np.ndarray, edges: np.ndarray | None, room: float) -> dict[str, Any]:
    """Axes at equal scale and a camera that has the atoms in view, however much vacuum the cell holds.

    ``room`` is the distance from which they are seen, relative to that at which they fill a square view.
    """
    low, high = (positions - radii[:, None]).min(axis=0), (positions + radii[:, None]).max(axis=0)
    centre = (low + high) / 2
    reach = float((np.linalg.norm(positions - centre, axis=1) + radii).max())
    if edges is not None:
        low, high = np.minimum(low, edges.min(axis=(0, 1))), np.maximum(high, edges.max(axis=(0, 1)))
    margin = 0.5 + 0.02 * (high - low)
    low, high = low - margin, high + margin
    # One unit of the scene is the reach of the atoms, so that the same distance suits every structure.
    distance = 1.05 * room / np.sin(_FIELD_OF_VIEW / 2)
    middle = (centre - (low + high) / 2) / reach
    eye = middle + distance * _VIEW / np.linalg.norm(_VIEW)
    hidden = {"visible": False, "showspikes": False}
    return {
        **{f"{n}axis": {**hidden, "range": [low[k], high[k]]} for k, n in enumerate("xyz")},
        "aspectmode": "manual",
        "aspectratio": {n: (high[k] - low[k]) / reach for k, n in enumerate("xyz")},
        "camera": {
            "center": dict(zip("xyz", middle.tolist(), strict=True)),
            "eye": dict(zip("xyz", eye.tolist(), strict=True)),
            "up": {"x": 0, "y": 0, "z": 1},
        },
        "dragmode": "turntable",
    }


def _colour_axis(values: np.ndarray, name: str) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    bar = {"title": {"text": for_plotly(name), "side": "right"}, "thickness": 12, "len": 0.8}
    if low < 0 < high:
        end = max(-low, high)
        return {"colorscale": "RdBu_r", "cmin": -end, "cmax": end, "colorbar": bar}
    if low == high:
        # A scale of no length has no colours.
        low, high = low - 0.5, high + 0.5
    return {"colorscale": "Viridis", "cmin": low, "cmax": high, "colorbar": bar}


@lru_cache(maxsize=4)
def unit_sphere(level: int) -> tuple[np.ndarray, np.ndarray]:
    """An icosahedron, each triangle split in four ``level`` times, pushed out to radius one.

    Returns:
        Vertices (10·4^level + 2, 3) and, per triangle, the indices of its vertices (20·4^level, 3), anticlockwise
        as seen from outside: shading follows from that.
    """
    golden = (1 + 5**0.5) / 2
    edge = [(0, a, b) for a in (-1, 1) for b in (-golden, golden)]
    points = np.array([np.roll(corner, shift) for shift in range(3) for corner in edge])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    for _ in range(level):
        sides = ConvexHull(points).simplices[:, [[0, 1], [1, 2], [0, 2]]].reshape(-1, 2)
        middles = points[np.unique(np.sort(sides, axis=1), axis=0)].mean(axis=1)
        points = np.concatenate([points, middles / np.linalg.norm(middles, axis=1, keepdims=True)])
    faces = ConvexHull(points).simplices
    a, b, c = (points[faces[:, k]] for k in range(3))
    inward = (np.cross(b - a, c - a) * a).sum(axis=1) < 0
    faces[inward] = faces[inward][:, ::-1]
    return points, faces
