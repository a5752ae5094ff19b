"""Guesses of ``molflt adsorb`` judged by structures of the FG set, put on their surfaces anew.

Of each structure the energy is predicted from DFT's own initial geometry, and by the command, of the SMILES that
RDKit reads off that geometry. Both are compared with DFT's energy of the relaxed structure; so are simpler choices
among the same guesses. The column uncertainty_eV is the model's own half-width; that of the command, with the choice
of a guess, is in width.

    python -m scripts.benchmarks.adsorb_guesses pretrained:fg
    python -m scripts.benchmarks.adsorb_guesses pretrained:fg --limit 154 --results few.csv
    python -m scripts.benchmarks.adsorb_guesses RUN/last.safetensors RUN/last.safetensors \
        --held-out molecules --limit 112                      # of models that were trained without them

Several models are one ensemble. Models that were trained without what a rule of scripts.benchmarks.fg_splits holds
out get the intervals of ``pretrained:fg``; slice 1 is what that model itself was trained without.

Structures come in an order, which is always the same, of which the first are a fair sample of all: of each metal
equally many, of each group its share. Each has a row in
docs/results/adsorb_guesses.csv before the next is begun; those that are there are not repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms
from rdkit import Chem
from rdkit.Chem import rdDetermineBonds
from torch_geometric.data import Data

from molflt.adsorption import N_GUESSES, adsorb_conformers, molecule
from molflt.adsorption.surfaces import surface
from molflt.data.ase import to_atoms
from molflt.data.dataset import fingerprint
from molflt.errors import InputError
from molflt.prediction.members import calibrated, load_members, member_paths
from molflt.prediction.model import Model
from molflt.vocabulary import TAG_ADSORBATE
from scripts import results
from scripts.benchmarks import fg_splits

KEPT = results.DOCS / "results" / "adsorb_guesses.csv"
PREDICTIONS = {
    "from_initial": "DFT's initial geometry",
    "answer": "**`molflt adsorb`**: 5th percentile inside the domain",
    "inside": "lowest inside the domain",
    "lowest": "lowest of all guesses",
    "first_50": "lowest of the first 50",
    "first_20": "lowest of the first 20",
}
SHIPPED, KEPT_APART = "pretrained:fg", "slice1"
"""A model, and what it was trained without."""
COLUMNS = (
    *("held_out", "weights", "sid", "name", "metal", "molecule", "group", "smiles", "conformers", "y_relaxed"),
    *PREDICTIONS,
    *("uncertainty_eV", "width", "outside", "failure"),
)


def sample(structures: Sequence[Data], n: int | None = None) -> list[int]:
    """Places of ``n`` structures, each of a metal and a group that are behind their shares."""
    kinds = [(data.metal, data.group) for data in structures]
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


def judge(data: Data, model: Model, n_guesses: int) -> dict[str, Any]:
    """The row of one structure; what cannot be guessed is left out, with the reason."""
    row: dict[str, Any] = {name: data[name] for name in ("name", "metal", "molecule", "group")}
    row |= {"y_relaxed": float(data.y_relaxed), "from_initial": float(model.predict([data])[0])}
    one = surface(data.metal)
    try:
        row["smiles"] = perceived(adsorbate(to_atoms(data)))
        conformers = molecule(row["smiles"])
        (found,) = adsorb_conformers(conformers, [one], model, data.name, n_guesses)
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
        "width": found.uncertainty_eV if found.is_inside else None,
        "outside": len(found.warnings) / len(found.guesses),
    }


def ensemble(models: Sequence[str]) -> Model:
    """The mean of some models, with the intervals of ``pretrained:fg``."""
    members, known = load_members(models), load_members(SHIPPED)[0].metadata.uncertainty
    assert known is not None
    return Model(calibrated(members, known.model_copy(update={"n_members": len(members)})))


def intervals(rows: list[results.Row] | None = None) -> str:
    """Table of the shares of errors within the ± of the command, by what was held out; by default the published."""
    rows = [row for row in (results.read(KEPT) if rows is None else rows) if row["answer"]]
    lines = []
    for rule, weights in dict.fromkeys((row["held_out"], row["weights"]) for row in rows):
        mine = [row for row in rows if (row["held_out"], row["weights"]) == (rule, weights)]
        given = [row for row in mine if row["width"]]
        cells = [f"`{rule}`", str(len(mine)), str(len(mine) - len(given)), *4 * [""]]
        if given:
            errors = np.array([abs(float(row["answer"]) - float(row["y_relaxed"])) for row in given])
            widths = np.array([float(row["width"]) for row in given])
            shares = [f"{np.mean(errors <= k * widths):.0%}" for k in (1, 3)]
            cells[3:] = [f"{errors.mean():.3f}", f"{widths.mean():.3f}", *shares]
        lines.append(cells)
    head = ["held out", "structures", "outside", "MAE of the others / eV", "mean ± / eV", "inside ±", "inside 3 ±"]
    return results.markdown(head, lines)


def table(rows: list[results.Row] | None = None) -> str:
    """Table of the errors of structures that have all predictions; by default the published of ``pretrained:fg``."""
    rows = [row for row in results.read(KEPT) if row["held_out"] == KEPT_APART] if rows is None else rows
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
    parser.add_argument("models", nargs="+", help="model files of y_relaxed, one ensemble, or pretrained:NAME")
    parser.add_argument(
        "--held-out",
        choices=list(fg_splits.RULES),
        default=KEPT_APART,
        help=f"what the models were trained without; by default {KEPT_APART}, as pretrained:fg",
    )
    parser.add_argument("--limit", type=int, help="structures in all; by default every one")
    parser.add_argument("--guesses", type=int, default=N_GUESSES, help=f"by default {N_GUESSES}")
    options = parser.parse_args()
    if options.quick:
        options.limit, options.guesses = 1, 5
    torch.set_num_threads(1)
    with results.input_errors(parser):
        files = [path for model in options.models for path in member_paths(model)]
        same = {"held_out": options.held_out, "weights": " ".join(fingerprint(path)[:12] for path in files)}
        _, structures = fg_splits.divide(options.held_out)
        order = sample(structures, options.limit)
        model, by_sid = ensemble(options.models), {int(structures[k].sid): structures[k] for k in order}

        def one(sid: Any, **_: str) -> dict[str, Any]:
            return judge(by_sid[sid], model, options.guesses)

        points, conditions = [{**same, "sid": sid} for sid in by_sid], {"guesses": options.guesses}
        results.sweep(options.results, points, one, conditions, digits=6, columns=COLUMNS)
    rows = results.read(options.results)
    print(intervals(rows))
    print(table([row for row in rows if same.items() <= row.items()]))


if __name__ == "__main__":
    main()
