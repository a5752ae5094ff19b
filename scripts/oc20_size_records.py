"""Records of the size of OC20's, made quickly and in any number: fcc slabs with an adsorbate, periodic.

20 to 224 atoms, about 75 on average (OC20: 20 to 250, 78).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ase.build import add_adsorbate, fcc111, molecule

from molflt.data.neighbours import attach_neighbours
from molflt.data.records import to_data, to_record

METALS = {"Al": 4.05, "Cu": 3.61, "Pd": 3.89, "Ag": 4.09, "Pt": 3.92, "Au": 4.08}
ADSORBATES = ("CO", "H2O", "CH3OH", "C2H6", "CH3CHO", "NH3")
SHAPES = ((3, 2, 3), (3, 3, 3), (4, 3, 4), (4, 4, 4), (5, 4, 4), (5, 5, 4), (6, 4, 5), (6, 6, 6))
WEIGHTS = (0.12, 0.13, 0.16, 0.17, 0.16, 0.13, 0.09, 0.04)
N_TEMPLATES = 300
CUTOFF = 6.0
"""Å, of the graph that OC20 stores."""


def make_templates(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Records of slabs with an adsorbate, in molflt's compact layout; lengths in Å, energies in eV."""
    random = np.random.default_rng(seed)
    made = []
    for k in range(n):
        metal = random.choice(list(METALS))
        slab = fcc111(metal, random.choice(SHAPES, p=WEIGHTS), a=METALS[metal], vacuum=10.0)
        n_metal = len(slab)
        add_adsorbate(slab, molecule(random.choice(ADSORBATES)), 2.0, position=(1.0, 1.0))
        slab.pbc = True
        on_top = np.arange(len(slab)) >= n_metal
        record = {
            "pos": slab.positions,
            "pos_relaxed": slab.positions,
            "cell": slab.cell.array[None],
            "atomic_numbers": slab.numbers,
            "tags": np.where(on_top, 2, slab.get_tags() == 1),
            "fixed": ~on_top & (slab.get_tags() > 2),
            "natoms": len(slab),
            "y_init": 0.0,
            "y_relaxed": 0.0,
            "sid": k,
        }
        made.append(to_record(to_data(record, f"template {k}"), compact=True))
    return made


def records(n: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """``n`` records: the templates in turn, every time with other positions and energies."""
    templates = make_templates(min(n, N_TEMPLATES), seed)
    random = np.random.default_rng(seed + 1)
    for k in range(n):
        record = dict(templates[k % len(templates)])
        moved = random.normal(scale=0.05, size=(2, *record["pos"].shape)).astype(np.float32)
        record["pos"], record["pos_relaxed"] = record["pos"] + moved[0], record["pos"] + moved.sum(axis=0)
        record |= {"sid": k, "y_init": float(random.normal()), "y_relaxed": float(random.normal())}
        yield record


def official_pickle(record: dict[str, Any]) -> bytes:
    """A record as the files of OC20 have it: tensors, each with its own storage, and a stored 6 Å graph."""
    data = attach_neighbours(to_data(record, "record"), CUTOFF)
    arrays = {
        "pos": data.positions.float(),
        "pos_relaxed": data.positions_relaxed.float(),
        "cell": data.cell.float(),
        "atomic_numbers": data.atomic_numbers.float(),
        "tags": data.tags,
        "fixed": data.fixed.float(),
        "edge_index": data.edge_index,
        "cell_offsets": data.cell_offsets,
        "distances": torch.zeros(data.edge_index.shape[1]),
    }
    plain = {key: record[key] for key in ("natoms", "sid", "y_init", "y_relaxed")}
    return pickle.dumps({**arrays, **plain}, protocol=2)
