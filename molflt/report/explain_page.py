"""An explanation for the eye and for other programs: a page with 3D views, a table of atoms, JSON."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from ase.data import chemical_symbols

from molflt.files import atomic_file
from molflt.model.model_file import LoadedModel
from molflt.report.explanation import Explanation
from molflt.report.html import Page, energy
from molflt.report.structure_view import structure_figure
from molflt.vocabulary import TAG_ADSORBATE, TAG_SUBSURFACE, TAG_SURFACE

TAG_NAMES = {TAG_SUBSURFACE: "sub-surface", TAG_SURFACE: "surface", TAG_ADSORBATE: "adsorbate"}
_MOST_ROWS = 500
"""Atoms in the page's table."""
_MOST_POINTS = 20_000
"""Points that a plot of vector graphics is still quick with."""


def atom_rows(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """One row for each atom, in order; ``attention`` is the mean over the heads of the last layer.

    Tags that are all 0, as molecules have them, tell nothing and are left empty.
    """
    structure = explanation.structure
    tagged = bool(structure.tags.any())
    share = explanation.share
    mean_attention = explanation.attention[-1].mean(axis=0)
    for i, (z, tag) in enumerate(zip(structure.atomic_numbers.tolist(), structure.tags.tolist(), strict=True)):
        yield {
            "index": i,
            "element": chemical_symbols[z],
            "tag": TAG_NAMES[tag] if tagged else "",
            "contribution_eV": float(explanation.atomic_energies[i]),
            "reference_eV": float(explanation.reference[i]),
            "learnt_eV": float(explanation.learnt[i]),
            "share": float(share[i]),
            f"distance_from_{explanation.atom}_A": float(explanation.distance[i]),
            f"attention_of_{explanation.atom}": float(mean_attention[i]),
        }


def largest(explanation: Explanation, n: int) -> list[int]:
    """All atoms in order, or the ``n`` with the largest learnt parts, largest first, and the one that attends."""
    n_atoms = len(explanation.learnt)
    if n_atoms <= n:
        return list(range(n_atoms))
    found = [int(i) for i in np.argsort(-np.abs(explanation.learnt), kind="stable")[:n]]
    return found if explanation.atom in found else [*found, explanation.atom]


def write_csv(path: Path, explanation: Explanation) -> None:
    """Write the table of all atoms, atomically; numbers at full precision."""
    rows = list(atom_rows(explanation))
    with atomic_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Everything, as what ``json.dumps`` takes."""
    names = {"index", "element", "tag", "contribution_eV", "reference_eV", "learnt_eV", "share"}
    return {
        "structure": explanation.name,
        "target": explanation.target,
        "energy_eV": explanation.energy,
        "mean_eV": explanation.mean,
        "atoms": [{key: row[key] for key in row if key in names} for row in atom_rows(explanation)],
        "atom": explanation.atom,
        "distance_A": explanation.distance.tolist(),
        "attention": explanation.attention.tolist(),
    }


def write_page(path: Path, explanation: Explanation, loaded: LoadedModel, unknown: list[str]) -> None:
    """Write the page, atomically.

    Args:
        path: the HTML file.
        explanation: what it shows.
        loaded: the model that was explained.
        unknown: symbols of elements in the structure that the model was not trained on.
    """
    signed = bool((explanation.attention < 0).any())
    n_layers, n_heads, n_atoms = explanation.attention.shape
    referenced = bool(explanation.reference.any())
    constant = explanation.mean + float(explanation.reference.sum())
    shown = largest(explanation, _MOST_ROWS)
    page = Page("explain")
    page.hold("explanation", json.dumps(_content(explanation, signed)))
    page.write(
        path,
        title=explanation.name,
        subtitle=f"explained by {loaded.path}",
        explanation=explanation,
        symbol=chemical_symbols[int(explanation.structure.atomic_numbers[explanation.atom])],
        constant=constant if referenced else explanation.mean,
        referenced=referenced,
        learnt=float(explanation.learnt.sum()),
        unknown=", ".join(unknown),
        signed=signed,
        n_layers=n_layers,
        n_heads=n_heads,
        n_atoms=n_atoms,
        n_rows=len(shown),
        table=_table(explanation, shown, referenced),
    )


def _content(explanation: Explanation, signed: bool) -> dict[str, Any]:
    """What the script needs. Texts among it are either escaped already or symbols of elements."""
    structure = explanation.structure
    energies = structure_figure(
        structure, explanation.learnt, value_name="learnt part / eV", highlight=explanation.atom
    )
    attention = structure_figure(
        structure, explanation.attention[-1].mean(axis=0), value_name="weight", highlight=explanation.atom
    )
    # White is no weight in every layer and head, so that they compare.
    attention.update_layout(coloraxis={"colorscale": "RdBu_r" if signed else "Reds"})
    traces = [
        {"index": k, **_atoms_of(trace.customdata)}
        for k, trace in enumerate(attention.data)
        if trace.customdata is not None
    ]
    _, n_heads, n_atoms = explanation.attention.shape
    by_vertex = any(trace.type == "mesh3d" for trace in attention.data)
    template = energies.layout.template.to_plotly_json()
    # Once for all three plots.
    for figure in (energies, attention):
        # Colours are values here, so a legend of elements would show none of them.
        figure.update_layout(template=None, showlegend=False)
    return {
        "figures": {"energy-view": _figure(energies), "attention-view": _figure(attention)},
        "template": template,
        "traces": traces,
        "colour_key": "intensity" if by_vertex else "marker.color",
        "tags": structure.tags.tolist(),
        "symbols": [chemical_symbols[z] for z in structure.atomic_numbers.tolist()],
        "atom": explanation.atom,
        "n_heads": n_heads,
        "attention": _encoded(explanation.attention),
        "distance": _encoded(explanation.distance),
        "signed": signed,
        "all_heads": n_heads * n_atoms <= _MOST_POINTS,
    }


def _atoms_of(customdata: np.ndarray) -> dict[str, Any]:
    """The atoms that a trace draws, and how many points it draws of each, one atom after the other."""
    drawn = np.asarray(customdata)[:, 0].astype(int)
    atoms, counts = np.unique(drawn, return_counts=True)
    repeat = int(counts[0])
    atoms = drawn[::repeat]
    assert np.array_equal(np.repeat(atoms, repeat), drawn)
    return {"atoms": atoms.tolist(), "repeat": repeat}


def _figure(figure: go.Figure) -> Any:
    return json.loads(figure.to_json())


def _encoded(values: np.ndarray) -> str:
    """Little-endian float32, as the script reads it."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def _table(explanation: Explanation, shown: list[int], referenced: bool) -> dict[str, Any]:
    """Head and rows of the atoms that are shown."""
    parts = ["contribution / eV", "reference / eV", "learnt / eV"] if referenced else ["contribution / eV"]
    atom = explanation.atom
    head = ["atom", "element", "tag", *parts, "share", f"distance from {atom} / Å", f"attention of {atom}"]
    rows = list(atom_rows(explanation))
    cells = []
    for i in shown:
        _, element, tag, contribution, reference, learnt, share, distance, weight = rows[i].values()
        energies = (contribution, reference, learnt) if referenced else (contribution,)
        last = (f"{share:.2%}", f"{distance:.3f}", f"{weight:.3g}".replace("-", "−"))
        cells.append([f"{i} ←" if i == atom else str(i), element, tag, *map(energy, energies), *last])
    return {"head": head, "rows": cells}
