"""An explanation as rows of a table, as CSV and as JSON."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from molflt.explain.explanation import Explanation
from molflt.files import atomic_file
from molflt.vocabulary import TAG_ADSORBATE, TAG_SUBSURFACE, TAG_SURFACE

TAG_NAMES = {TAG_SUBSURFACE: "sub-surface", TAG_SURFACE: "surface", TAG_ADSORBATE: "adsorbate"}


def atom_rows(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """One row per atom, in order; ``attention`` is the mean over the heads of the last layer.

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
    """All atoms in order, or the ``n`` of the largest learnt parts, largest first, and the one that attends."""
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
    rows = list(atom_rows(explanation))
    names = {"index", "element", "tag", "contribution_eV", "reference_eV", "learnt_eV", "share"}
    return {
        "structure": explanation.name,
        "target": explanation.target,
        "energy_eV": explanation.energy,
        "mean_eV": explanation.mean,
        "atoms": [{key: value for key, value in row.items() if key in names} for row in rows],
        "atom": explanation.atom,
        "distance_A": explanation.distance.tolist(),
        "attention": explanation.attention.tolist(),
    }
