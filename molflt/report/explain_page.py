"""Output of an explanation: a page with 3D views, a table of atoms, JSON."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from molflt.files import atomic_file
from molflt.model.file import LoadedModel
from molflt.report.explain import Explanation
from molflt.report.page import Page, energy
from molflt.report.viewer import TAG_NAMES, structure_view
from molflt.vocabulary import TAG_ADSORBATE

_MOST_ROWS = 5000
"""Most atoms in the page's table."""
_MOST_POINTS = 20_000
"""Most points for which vector graphics stay responsive."""


def atom_rows(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Make one row for each atom, in order.

    ``attention`` is the mean over the heads of the last layer. Tags that are all 0, as in molecules, are left empty.
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


def adsorbate_first(explanation: Explanation, n: int) -> list[int]:
    """Select atoms for a table: the adsorbate, the surface, the rest, each in order.

    If there are more than ``n``: the whole adsorbate, the attending atom and the largest learnt parts, largest first.
    """
    tags = explanation.structure.tags.numpy()
    if len(tags) <= n:
        return [int(i) for i in np.argsort(-tags, kind="stable")]
    first = [int(i) for i in np.flatnonzero(tags == TAG_ADSORBATE)]
    first += [] if explanation.atom in first else [explanation.atom]
    others = [int(i) for i in np.argsort(-np.abs(explanation.learnt), kind="stable") if i not in first]
    return first + others[: max(0, n - len(first))]


def write_csv(path: Path, explanation: Explanation) -> None:
    """Write the table of all atoms, atomically; numbers at full precision."""
    rows = list(atom_rows(explanation))
    with atomic_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Convert everything to types that ``json.dumps`` accepts."""
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


def write_page(path: Path, explanation: Explanation, loaded: LoadedModel, doubt: str) -> None:
    """Write the page, atomically.

    Args:
        path: the HTML file.
        explanation: the content.
        loaded: the model that was explained.
        doubt: reasons why it may mean little, one to a line below the first; empty without any.
    """
    signed = bool((explanation.attention < 0).any())
    n_layers, n_heads, n_atoms = explanation.attention.shape
    referenced = bool(explanation.reference.any())
    constant = explanation.mean + float(explanation.reference.sum())
    shown = adsorbate_first(explanation, _MOST_ROWS)
    page = Page("explain.html")
    page.hold("explanation", json.dumps(_content(explanation)))
    common: dict[str, Any] = {"page": page, "data": explanation.structure, "highlight": explanation.atom}
    views = {
        "structure": structure_view(**common, height=420),
        "energies": structure_view(
            **common, height=400, values=explanation.learnt, value_name="learnt part / eV", key="energy-view"
        ),
        "weights": structure_view(
            **common,
            height=400,
            values=explanation.attention[-1].mean(axis=0),
            value_name="weight",
            scale="signed" if signed else "weight",
            key="attention-view",
        ),
    }
    page.need("explain.js")
    page.write(
        path,
        title=explanation.name,
        subtitle=f"explained by {loaded.name}",
        explanation=explanation,
        symbol=chemical_symbols[int(explanation.structure.atomic_numbers[explanation.atom])],
        constant=constant if referenced else explanation.mean,
        referenced=referenced,
        learnt=float(explanation.learnt.sum()),
        doubt=doubt,
        signed=signed,
        n_layers=n_layers,
        n_heads=n_heads,
        n_atoms=n_atoms,
        n_rows=len(shown),
        adsorbate=bool((explanation.structure.tags == TAG_ADSORBATE).any()),
        **views,
        table=_table(explanation, shown, referenced),
    )


def _content(explanation: Explanation) -> dict[str, Any]:
    """Data for the script. Its only texts are symbols of elements."""
    _, n_heads, n_atoms = explanation.attention.shape
    return {
        "symbols": [chemical_symbols[z] for z in explanation.structure.atomic_numbers.tolist()],
        "atom": explanation.atom,
        "n_heads": n_heads,
        "attention": _encoded(explanation.attention),
        "distance": _encoded(explanation.distance),
        "all_heads": n_heads * n_atoms <= _MOST_POINTS,
    }


def _encoded(values: np.ndarray) -> str:
    """Encode as little-endian float32, as the script reads it."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def _table(explanation: Explanation, shown: list[int], referenced: bool) -> dict[str, Any]:
    """Head and rows of the shown atoms."""
    parts = ["contribution / eV", "reference / eV", "learnt / eV"] if referenced else ["contribution / eV"]
    atom, tagged = explanation.atom, bool(explanation.structure.tags.any())
    tag_head = ["tag"] if tagged else []
    head = ["atom", *tag_head, *parts, "share", f"distance from {atom} / Å", f"attention of {atom}"]
    rows = list(atom_rows(explanation))
    cells = []
    for i in shown:
        _, element, tag, contribution, reference, learnt, share, distance, weight = rows[i].values()
        energies = (contribution, reference, learnt) if referenced else (contribution,)
        last = (f"{share:.2%}", f"{distance:.3f}", f"{weight:.3g}".replace("-", "−"))
        name = f"{element} {i} ←" if i == atom else f"{element} {i}"
        cells.append([name, *([tag] if tagged else []), *map(energy, energies), *last])
    return {"head": head, "rows": cells}
