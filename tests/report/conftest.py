"""A small set whose names try to break out, and a report of it."""

from collections import Counter

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule

from molflt.data.ase import from_atoms
from molflt.data.dataset import ListDataset
from molflt.invariance import Result
from molflt.model.file import load_model
from molflt.prediction.evaluate import Evaluation, StructureTable
from molflt.prediction.output import Prediction
from molflt.report.model import write_report
from molflt.training.run_dir import read_records
from tests.report.test_rpe_curves import make_model

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\" onclick='alert(3)' {{ 7 * 7 }}"


def slab(metal):
    """Two layers with an oxygen atom, tagged as in OC20."""
    found = fcc111(metal, (2, 2, 2), vacuum=5.0)
    add_adsorbate(found, "O", 1.9, "ontop")
    found.set_tags([0 if tag == 2 else 1 if tag == 1 else 2 for tag in found.get_tags()])
    return found


def evaluation_of(structures, expected, predicted, std=None, name="v", source="p"):
    numbers = [data.atomic_numbers.numpy() for data in structures]
    table = StructureTable(
        names=[str(data.name) for data in structures],
        formulas=[Atoms(numbers=z).get_chemical_formula() for z in numbers],
        elements=[frozenset(z.tolist()) for z in numbers],
        sizes=np.array([len(z) for z in numbers]),
        adsorbates=[data.get("adsorbate", "") for data in structures],
        expected=np.asarray(expected),
        references=np.zeros(len(structures)),
    )
    prediction = Prediction(np.asarray(predicted), table.names, Counter(), std)
    return Evaluation(name, source, ListDataset(structures), table, prediction)


def evaluated_set(name="val", n=12, adsorbates=True, std=False):
    """Slabs and molecules with invented energies; the first structure has a hostile name."""
    random = np.random.default_rng(3)
    structures = []
    for i in range(n):
        atoms = slab(("Cu", "Pt")[i // 2 % 2]) if i % 2 else molecule(("H2O", "CH4", "CO")[i // 2 % 3])
        data = from_atoms(atoms, name=f"structure {i}" if i else EVIL)
        if adsorbates:
            data.adsorbate = "O" if i % 2 else f"{EVIL}2"
        structures.append(data)
    expected = random.normal(size=n)
    error = np.linspace(1, 0.1, n) * random.choice([-1, 1], n)
    spread = np.full(n, 0.4) + 0.1 * random.uniform(size=n) if std else None
    return evaluation_of(structures, expected, expected + error, spread, name=name, source=f"data/{EVIL}.lmdb")


RESULTS = [
    Result("rotation", "float32", False, 3e-7, 1e-7, 0.03, "rounding", 12),
    Result("rotation", "float64", False, np.inf, 1e-1, np.inf, "rounding", 12),
    Result("supercell", "float32", False, np.nan, np.nan, np.nan, "rounding", 0),
]


@pytest.fixture(scope="session")
def report(model_path, tiny_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    sets = [evaluated_set(std=True), evaluated_set(EVIL, adsorbates=False)]
    command = f"molflt train '{EVIL}'"
    loaded = load_model(model_path)
    loaded.model = make_model()
    write_report(path, loaded, sets, read_records(tiny_run), RESULTS, command=command)
    return path
