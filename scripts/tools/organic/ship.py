"""Make ``pretrained:organic`` of trained models: file, uncertainty, and every number of it.

Several models become one ensemble in one file, whose energies count from free atoms. Its errors on the sets of
``sets`` go to docs/results/organic.csv beside those of other calculators, and the tables of its card are made from
there.

    python -m scripts.tools.organic.score labels SETS > labels.json
    python -m scripts.tools.organic.score gfn2 SETS > gfn2.json        # in the environment of ``label``
    python -m scripts.tools.organic.ship MODEL --sets SETS --recipe "organic, 40 epochs" \
        --benchmark --scores labels.json --scores gfn2.json

SETS has the train.extxyz of the last training as well. A line of a file of scores is one JSON object: the name of a
calculator, ``labels`` (SO3LR), ``gfn2`` or ``organic``, and values of :data:`MEASURES`. Those of ``organic`` are what
is not measured here, such as a drift in dynamics, or replace what is. With ``--root FOLDER`` file and numbers go
there, for a trial; otherwise the tables and the numbers of tests/golden are written as well.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from ase import Atoms, units
from ase.build import molecule
from ase.data import chemical_symbols, g2
from ase.io import read

from molflt import MolFLTCalculator
from molflt.data.dataset import fingerprint
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.model.file import LoadedModel
from molflt.prediction.evaluate import measured
from molflt.prediction.members import calibrated, load_members
from molflt.prediction.model import Model
from molflt.prediction.predict import predict
from scripts import results
from scripts.tools.fg.outside import Errors, extended
from scripts.tools.fg.outside import rows as shares
from scripts.tools.fg.ship import about, saved
from scripts.tools.organic import score

MODEL, NUMBERS = Path("molflt/pretrained/organic.safetensors"), Path("docs/results/organic.csv")
TRAIN, TEST = "organic/train.extxyz", "organic/test.extxyz"
"""The names of the sets on the card, whatever folder they are in."""
COLUMNS = ("by", "of", "calculator", "value", "n")
BENCHMARK = {True: "of SAPT10k the benchmark's, of others SO3LR's", False: "SO3LR's"}
CALCULATORS = {"labels": "SO3LR", "gfn2": "GFN2-xTB", "organic": "`pretrained:organic`"}


FEWEST = 30
"""Structures of a kind that count outside the domain."""


class Measure(NamedTuple):
    """A row of the table: in words, with its unit, its target, and whether the teacher is the reference."""

    words: str
    target: float | None = None
    taught: bool = False


MEASURES = {
    "forces": Measure("forces of {test} molecules held out, 300 K, against SO3LR, meV/Å", 60, True),
    "dipole": Measure("dipoles of these, against SO3LR, D", 0.15, True),
    "conformers": Measure("relative energies of {conformers} conformers, against SO3LR, meV", 25, True),
    "dipeptides": Measure("forces of {dipeptides} geometries of dipeptides, 300 K, against SO3LR, meV/Å", None, True),
    "dipeptides_relative": Measure("relative energies of these, against SO3LR, meV", None, True),
    "interaction": Measure("interaction energies of {benchmark} dimers, against the benchmark, meV", 30),
    "far": Measure("the same of {far} dimers 8 to 14 Å apart, against point charges: median, meV", 2),
    "far_max": Measure("largest of these, meV"),
    "dipeptide_forces": Measure("forces of dipeptides, against ωB97M-D3BJ, meV/Å", 120),
    "dipeptide_energies": Measure("relative energies of dipeptides, against ωB97M-D3BJ, meV", 90),
    "acac_forces": Measure("acetylacetone, fine-tuned on 30 geometries, against PBE-D3, meV/Å", 25),
    "drift": Measure("drift of 100 molecules of water in a cell, meV an atom in 20 ps, extrapolated from 2 ps", 1),
    "density": Measure("density of water at 300 K and 1 bar, g/cm³"),
    "51": Measure("time of 51 atoms, energy and forces on one core, ms", 20),
    "999": Measure("time of 999 atoms of water in a cell, ms", 600),
}
KINDS = {
    "spice": "conformations of SPICE's monomers",
    "benchmark": "dimers of SAPT10k, and their molecules",
    "thermal": "molecules, from dynamics at 300 to 1,000 K",
    "conformer": "relaxed conformers",
    "stretched": "molecules with a bond pressed or stretched",
    "torsion": "molecules with a bond turned",
    "dimer": "two molecules side by side",
    "ion": "ions: an acid without its proton, an amine with one more",
    "broken": "a single bond 2 to 3 times as long",
    "squeezed": "all positions times 0.8 to 0.9",
    "cluster": "clusters of water, or of water around a molecule",
}


def contents(file: Path) -> list[dict[str, Any]]:
    """Structures and atoms of a training set, by their kind."""
    structures, atoms, n = Counter[str](), Counter[str](), 0
    for line in file.open(encoding="utf-8"):
        if found := re.search(r"\bkind=(\S+)", line):
            structures[found[1]] += 1
            atoms[found[1]] += n
        n = int(line) if line.strip().isdigit() else 0
    return [{"by": "data", "of": kind, "n": k, "value": atoms[kind]} for kind, k in structures.most_common()]


def sizes(sets: Path) -> list[dict[str, Any]]:
    """Structures of the sets to judge on, as the table counts them."""
    every = {"test": 1, "conformers": 1, "dipeptides": 1, "benchmark": 3, "far": 3}
    found = {name: len(read(file, ":")) for name in every if (file := sets / f"{name}.extxyz").exists()}
    return [{"by": "set", "of": name, "n": n // every[name]} for name, n in found.items()]


def errors_outside(members: list[LoadedModel], file: Path) -> Errors:
    """Errors of energies, by kind, of structures of a file that are outside the models' domain."""
    structures = read(file, ":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = predict(members, open_dataset(str(file), ReadOptions(charges=True)))
    errors = defaultdict(list)
    for place in sorted(found.warnings):
        atoms = structures[place]
        errors[atoms.info["kind"]].append(abs(found.energies[place] - atoms.get_potential_energy()))
    return {kind: (np.array(wrong), np.zeros(len(wrong))) for kind, wrong in errors.items() if len(wrong) >= FEWEST}


def read_scores(files: Iterable[Path]) -> dict[str, dict[str, float]]:
    """Values of measures by calculator.

    Raises:
        SystemExit: a calculator or a measure that the table does not have.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in CALCULATORS}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            name = row.pop("calculator")
            if unknown := [*({name} - CALCULATORS.keys()), *(row.keys() - MEASURES.keys())]:
                raise SystemExit(f"error: {file}: the table has no '{unknown[0]}'")
            found[name] |= row
    return found


def named(member: LoadedModel) -> LoadedModel:
    """The model with the names that a reader has its data under, not those of the machine that trained."""
    metadata = member.metadata
    changed: dict[str, Any] = {"training_data": metadata.training_data.model_copy(update={"path": TRAIN})}
    if (origin := metadata.fine_tuned_from) is not None:
        before = origin.trained_on.model_copy(update={"path": TRAIN})
        changed["fine_tuned_from"] = origin.model_copy(update={"model": "an earlier organic", "trained_on": before})
    member.metadata = metadata.model_copy(update=changed)
    return member


def atomisation(elements: Iterable[str]) -> tuple[list[Atoms], np.ndarray]:
    """Closed-shell molecules of G2 (Curtiss et al., J. Chem. Phys. 1997, 106, 1063) of three or more atoms.

    Returns:
        The molecules, and (n,) eV, minus their atomisation energies by experiment without zero-point energy.
    """
    molecules, energies = [], []
    for name in g2.molecule_names:
        atoms = molecule(name)
        if len(atoms) < 3 or atoms.get_initial_magnetic_moments().any() or not set(atoms.symbols) <= set(elements):
            continue
        of_atoms = sum(
            g2.data[symbol]["enthalpy"] - g2.data[symbol]["thermal correction"] for symbol in atoms.symbols
        )
        whole = g2.data[name]
        bound = whole["enthalpy"] - whole["thermal correction"] - whole["ZPE"] - of_atoms
        molecules.append(atoms)
        energies.append(bound * units.kcal / units.mol)
    return molecules, np.array(energies)


def from_free_atoms(members: Sequence[LoadedModel]) -> str:
    """Move the zero of each element to its free atom, and say how.

    The sum of absolute differences between the models' energies and atomisation energies is made least.
    """
    symbols = [chemical_symbols[z] for z in members[0].metadata.elements]
    molecules, energies = atomisation(symbols)
    counts = np.array([[list(atoms.symbols).count(symbol) for symbol in symbols] for atoms in molecules], float)
    with warnings.catch_warnings():
        # Some of these are outside the domain; the absolute differences forgive them.
        warnings.simplefilter("ignore")
        wrong = Model(members).predict(molecules) - energies
    weights = np.ones(len(wrong))
    for _ in range(50):
        shift = np.linalg.lstsq(counts * weights[:, None], wrong * weights, rcond=None)[0]
        rest = np.abs(wrong - counts @ shift)
        weights = np.maximum(rest, 1e-3) ** -0.5
    for member in members:
        references = member.model.standardiser.references
        for z, of_element in zip(member.metadata.elements, shift, strict=True):
            references[z] -= of_element
        known = {str(z): float(references[z]) for z in member.metadata.elements}
        standardiser = member.metadata.standardiser | {"references": known}
        member.metadata = member.metadata.model_copy(update={"standardiser": standardiser})
    return f"free atoms, by {len(rest)} molecules of G2 (median deviation {np.median(rest):.2f} eV)"


def ship(
    models: Sequence[str],
    sets: Path,
    recipe: str,
    benchmark: bool,
    scores: Iterable[Path] = (),
    root: Path = results.ROOT,
    times: bool = True,
) -> list[dict[str, Any]]:
    """Write the model file and the numbers under a root, and return these.

    Raises:
        SystemExit: models trained on another train.extxyz than that of ``sets``, models without partial charges,
            scores of something else, or a file that is too large. Nothing is written.
    """
    members, train, others = load_members(list(models)), sets / "train.extxyz", read_scores(scores)
    for member in members:
        if member.metadata.training_data.fingerprint != fingerprint(train):
            raise SystemExit(f"error: {member.path}: was not trained on {train}")
        if not member.model.config.partial_charges:
            raise SystemExit(f"error: {member.path}: has no partial charges, and the card promises dipoles")
    members = [named(member) for member in members]
    known, _ = measured(members, str(sets / "test.extxyz"), name=TEST)
    known, outside = known.model_copy(update={"data": TEST}), []
    if (file := sets / "outside.extxyz").exists():
        errors = errors_outside(members, file)
        known = extended(known, errors)
        for row in shares(errors, known):
            values = {"error": row["mae"], "width": row["uncertainty"], "inside": row["inside_68"]}
            outside += [
                {"by": "outside", "of": row["of"], "calculator": name, "value": value, "n": row["n"]}
                for name, value in values.items()
            ]
    members = calibrated(members, known)
    ours = score.scores(MolFLTCalculator(Model(members)), sets, times=times)
    zero = {"by": "file", "of": "zero of the energy", "n": from_free_atoms(members)}
    others["organic"] = ours | others["organic"]
    size = saved(root / MODEL, members)
    learnt = {"by": "file", "of": "interaction energies of dimers", "n": BENCHMARK[benchmark]}
    rows = [*about(members, recipe, size), learnt, zero, *contents(train), *sizes(sets), *outside]
    for name, values in others.items():
        rows += [{"by": "score", "of": of, "calculator": name, "value": values.get(of)} for of in MEASURES]
    measured_here = results.provenance({"sets": "organic"})
    results.write(root / NUMBERS, [row | measured_here for row in rows], (*COLUMNS, *results.PROVENANCE))
    return rows


def table(view: str, rows: Iterable[Mapping[str, Any]] | None = None) -> str:
    """Markdown of a view: ``file``, ``data``, ``outside``, ``scores``, or the line ``error``."""
    every = results.read(results.ROOT / NUMBERS) if rows is None else list(rows)
    mine = [row for row in every if row["by"] == view]
    if view == "file":
        return results.markdown(["file", ""], [[row["of"], row["n"]] for row in mine])
    if view == "data":
        cells = [[KINDS.get(row["of"], row["of"]), *(f"{int(row[key]):,}" for key in ("n", "value"))] for row in mine]
        total = [f"{sum(int(row[key]) for row in mine):,}" for key in ("n", "value")]
        return results.markdown(["training set", "structures", "atoms"], [*cells, ["all", *total]])
    counts = defaultdict(int, {row["of"]: row["n"] for row in every if row["by"] == "set"})
    values = {(row["of"], row["calculator"]): row["value"] for row in every if row["by"] == "score"}
    if view == "error":
        forces, conformers = (float(values[of, "organic"]) for of in ("forces", "conformers"))
        return (
            f"Error: {forces:.0f} meV/Å in forces and {conformers:.0f} meV in relative energies of conformers (mean "
            "absolute), of molecules held out, against SO3LR\n"
        )
    if view == "outside":
        table: dict[str, dict[str, Any]] = defaultdict(dict)
        for row in mine:
            table[row["of"]] |= {"n": row["n"], row["calculator"]: float(row["value"])}
        cells = [
            [KINDS[kind], of["n"], f"{of['error']:.2f}", f"{of['width']:.2f}", f"{of['inside']:.0%}"]
            for kind, of in table.items()
        ]
        mean = np.mean([of["inside"] for of in table.values()]) if table else math.nan
        titles = ["outside", "structures", "error, eV", "68 % half-width of the other kinds, eV", "errors within"]
        return results.markdown(titles, [*cells, ["mean", "", "", "", f"{mean:.0%}"]])
    if view != "scores":
        raise ValueError(view)
    cells = []
    for of, measure in MEASURES.items():
        found = [values.get((of, name)) for name in CALCULATORS]
        shown = [shortened(value, measure.target) for value in found]
        if measure.taught:
            shown[0] = "–"
        ours = shown[-1]
        shown[-1] = f"**{ours}**" if ours else "not measured"
        reached = "" if not ours or measure.target is None else "yes" if float(found[-1]) <= measure.target else "no"
        target = "" if measure.target is None else f"{measure.target:g}"
        cells.append([measure.words.format_map(counts), *shown, target, reached])
    return results.markdown(["", *CALCULATORS.values(), "target", "reached"], cells)


def shortened(value: Any, target: float | None = None) -> str:
    """A number with two digits, or all before the point; with one more if it would else look like a target missed."""
    if value in (None, ""):
        return ""
    number = float(value)
    text = f"{number:,.0f}" if abs(number) >= 10 else f"{number:.2g}"
    missed = target is not None and number > target >= float(text.replace(",", ""))
    return f"{number:,.1f}" if missed else text


def main(
    models: Annotated[list[str], typer.Argument(help="Trained models: members of one ensemble.")],
    sets: Annotated[Path, typer.Option(help="Folder of train.extxyz and of the sets to judge on.")],
    recipe: Annotated[str, typer.Option(help="How they were trained, for the card.")],
    benchmark: Annotated[bool, typer.Option(help="Whether the benchmark's interaction energies were learnt.")],
    scores: Annotated[list[Path], typer.Option(help="Rows of other calculators, or of what is not measured here.")],
    root: Annotated[Path, typer.Option(help="Where to write.")] = results.ROOT,
) -> None:
    """Write the model file, its numbers, and all that is made from them."""
    rows = ship(models, sets, recipe, benchmark, scores, root)
    typer.echo(table("scores", [{key: results.text(value) for key, value in row.items()} for row in rows]))
    if root == results.ROOT:
        from scripts.tools import tables
        from tests.golden import derivatives, values

        values.write_shipped("organic")
        derivatives.write(["organic"])
        tables.write(tables.pages())


if __name__ == "__main__":
    typer.run(main)
