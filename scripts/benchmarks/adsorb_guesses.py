"""Guesses of ``molflt adsorb`` judged by structures of the FG set, put on their surfaces anew.

Of each structure the energy is predicted from DFT's own initial geometry, and by the command, of the SMILES that
RDKit reads off that geometry. Both are compared with DFT's energy of the relaxed structure; so are simpler choices
among the same guesses. The column uncertainty_eV is the model's own half-width, to which that of choosing a guess
is to be added (``molflt.adsorption.PLACING``).

    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.adsorb_guesses pretrained:fg
    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.adsorb_guesses pretrained:fg --limit 154 --results few.csv

Structures come in an order, which is always the same, of which the first are a fair sample of all: of each metal
equally many, of each group its share. Each has a row in
docs/results/adsorb_guesses.csv before the next is begun; those that are there are not repeated.
"""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms
from rdkit import Chem
from rdkit.Chem import rdDetermineBonds

from molflt.adsorption import N_GUESSES, adsorb_conformers, molecule
from molflt.adsorption.surfaces import surface
from molflt.data.ase import from_atoms
from molflt.data.dataset import fingerprint
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.prediction.members import member_paths
from molflt.prediction.model import Model, load
from molflt.vocabulary import TAG_ADSORBATE
from scripts import results
from scripts.benchmarks.accuracy_data import shared

KEPT = results.DOCS / "results" / "adsorb_guesses.csv"
PREDICTIONS = {
    "from_initial": "DFT's initial geometry",
    "answer": "**`molflt adsorb`**: 5th percentile inside the domain",
    "inside": "lowest inside the domain",
    "lowest": "lowest of all guesses",
    "first_50": "lowest of the first 50",
    "first_20": "lowest of the first 20",
}
COLUMNS = (
    *("sid", "name", "metal", "molecule", "group", "smiles", "conformers", "y_relaxed"),
    *PREDICTIONS,
    *("uncertainty_eV", "outside", "failure"),
)


def sample(structures: Sequence[Atoms], n: int | None = None) -> list[int]:
    """Places of ``n`` structures, each of a metal and a group that are behind their shares."""
    kinds = [(atoms.info["metal"], atoms.info["group"]) for atoms in structures]
    of_all = [Counter(kind) for kind in zip(*kinds, strict=True)]
    taken: list[Counter[str]] = [Counter() for _ in of_all]
    waiting = np.random.default_rng(0).permutation(len(structures)).tolist()
    order: list[int] = []
    for _ in range(len(structures) if n is None else min(n, len(structures))):

        def share(k: int) -> float:
            each = zip(taken, of_all, kinds[k], strict=True)
            return sum((had[kind] + 1) / whole[kind] for had, whole, kind in each)

        order.append(min(waiting, key=share))
        waiting.remove(order[-1])
        for had, kind in zip(taken, kinds[order[-1]], strict=True):
            had[kind] += 1
    return order


def adsorbate(atoms: Atoms) -> Atoms:
    """The molecule of a structure in one piece, whatever images of its atoms are given."""
    found = atoms[atoms.arrays["tags"] == TAG_ADSORBATE]
    vectors = found.get_all_distances(mic=True, vector=True)
    distances = np.linalg.norm(vectors, axis=-1)
    positions, placed = found.get_positions(), [0]
    while waiting := [k for k in range(len(found)) if k not in placed]:
        near, far = np.unravel_index(distances[np.ix_(placed, waiting)].argmin(), (len(placed), len(waiting)))
        near, far = placed[int(near)], waiting[int(far)]
        positions[far] = positions[near] + vectors[near, far]
        placed.append(far)
    return Atoms(found.numbers, positions)


