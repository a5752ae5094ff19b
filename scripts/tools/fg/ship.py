"""Make ``pretrained:fg`` of finished runs: file, uncertainty, and every number of it.

Several runs become one ensemble in one file. Its uncertainty is measured on the validation data, and so are its
errors by metal, group and size, which go to docs/results/fg.csv with those of simple baselines and published models.
The tables of the card, of the data card and of the README are made from there.

    python -m scripts.tools.fg.ship RUN [RUN ...] --recipe "small, 60 epochs, loss.noisy_nodes=true"
    python -m scripts.tools.tables               # the tables
    python -m scripts.tools.fg.pictures          # the README's pictures

With ``--root FOLDER`` all of it goes there, for a trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from molflt.data.dataset import fingerprint
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.model.config import LEVELS, ONE_SIGMA, WIDE, Uncertainty
from molflt.model.file import LoadedModel, save_models
from molflt.prediction.evaluate import Evaluation, evaluate, measured
from molflt.prediction.members import calibrated, load_members
from molflt.prediction.metrics import cross_fitted
from molflt.vocabulary import TAG_ADSORBATE
from scripts import results
from scripts.tools.fg import describe

MODEL, NUMBERS = Path("molflt/pretrained/fg.safetensors"), Path("docs/results/fg.csv")
TRAIN, VAL = "data/fg/train.lmdb", "data/fg/val.lmdb"
LARGEST = 10e6
"""Bytes of a file that comes with the package."""
PUBLISHED = {"DimeNet++, total energies": 0.514, "PaiNN, total energies": 0.190, "GemNet-dT": 0.126}
"""eV, of the authors of the set; their sources are in data/fg/README.md."""
SIZES = {"up to 6": 6, "7 to 9": 9, "10 to 12": 12, "13 to 18": 18}
COLUMNS = ("by", "of", "n", "mae", "median", "rmse", "uncertainty", "inside_68", "inside_95")
"""``n`` is a number of structures, or what is said in words."""


def numbers(found: Evaluation, known: Uncertainty, spread: np.ndarray) -> list[dict[str, Any]]:
    """Errors and coverage of all structures, and by metal, group and size of the adsorbate.

    ``spread``, (n,) in eV, has the standard deviations over the members.
    """
    error, width = np.abs(found.error), known.half_width(spread)
    inside = cross_fitted(error, spread)[:, [LEVELS.index(ONE_SIGMA), LEVELS.index(WIDE)]]
    data = [found.structures[k] for k in range(len(found))]
    atoms = np.array([int((one.tags == TAG_ADSORBATE).sum()) for one in data])
    sizes = np.array(list(SIZES))[np.searchsorted(list(SIZES.values()), atoms)]
    kinds = {"metal": np.array([one.metal for one in data]), "group": np.array([one.group for one in data])}

    def row(by: str, of: str, chosen: np.ndarray) -> dict[str, Any]:
        mine = error[chosen]
        return {
            "by": by,
            "of": of,
            "n": len(mine),
            "mae": float(mine.mean()),
            "median": float(np.median(mine)),
            "rmse": float(np.sqrt((mine**2).mean())),
            "uncertainty": float(width[chosen].mean()),
            **dict(zip(COLUMNS[-2:], inside[chosen].mean(axis=0).tolist(), strict=True)),
        }

    rows = [row("all", "val", np.ones(len(error), dtype=bool))]
    for level, multiple, share in zip(LEVELS, known.multiples, known.coverage, strict=True):
        formula = f"{multiple:.3f} eV" if not spread.any() else f"{multiple:.2f} × (s + {known.floor:.3f} eV)"
        rows.append({"by": "uncertainty", "of": f"{level:.1%}", "n": formula, "inside_68": share})
    for by, values in kinds.items():
        rows += sorted((row(by, of, values == of) for of in np.unique(values)), key=lambda r: r["mae"])
    return rows + [row("size", of, sizes == of) for of in SIZES if of in sizes]


def others(train: Path, val: Path) -> list[dict[str, Any]]:
    """Mean absolute errors of simple baselines and of published models."""
    rows = describe.errors(list(LmdbDataset(train)), list(LmdbDataset(val))) | PUBLISHED
    return [{"by": "others", "of": name, "mae": mae} for name, mae in rows.items()]


def about(members: Sequence[LoadedModel], recipe: str, size: int) -> list[dict[str, Any]]:
    """Contents of the file."""
    facts = {
        "members": f"{len(members)}" + (", whose mean is the prediction" if len(members) > 1 else ""),
        "parameters": f"{members[0].model.n_parameters():,}" + (" each" if len(members) > 1 else ""),
        "recipe": recipe,
        "seeds": ", ".join(str(member.metadata.seed) for member in members),
        "best epochs": ", ".join(str(member.metadata.epoch + 1) for member in members),
        "size": f"{size / 1e6:.1f} MB",
    }
    return [{"by": "file", "of": name, "n": value} for name, value in facts.items()]


def saved(path: Path, members: Sequence[LoadedModel]) -> int:
    """Write the model file, and return its bytes.

    Raises:
        SystemExit: it is too large, and not kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    trial = path.with_suffix(".trial")
    save_models(trial, members)
    if (size := trial.stat().st_size) > LARGEST:
        trial.unlink()
        raise SystemExit(f"error: {len(members)} members take {size / 1e6:.1f} MB, more than {LARGEST / 1e6:g}")
    trial.rename(path)
    return size


