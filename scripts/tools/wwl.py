"""Make ``pretrained:wwl``: small adsorbates on metals and alloys, as ``molflt adsorb`` would place them.

    python -m scripts.tools.wwl make FOLDER
    molflt train small data.train=FOLDER/train.lmdb data.val=FOLDER/val.lmdb trainer.max_epochs=12 seed=0 \
        --out FOLDER/run-0
    python -m scripts.tools.wwl ship FOLDER FOLDER/run-0/last.safetensors FOLDER/run-1/last.safetensors
    python -m scripts.tools.tables

The first reads $MOLFLT_DATA/wwl, relaxed H, C, CH, CH2, CH3, O, OH and CO (Xu et al., Nat. Comput. Sci. 2022, 2, 443;
MIT), which has no initial geometries. So each adsorbate is put back over the place where it was bound, several times,
in orientations and at heights of :mod:`molflt.adsorption.placing`; the relaxed positions and the energy stay what is
to be learnt. Held out, for `val`, are all sites of an adsorbate on a facet of a metal, one in seven at random, with
one start each. The last measures errors and intervals on these, and compares ``molflt adsorb`` on planes cut from
crystals with the lowest energy of DFT. Both go to docs/results.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from ase import Atoms
from torch_geometric.data import Data

from molflt.adsorption import Adsorption, adsorb
from molflt.adsorption.placing import guesses
from molflt.adsorption.surfaces import Surface
from molflt.data.oc20.writer import write_lmdb
from molflt.data.record import make_data, to_record
from molflt.errors import InputError
from molflt.model.config import LEVELS, ONE_SIGMA
from molflt.prediction.evaluate import measured
from molflt.prediction.members import calibrated, load_members
from molflt.prediction.metrics import cross_fitted
from molflt.prediction.model import Model
from molflt.vocabulary import TAG_ADSORBATE, TAG_SUBSURFACE
from scripts import results
from scripts.tools.fg.ship import saved
from scripts.tools.organic.geometries import records

FIELDS = ("atomic_numbers", "positions", "cell", "pbc", "tags", "fixed")
STARTS, EVERY, ASIDE = 3, 7, 0.15
"""Starts of a structure, one in how many groups is held out, and Å, the spread of starts along the surface."""
MODEL, NUMBERS, PLACED = Path("molflt/pretrained/wwl.safetensors"), "wwl", "wwl_adsorb"
SMILES = {"H": "[H]", "C": "[C]", "CH": "[CH]", "CH2": "[CH2]", "CH3": "[CH3]"} | {
    "O": "[O]",
    "OH": "[OH]",
    "CO": "[C-]#[O+]",
}
FCC, FACETS, N_GUESSES = ("Ag", "Au", "Cu", "Ir", "Ni", "Pd", "Pt", "Rh"), ("100", "110", "111", "211"), 60

app = typer.Typer(add_completion=False)


def everything() -> list[Atoms]:
    """Read the set."""
    return records(Path(os.environ["MOLFLT_DATA"]) / "wwl" / "wwl.extxyz.gz")


def group(atoms: Atoms) -> tuple[str, str, str]:
    """Return what is held out together: adsorbate, metal and facet."""
    return atoms.info["molecule"], atoms.info["metal"], str(atoms.info["facet"])


def held_out(structures: Iterable[Atoms], random: np.random.Generator) -> set[tuple[str, str, str]]:
    """Choose the groups to validate on."""
    groups = sorted({group(atoms) for atoms in structures})
    return {groups[k] for k in random.permutation(len(groups))[::EVERY]}


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
        fields = {name: guess.structure[name].numpy() for name in FIELDS}
        labels = {"positions_relaxed": relaxed, "y_relaxed": np.array([atoms.info["y_relaxed"]])}
        texts = {"molecule": atoms.info["molecule"], "metal": atoms.info["metal"]}
        found.append(make_data(fields | labels, atoms.info["name"], atoms.info["name"], texts))
    return found


def divided() -> dict[str, list[Data]]:
    """Starts to train and to validate on."""
    structures, random = everything(), np.random.default_rng(0)
    aside, found = held_out(structures, random), {}
    for name, n in (("train", STARTS), ("val", 1)):
        mine = [atoms for atoms in structures if (group(atoms) in aside) == (name == "val")]
        found[name] = [data for atoms in mine for data in starts(atoms, n, random)]
    return found


@app.command()
def make(folder: Annotated[Path, typer.Argument(help="Where to write train.lmdb and val.lmdb.")]) -> None:
    """Make the training data."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in divided().items():
        write_lmdb(folder / f"{name}.lmdb", [to_record(data) for data in made], progress=False)
        print(f"{name}: {len(made)} starts")