def perceived(atoms: Atoms) -> str:
    """The SMILES of a neutral molecule from its geometry.

    Raises:
        InputError: RDKit finds no neutral molecule with these distances.
    """
    lines = [
        f"{symbol} {x:.6f} {y:.6f} {z:.6f}" for symbol, (x, y, z) in zip(atoms.symbols, atoms.positions, strict=True)
    ]
    mol = Chem.MolFromXYZBlock("\n".join([str(len(atoms)), "", *lines]))
    try:
        rdDetermineBonds.DetermineBonds(mol, charge=0)
    except ValueError as error:
        raise InputError(f"no bonds found: {error}") from error
    return str(Chem.MolToSmiles(Chem.RemoveHs(mol)))


def judge(atoms: Atoms, model: Model, n_guesses: int) -> dict[str, Any]:
    """The row of one structure; what cannot be guessed is left out, with the reason."""
    one, info = surface(atoms.info["metal"]), atoms.info
    row: dict[str, Any] = {name: info[name] for name in ("sid", "name", "metal", "molecule", "group", "y_relaxed")}
    initial = from_atoms(atoms, info["name"], ReadOptions(tags="oc20"))
    row["from_initial"] = float(model.predict([initial])[0])
    try:
        row["smiles"] = perceived(adsorbate(atoms))
        conformers = molecule(row["smiles"])
        (found,) = adsorb_conformers(conformers, [one], model, info["name"], n_guesses)
    except InputError as error:
        return row | {"failure": str(error)}
    considered = found.energies if found.doubt else found.energies[found.inside]
    return row | {
        "conformers": len(conformers),
        "answer": float(found.energies[found.best]),
        "inside": float(considered.min()),
        "lowest": float(found.energies.min()),
        **{f"first_{n}": float(found.energies[:n].min()) for n in (50, 20)},
        "uncertainty_eV": float(found.uncertainties[found.best]),
        "outside": len(found.warnings) / len(found.guesses),
    }


def table(rows: list[results.Row] | None = None) -> str:
    """Table of the errors of structures that have all predictions; by default the published."""
    rows = results.read(KEPT) if rows is None else rows
    whole = [row for row in rows if all(row[name] for name in PREDICTIONS)]
    lines = []
    for name, what in PREDICTIONS.items():
        errors = np.array([float(row[name]) - float(row["y_relaxed"]) for row in whole])
        size = np.abs(errors)
        spread = f"{np.median(size):.3f}", f"{np.quantile(size, 0.68):.3f}"
        lines.append([what, f"{size.mean():.3f}", *spread, f"{errors.mean():+.3f}"])
    head = [f"{len(whole)} of {len(rows)} structures", "MAE / eV", "median", "68 % below", "mean error / eV"]
    return results.markdown(head, lines) if whole else f"none of {len(rows)} structures could be guessed"


def main() -> None:
    """Every structure that is asked for and has no row yet."""
    parser = results.parser(__doc__, kept=KEPT)
    parser.add_argument("model", help="a model file, run directory or ensemble of y_relaxed, or pretrained:NAME")
    parser.add_argument("--limit", type=int, help="structures in all; by default every one")
    parser.add_argument("--guesses", type=int, default=N_GUESSES, help=f"by default {N_GUESSES}")
    options = parser.parse_args()
    if options.quick:
        options.limit, options.guesses = 1, 5
    torch.set_num_threads(1)
    with results.input_errors(parser):
        data = shared("fg/slice1.extxyz.gz")
        weights = " ".join(fingerprint(path)[:12] for path in member_paths(options.model))
        conditions = {"data": data.name, "guesses": options.guesses, "weights": weights}
        with gzip.open(data, "rb") as stream:
            structures = ase.io.read(io.TextIOWrapper(stream, "utf-8"), index=":", format="extxyz")
        order = sample(structures, options.limit)
        model, by_sid = load(options.model), {structures[k].info["sid"]: structures[k] for k in order}

        def one(sid: Any) -> dict[str, Any]:
            return judge(by_sid[sid], model, options.guesses)

        results.sweep(options.results, [{"sid": sid} for sid in by_sid], one, conditions, digits=6, columns=COLUMNS)
    print(table(results.read(options.results)))


if __name__ == "__main__":
    main()