def ship(
    runs: Sequence[str], recipe: str, root: Path = results.ROOT, train: str = TRAIN, val: str = VAL
) -> tuple[Uncertainty, Evaluation]:
    """Write the model file and the numbers under a root.

    Raises:
        SystemExit: a run on other data, or of other code, by which it had another error; or a file that is too large.
            Nothing is written.
    """
    members = load_members(list(runs))
    at = results.ROOT
    for member in members:
        if member.metadata.training_data.fingerprint != fingerprint(at / train):
            raise SystemExit(f"error: {member.path}: was not trained on {train}")
        # The name that a reader has it under, not that of the machine that trained.
        data = member.metadata.training_data.model_copy(update={"path": train})
        member.metadata = member.metadata.model_copy(update={"training_data": data})
    for member in members if len(members) > 1 else ():
        said = member.metadata.validation.get("val/energy_mae")
        mae = evaluate(member, str(at / val), forces=False).mae
        if said is not None and abs(mae - said) > 0.01 * said:
            raise SystemExit(f"error: {member.path}: its error on {val} was {said:.4f} eV, and is {mae:.4f} eV here")
    known, found = measured(members, str(at / val), name=val)
    known = known.model_copy(update={"data": val})
    size = saved(root / MODEL, calibrated(members, known))
    spread = np.zeros(len(found)) if found.uncertainty_eV is None else found.uncertainty_eV
    rows = [*about(members, recipe, size), *numbers(found, known, spread), *others(at / train, at / val)]
    measured_here = results.provenance({"data": val})
    results.write(root / NUMBERS, [row | measured_here for row in rows], (*COLUMNS, *results.PROVENANCE), digits=6)
    return known, found


def table(view: str, rows: Iterable[results.Row] | None = None) -> str:
    """Markdown of a view: a value of the column ``by``, ``error``, or ``contest``."""
    found = results.read(results.ROOT / NUMBERS) if rows is None else list(rows)
    of = {(row["by"], row["of"]): row for row in found}
    mine = [row for row in found if row["by"] == view]
    if view == "file":
        return results.markdown(["file", ""], [[row["of"], row["n"]] for row in mine])
    if view == "uncertainty":
        cells = [[row["of"], row["n"], f"{float(row['inside_68']):.1%}" if row["inside_68"] else "–"] for row in mine]
        return results.markdown(["interval of", "half-width", "found"], cells)
    if view in ("others", "contest"):
        ours = [["**`pretrained:fg`**", f"**{float(of['all', 'val']['mae']):.3f}**"]] if view == "contest" else []
        cells = [[row["of"], f"{float(row['mae']):.3f}"] for row in found if row["by"] == "others"]
        return results.markdown(["MAE, eV", "`val`"], cells + ours)
    if view == "error":
        row = of["all", "val"]
        names = {"n": "structures", "mae": "MAE / eV", "median": "median / eV", "rmse": "root mean square / eV"}
        return results.markdown(
            list(names.values()), [[row["n"], *(f"{float(row[k]):.3f}" for k in list(names)[1:])]]
        )
    heads = {"metal": "metal", "group": "group", "size": "atoms of the adsorbate", "outside": "held out"}
    if view not in heads:
        raise ValueError(view)
    lines = [
        [
            row["of"],
            row["n"],
            f"{float(row['mae']):.3f}",
            f"{float(row['uncertainty']):.3f}",
            f"{float(row['inside_68']):.0%}",
            f"{float(row['inside_95']):.0%}",
        ]
        for row in [*mine, *([] if view == "outside" else [of["all", "val"] | {"of": "all"}])]
    ]
    head = [heads[view], "structures", "MAE / eV", "mean ± / eV", "inside ±", "inside the 95 % interval"]
    return results.markdown(head, lines)


def main(
    runs: Annotated[
        list[str], typer.Argument(help="Finished runs, ensembles or model files: members of one ensemble.")
    ],
    recipe: Annotated[str, typer.Option(help="How they were trained, for the card.")],
    root: Annotated[Path, typer.Option(help="Where to write.")] = results.ROOT,
) -> None:
    """Write the model file, its numbers, and what it predicts for ever."""
    known, found = ship(runs, recipe, root)
    typer.echo(f"{root / MODEL}: MAE {found.mae:.4f} eV on {VAL}; ±: {known}; found {known.coverage}")
    if root == results.ROOT:
        from tests.golden import values

        values.write_shipped("fg")


if __name__ == "__main__":
    typer.run(main)
