"""Training data of ``pretrained:wwl``: small adsorbates on metals and alloys, as ``molflt adsorb`` would place them.

    python -m scripts.tools.wwl FOLDER

Reads $MOLFLT_DATA/wwl, relaxed H, C, CH, CH2, CH3, O, OH and CO (Xu et al., Nat. Comput. Sci. 2022, 2, 443; MIT), and
writes FOLDER/train.lmdb and val.lmdb. The set has no initial geometries. So each adsorbate is put back over the place
where it was bound, several times, in orientations and at heights of :mod:`molflt.adsorption.placing`; the relaxed
positions and the energy stay what is to be learnt. Held out, for `val`, are all sites of an adsorbate on a facet of a
metal, one in seven at random, with one start each.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import read
from torch_geometric.data import Data

from molflt.adsorption.placing import guesses
from molflt.adsorption.surfaces import Surface
from molflt.data.oc20.writer import write_lmdb
from molflt.data.record import make_data, to_record
from molflt.errors import InputError
from molflt.vocabulary import TAG_ADSORBATE, TAG_SUBSURFACE

FIELDS = ("atomic_numbers", "positions", "cell", "pbc", "tags", "fixed")
STARTS, EVERY, ASIDE = 3, 7, 0.15
"""Starts of a structure, one in how many groups is held out, and Å, the spread of starts along the surface."""


def starts(atoms: Atoms, n: int, random: np.random.Generator) -> list[Data]:
    """Put an adsorbate back on its surface, at most ``n`` times; none if it fits in no way."""
    atoms, bound = atoms.copy(), atoms.get_tags() == TAG_ADSORBATE
    # Surfaces are level and begin at zero.
    cell, turn = atoms.cell.standard_form()
    atoms.set_cell(cell)
    atoms.positions = atoms.positions @ turn.T
    atoms.positions[:, 2] -= atoms.positions[:, 2].min()
    slab, adsorbate = atoms[~bound], atoms[bound]
    slab.constraints = adsorbate.constraints = []
    slab.pbc = True
    heavy = np.flatnonzero(adsorbate.numbers > 1) if (adsorbate.numbers > 1).any() else np.arange(len(adsorbate))
    lowest = adsorbate.positions[heavy[adsorbate.positions[heavy, 2].argmin()], :2]
    sites = {f"start {k}": lowest + ASIDE * random.normal(size=2) for k in range(n)}
    fixed = slab.get_tags() == TAG_SUBSURFACE
    surface = Surface(atoms.info["metal"], f"({atoms.info['facet']})", slab, fixed, sites, of_set=False)
    try:
        placed = guesses(surface, [adsorbate], n, atoms.info["name"], int(random.integers(2**31)))
    except InputError:
        return []
    relaxed = np.concatenate([slab.positions, adsorbate.positions])
    found = []
    for guess in placed:
        fields = {
            name: guess.structure[name].numpy()
            for name in ("atomic_numbers", "positions", "cell", "pbc", "tags", "fixed")
        }
        labels = {"positions_relaxed": relaxed, "y_relaxed": np.array([atoms.info["y_relaxed"]])}
        found.append(make_data(fields | labels, atoms.info["name"], atoms.info["name"]))
    return found


def group(atoms: Atoms) -> tuple[str, str, str]:
    """Return what is held out together: adsorbate, metal and facet."""
    return atoms.info["molecule"], atoms.info["metal"], str(atoms.info["facet"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    file = Path(os.environ["MOLFLT_DATA"]) / "wwl" / "wwl.extxyz.gz"
    everything = read(io.StringIO(gzip.decompress(file.read_bytes()).decode()), ":", format="extxyz")
    random = np.random.default_rng(0)
    groups = sorted({group(atoms) for atoms in everything})
    held_out = {groups[k] for k in random.permutation(len(groups))[::EVERY]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in (("train", STARTS), ("val", 1)):
        mine = [atoms for atoms in everything if (group(atoms) in held_out) == (name == "val")]
        made = [data for atoms in mine for data in starts(atoms, n, random)]
        write_lmdb(folder / f"{name}.lmdb", [to_record(data) for data in made], progress=False)
        print(f"{name}: {len(mine)} structures, {len(made)} starts")


if __name__ == "__main__":
    main()
