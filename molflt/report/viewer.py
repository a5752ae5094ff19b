"""Interactive 3D views of structures, all drawn with 3Dmol.js (BSD-3-Clause)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Literal

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from ase.data.colors import jmol_colors
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.colors import to_hex
from scipy.spatial.transform import Rotation
from torch_geometric.data import Data

from molflt.report.page import Page
from molflt.vocabulary import TAG_ADSORBATE, TAG_SUBSURFACE, TAG_SURFACE

TAG_NAMES = {TAG_SUBSURFACE: "sub-surface", TAG_SURFACE: "surface", TAG_ADSORBATE: "adsorbate"}
MOST_WITH_BONDS = 300
"""Atoms; in larger structures bonds and letters hide more than they show."""
_SCALES = {"signed": "RdBu_r", "range": "viridis", "weight": "Reds"}
"""Colour maps: diverging around zero; from the least to the greatest; from zero, white, to the greatest."""


def structure_view(
    page: Page,
    data: Data,
    *,
    height: int = 300,
    values: np.ndarray | None = None,
    value_name: str = "",
    scale: Literal["signed", "range", "weight"] | None = None,
    highlight: int | None = None,
    key: str = "",
) -> Markup:
    """Return the element of a page where a structure is drawn, with its legend below.

    Atoms are balls in Jmol's colours with the letters of their element, with bonds within the home cell and the
    edges of a periodic cell.

    Args:
        page: the page that will hold it.
        data: a structure under the vocabulary.
        height: of the picture, in pixels; it is as wide as there is room.
        values: (n_atoms,) finite numbers to colour the atoms by, instead of their elements.
        value_name: name of the values, with their unit.
        scale: colour scale: diverging from zero, from the least value to the greatest, or from zero to the
            greatest; None diverges if both signs occur.
        highlight: index of an atom to mark.
        key: id of the element, for a script that changes colours.
    """
    numbers = data.atomic_numbers.cpu().numpy()
    symbols = [chemical_symbols[z] for z in numbers]
    positions = data.positions.detach().cpu().numpy().astype(float)
    cell = _cell(data)
    tags = data.tags.tolist()
    counts = sorted(Counter(numbers.tolist()).items())
    elements = {chemical_symbols[z]: {"colour": to_hex(jmol_colors[z]), "radius": _radius(z)} for z, _ in counts}
    content: dict[str, Any] = {
        "xyz": _xyz(symbols, positions, cell),
        "elements": elements,
        # Tags that are all 0, as in molecules, carry no information.
        "tags": [TAG_NAMES[tag] for tag in tags] if any(tags) else [],
        "corners": [] if cell is None else (np.indices((2, 2, 2)).reshape(3, -1).T @ cell).round(3).tolist(),
        "turn": _turn(positions, periodic=cell is not None).round(5).tolist(),
        "few": len(numbers) <= MOST_WITH_BONDS,
        "highlight": highlight,
    }
    if values is not None:
        kind = scale or ("signed" if np.min(values) < 0 < np.max(values) else "range")
        colours = [to_hex(colour) for colour in colormaps[_SCALES[kind]](np.linspace(0, 1, 11))]
        named = {"kind": kind, "colours": colours, "name": value_name}
        content |= {"values": np.asarray(values, dtype=float).tolist(), "scale": named}
    page.need("3Dmol-min.js", "viewer.js")
    return page.part(
        "structure.html",
        content=page.hold(None, json.dumps(content)),
        key=key,
        height=height,
        legend=[(chemical_symbols[z], elements[chemical_symbols[z]]["colour"], n) for z, n in counts],
        scale=content.get("scale"),
        periodic=cell is not None,
        letters=content["few"],
    )


def _radius(z: int) -> float:
    """Radius of a ball, Å: small enough to see bonds, large enough for a letter on hydrogen."""
    return round(0.25 + 0.35 * float(covalent_radii[z]), 3)


def _cell(data: Data) -> np.ndarray | None:
    """(3, 3) Å; None for an isolated structure."""
    cell: np.ndarray = data.cell.detach().cpu().numpy().reshape(3, 3).astype(float)
    return cell if bool(data.pbc.any()) and np.any(cell) else None


def _xyz(symbols: list[str], positions: np.ndarray, cell: np.ndarray | None) -> str:
    """Write the extended XYZ that 3Dmol reads, to a thousandth of an Å."""
    lattice = "" if cell is None else f'Lattice="{" ".join(f"{x:.4f}" for x in cell.ravel())}"'
    atoms = [f"{symbol} {x:.3f} {y:.3f} {z:.3f}" for symbol, (x, y, z) in zip(symbols, positions, strict=True)]
    return "\n".join([str(len(symbols)), lattice, *atoms])


def _turn(positions: np.ndarray, periodic: bool) -> np.ndarray:
    """(4,) quaternion x, y, z, w of the first view: slabs from the side, molecules at widest."""
    if periodic:
        first = Rotation.from_euler("zx", [-49, -72], degrees=True)
    else:
        _, _, axes = np.linalg.svd(positions - positions.mean(axis=0))
        axes[2] = np.cross(axes[0], axes[1])
        first = Rotation.from_euler("yx", [20, 20], degrees=True) * Rotation.from_matrix(axes)
    turn: np.ndarray = first.as_quat()
    return turn
