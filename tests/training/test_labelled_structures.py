"""Training on any labelled structures: units, references, forces, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.data.labels import LabelSpec
from molflt.data.sources import open_dataset
from molflt.errors import InputError
from molflt.model.model_file import load_model
from molflt.prediction.predictor import predict
from molflt.training.config import TrainConfig
from molflt.training.config_file import load_config
from molflt.training.run import train
from molflt.training.run_directory import read_records
from molflt.training.task import _norms

MakeConfig = Callable[..., TrainConfig]
KCAL = 23.060547830619  # kcal/mol in an eV
HARTREE = 27.211386245988


def crystals(n: int, seed: int) -> list[Atoms]:
    """Rattled cells of copper and silver with EMT's energies and forces."""
    random = np.random.default_rng(seed)
    found = []
    for k in range(n):
        atoms = bulk(("Cu", "Ag")[k % 2], "fcc", a=random.uniform(3.6, 4.1), cubic=True)
        atoms.rattle(0.15, seed=int(random.integers(1 << 30)))
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        found.append(atoms)
    return found


@pytest.fixture(scope="module")
def crystal_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crystals")
    for name, n, seed in (("train", 24, 0), ("val", 8, 1)):
        frames = crystals(n, seed)
        ase.io.write(folder / f"{name}.extxyz", frames)
        for atoms in frames:
            results = atoms.calc.results
            atoms.calc = None
            atoms.info["E_kcal"] = results["energy"] * KCAL / len(atoms)
            atoms.set_array("F_au", results["forces"] / HARTREE * 0.529177210903)
        ase.io.write(folder / f"{name}_units.extxyz", frames)
    return folder


@pytest.fixture(scope="module")
def crystal_config(make_config: MakeConfig, crystal_files: Path) -> MakeConfig:
    def make(suffix: str = "", **overrides: Any) -> TrainConfig:
        return make_config(
            **{
                "data.train": str(crystal_files / f"train{suffix}.extxyz"),
                "data.val": {"val": str(crystal_files / f"val{suffix}.extxyz")},
                "data.target": "energy",
                "loss.force_weight": 5.0,
                **overrides,
            }
        )

    return make


OTHER_UNITS: dict[str, Any] = {
    "data.label": "E_kcal",
    "data.unit": "kcal/mol",
    "data.per": "atom",
    "data.force_label": "F_au",
    "data.force_unit": "Hartree/bohr",
}


def run(config: TrainConfig, folder: Path) -> list[dict[str, Any]]:
    train(config, folder, say=lambda line: None)
    return read_records(folder)


def test_units_make_no_difference(crystal_config: MakeConfig, tmp_path: Path) -> None:
    """The same data in kcal/mol per atom and Hartree/bohr trains the same model."""
    plain = run(crystal_config(), tmp_path / "a")
    converted = run(crystal_config("_units", **OTHER_UNITS), tmp_path / "b")
    for mine, other in zip(plain, converted, strict=True):
        assert mine["val/energy_mae"] == pytest.approx(other["val/energy_mae"], rel=1e-3)
        assert mine["val/force_mae"] == pytest.approx(other["val/force_mae"], rel=1e-3)
    metadata = load_model(tmp_path / "b" / "best.safetensors").metadata
    assert metadata.labels == LabelSpec(
        label="E_kcal", unit="kcal/mol", per="atom", force_label="F_au", force_unit="Hartree/bohr"
    )


def test_a_wrong_unit_is_found_out(crystal_config: MakeConfig, tmp_path: Path) -> None:
    """Power of the test above."""
    wrong = run(crystal_config("_units", **{**OTHER_UNITS, "data.unit": "kJ/mol"}), tmp_path / "wrong")
    right = run(crystal_config(), tmp_path / "right")
    assert wrong[-1]["val/energy_mae"] != pytest.approx(right[-1]["val/energy_mae"], rel=0.1)


def test_forces_are_learnt(crystal_config: MakeConfig, tmp_path: Path) -> None:
    schedule = {"trainer.max_epochs": 40, "optimiser.ema_decay": 0.0, "optimiser.lr": 1e-2}
    records = run(crystal_config(**schedule), tmp_path / "run")
    assert records[-1]["val/force_mae"] < 0.6 * records[0]["val/force_mae"]
    loaded = load_model(tmp_path / "run" / "last.safetensors")
    data = open_dataset(crystal_config().data.val["val"])
    prediction, _ = predict(loaded, data, forces=True)
    assert prediction.forces is not None
    error = np.concatenate([f - data[i].forces.numpy() for i, f in enumerate(prediction.forces)])
    assert np.abs(error).mean() == pytest.approx(records[-1]["val/force_mae"], rel=1e-4)


