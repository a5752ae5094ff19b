"""``pretrained:organic``: what ships it, on a tiny model and tiny sets; and the card of the one that is shipped."""

import json

import numpy as np
import pytest
from ase import units
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

import molflt
from molflt import MolFLTCalculator
from molflt.data.dataset import fingerprint
from molflt.model.file import TrainingData, save_model
from molflt.prediction.members import load_members, pretrained_models, provenance, uncertainty_of
from scripts import results
from scripts.tools import tables
from scripts.tools.organic import ship
from tests.model.files import metadata_of
from tests.model.models import make_model


def labelled(name, seed, **info):
    atoms, random = molecule(name), np.random.default_rng(seed)
    atoms.rattle(0.05, seed=seed)
    forces, dipole = random.normal(size=(len(atoms), 3)), random.normal(size=3)
    atoms.calc = SinglePointCalculator(atoms, energy=random.normal(), forces=forces, dipole=dipole)
    atoms.info |= info
    return atoms


@pytest.fixture
def sets(tmp_path):
    folder = tmp_path / "sets"
    folder.mkdir()
    names = ("CH4", "NH3", "H2O", "CH3CH2OH")
    kinds = ("spice", "spice", "thermal", "benchmark")
    train = [labelled(name, k, kind=kind) for k, (name, kind) in enumerate(zip(names, kinds, strict=True))]
    write(folder / "train.extxyz", train)
    write(folder / "test.extxyz", [labelled(names[k % 4], k, smiles=names[k % 4]) for k in range(24)])
    write(folder / "conformers.extxyz", [labelled("CH3CH2OH", k, smiles="CCO") for k in range(3)])
    return folder


@pytest.fixture
def trained(sets, tmp_path):
    model = make_model("local", cutoff=3.0, charges=1, partial_charges=True).float()
    train = sets / "train.extxyz"
    data = TrainingData(path=str(train), fingerprint=fingerprint(train), n_structures=4)
    metadata = metadata_of(model.config, elements=[1, 6, 7, 8], target="energy", training_data=data)
    save_model(tmp_path / "trained.safetensors", model, metadata)
    return str(tmp_path / "trained.safetensors")


def test_a_model_is_shipped(trained, sets, tmp_path):
    """The numbers are those of the calculator; machine paths are gone; the tables say what was reached."""
    rows = [{"calculator": "labels", "forces": 0.0, "interaction": 38.0}, {"calculator": "organic", "drift": 0.5}]
    (tmp_path / "scores.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    ship.ship([trained], sets, "one epoch", True, [tmp_path / "scores.json"], tmp_path, times=False)
    (member,) = load_members(tmp_path / ship.MODEL)
    assert member.metadata.training_data.path == ship.TRAIN
    known = uncertainty_of([member])
    assert (known.data, known.n_structures) == (ship.TEST, 24)
    kept = results.read(tmp_path / ship.NUMBERS)
    value = {(row["by"], row["of"], row["calculator"]): row["value"] for row in kept}
    wrong, calculator = [], MolFLTCalculator(trained)
    for atoms in read(sets / "test.extxyz", ":"):
        again = atoms.copy()
        again.calc = calculator
        wrong.append(np.abs(again.get_forces() - atoms.get_forces()).ravel())
    # Energies are those of training but for a number for each element, and near atomisation energies in the middle.
    before, after = load_members(trained)[0], member
    of_water = [molflt.load(one).predict(molecule("H2O"))[0] for one in (trained, tmp_path / ship.MODEL)]
    shift = {
        z: float(after.model.standardiser.references[z] - before.model.standardiser.references[z]) for z in (1, 8)
    }
    assert of_water[1] - of_water[0] == pytest.approx(2 * shift[1] + shift[8], abs=1e-4)
    assert after.metadata.standardiser["references"]["8"] == after.model.standardiser.references[8]
    molecules, energies = ship.atomisation("HCNO")
    rest = molflt.load(tmp_path / ship.MODEL).predict(molecules) - energies
    assert abs(np.median(rest)) < 0.3 * np.abs(rest).max()
    assert float(value["score", "forces", "organic"]) == pytest.approx(1000 * np.concatenate(wrong).mean(), rel=1e-3)
    assert {row["of"]: (row["n"], row["value"]) for row in kept if row["by"] == "data"} == {
        "spice": ("2", "9"),
        "thermal": ("1", "3"),
        "benchmark": ("1", "9"),
    }
    table = ship.table("scores", kept).splitlines()
    assert table[2].startswith("| forces of 24 molecules held out, 300 K, against SO3LR, meV/Å | – |  | **")
    assert table[2].endswith("| 60 | no |")
    assert any(line.endswith("|  | **0.5** | 1 | yes |") for line in table)
    assert any("dipeptides" in line and line.endswith("| not measured | 120 |  |") for line in table)
    assert "| all | 4 | 21 |" in ship.table("data", kept)
    assert f"| interaction energies of dimers | {ship.BENCHMARK[True]} |" in ship.table("file", kept)


def test_atomisation_energies():
    """Methane and water, kcal/mol, D_e by W4-11 (Karton, Daon, Martin 2011): experiment is within a kcal/mol."""
    found = {
        str(atoms.symbols): energy * units.mol / units.kcal
        for atoms, energy in zip(*ship.atomisation("HCO"), strict=True)
    }
    assert found["CH4"] == pytest.approx(-420.42, abs=1)
    assert found["OH2"] == pytest.approx(-232.97, abs=1)
    assert not {"O2", "CH3"} & found.keys()


def test_nothing_else_is_shipped(trained, sets, tmp_path):
    with (sets / "train.extxyz").open("a", encoding="utf-8") as file:
        file.write("1\nkind=spice\nH 0 0 0\n")
    with pytest.raises(SystemExit, match="was not trained on"):
        ship.ship([trained], sets, "", False, root=tmp_path)
    (tmp_path / "scores.json").write_text('{"calculator": "gfn2", "froces": 1}', encoding="utf-8")
    with pytest.raises(SystemExit, match="the table has no 'froces'"):
        ship.ship([trained], sets, "", False, [tmp_path / "scores.json"], root=tmp_path)
    assert not (tmp_path / ship.MODEL).exists()


def test_the_card_is_what_the_numbers_say():
    """The tables are in it, and its first lines reach every prediction."""
    card = pretrained_models()["organic"].with_suffix(".md").read_text(encoding="utf-8")
    for view in ("file", "data", "scores", "error"):
        assert f"<!-- table: organic {view} -->\n{tables.table(f'organic {view}')}<!-- end -->" in card
    said = provenance(load_members("pretrained:organic"))
    assert said["error"] == ship.table("error").strip().removeprefix("Error: ")
    assert said["level of theory"].startswith("SO3LR")