def placed(model: Model, structures: Iterable[Atoms]) -> list[tuple[str, float, Adsorption]]:
    """Adsorbate, lowest energy by DFT and ``molflt adsorb`` of groups held out on planes of pure metals."""
    lowest: dict[tuple[str, str, str], float] = defaultdict(lambda: np.inf)
    for atoms in structures:
        lowest[group(atoms)] = min(lowest[group(atoms)], float(atoms.info["y_relaxed"]))
    found = []
    for adsorbate, metal, facet in sorted(held_out(structures, np.random.default_rng(0))):
        on = f"{metal}:0001" if (metal, facet) == ("Co", "1") else f"{metal}:{facet}"
        if (metal in FCC and facet in FACETS) or on == "Co:0001":
            (one,) = adsorb(SMILES[adsorbate], on, model, n_guesses=N_GUESSES)
            found.append((adsorbate, lowest[adsorbate, metal, facet], one))
    return found


def by_adsorbate(names: np.ndarray, error: np.ndarray, columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Rows of each adsorbate, and of all."""
    found = []
    for name in (*SMILES, "all"):
        mine = np.ones(len(names), dtype=bool) if name == "all" else names == name
        if mine.any():
            values = {"MAE / eV": np.abs(error[mine]).mean(), "mean error / eV": error[mine].mean()}
            values |= {title: column[mine].mean() for title, column in columns.items()}
            found.append(
                {"adsorbate": name, "structures": int(mine.sum()), **{k: f"{v:.3f}" for k, v in values.items()}}
            )
    return found


@app.command()
def ship(
    folder: Annotated[Path, typer.Argument(help="With the data that `make` wrote.")],
    models: Annotated[list[str], typer.Argument(help="Trained models: members of one ensemble.")],
) -> None:
    """Write the model's file and its numbers."""
    members, val = load_members(models), folder / "val.lmdb"
    for member in members:
        data = member.metadata.training_data.model_copy(update={"path": "wwl/train.lmdb"})
        member.metadata = member.metadata.model_copy(update={"training_data": data})
    known, found = measured(members, str(val), name="wwl/val.lmdb")
    known = known.model_copy(update={"data": "wwl/val.lmdb"})
    members = calibrated(members, known)
    saved(results.ROOT / MODEL, members)
    spread = np.zeros(len(found)) if found.uncertainty_eV is None else found.uncertainty_eV
    inside = cross_fitted(np.abs(found.error), spread)[:, LEVELS.index(ONE_SIGMA)]
    names = np.array([found.structures[k].molecule for k in range(len(found))])
    rows = by_adsorbate(names, found.error, {"mean ± / eV": known.half_width(spread), "inside ±": inside})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared = placed(Model(members), everything())
    error = np.array([one.energy - lowest for _, lowest, one in compared])
    widths = np.array([one.uncertainty_eV for _, _, one in compared])
    columns = {"mean ± / eV": widths, "inside ±": np.abs(error) <= widths}
    for file, made in ((NUMBERS, rows), (PLACED, by_adsorbate(np.array([c[0] for c in compared]), error, columns))):
        measured_here = results.provenance({"data": "wwl"})
        path = results.DOCS / "results" / f"{file}.csv"
        results.write(path, [row | measured_here for row in made], (*made[0], *results.PROVENANCE))
        typer.echo(results.markdown(list(made[0]), [list(map(str, row.values())) for row in made]))


if __name__ == "__main__":
    app()