def test_energy_only_learns_no_forces(crystal_config: MakeConfig, tmp_path: Path) -> None:
    records = run(crystal_config(**{"loss.force_weight": 0.0}), tmp_path / "run")
    assert "val/force_mae" not in records[0]


def test_loss_per_atom_weighs_sizes_alike(make_config: MakeConfig, tmp_path: Path) -> None:
    by_structure = run(make_config(**{"data.target": "energy"}), tmp_path / "a")
    by_atom = run(make_config(**{"data.target": "energy", "loss.energy_per": "atom"}), tmp_path / "b")
    assert by_structure[-1]["train/loss"] != by_atom[-1]["train/loss"]
    # The same model before the first step.
    assert by_structure[0]["train/energy_mae"] == pytest.approx(by_atom[0]["train/energy_mae"], rel=0.2)


def test_given_references(crystal_config: MakeConfig, tmp_path: Path) -> None:
    given = {"Cu": -1.0 * KCAL, "Ag": 2.0 * KCAL, "Au": 0.0}
    config = crystal_config("_units", **OTHER_UNITS, **{"data.references": given, "trainer.max_epochs": 1})
    run(config, tmp_path / "run")
    statistics = load_model(tmp_path / "run" / "best.safetensors").metadata.standardiser
    assert statistics["given"] == pytest.approx({"29": -1.0, "47": 2.0}, rel=1e-6)
    copper, silver = statistics["references"]["29"], statistics["references"]["47"]
    assert silver - copper == pytest.approx(3.0, rel=1e-6)
    data = open_dataset(config.data.train, labels=config.data.labels())
    left = [
        float(data[i].energy) - 4 * (copper if 29 in data[i].atomic_numbers else silver) for i in range(len(data))
    ]
    assert np.mean(left) == pytest.approx(0.0, abs=1e-6)


def test_an_element_without_a_given_reference(crystal_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds Ag, for which data\.references has no energy"):
        run(crystal_config(**{"data.references": {"Cu": 1.0}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_labels_say_what_is_there(crystal_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"24 of 24 structures have no label 'U0' .*E_kcal"):
        run(crystal_config("_units", **{"data.label": "U0"}), tmp_path / "run")


def test_missing_forces(crystal_config: MakeConfig, crystal_files: Path, tmp_path: Path) -> None:
    frames = ase.io.read(crystal_files / "train.extxyz", ":")
    for atoms in frames[5:7]:
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy())
    ase.io.write(tmp_path / "some.extxyz", frames)
    with pytest.raises(InputError, match=r"2 of 24 structures have no forces \(first: .*#5, .*#6\).*force_weight=0"):
        run(crystal_config(**{"data.train": str(tmp_path / "some.extxyz")}), tmp_path / "run")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("loss:\n  force_weight: 1\n", "y_relaxed is the same all the way to the minimum"),
        ("data:\n  unit: kcal\n", "must be 'eV', 'meV', 'kcal/mol', 'kJ/mol' or 'Hartree', not 'kcal'"),
        ("data:\n  references: {Xx: 1.0}\n", "Xx: no element"),
        (
            "data:\n  references: {H: 1.0}\n  standardise: structure\n",
            "data.references needs data.standard",
        ),
    ],
)
def test_configurations_that_make_no_sense(lines: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    if "data:" in lines:
        lines = lines.replace("data:\n", "data:\n  train: a.lmdb\n  val: b.lmdb\n")
    else:
        lines += "data:\n  train: a.lmdb\n  val: b.lmdb\n"
    path.write_text(lines)
    with pytest.raises(InputError) as error:
        load_config(path)
    assert message in str(error.value)


def test_force_units_as_people_write_them(make_config: MakeConfig) -> None:
    for text in ("eV/Å", "eV/A", "eV/Ang", "eV/angstrom"):
        assert make_config(**{"data.force_unit": text}).data.labels().force_unit == "eV/Ang"


def test_the_force_loss_counts_lengths() -> None:
    import torch

    vectors = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = _norms(vectors)
    assert float(loss.detach()) == pytest.approx(5.0)
    loss.backward()
    assert vectors.grad is not None
    assert bool(torch.isfinite(vectors.grad).all())
    assert float(_norms(torch.zeros(0, 3))) == 0.0


def test_a_label_given_as_the_target(make_config: MakeConfig) -> None:
    with pytest.raises(ValueError, match=r"unknown target 'U0'; .* What the data call it is data\.label"):
        make_config(**{"data.target": "U0"})
