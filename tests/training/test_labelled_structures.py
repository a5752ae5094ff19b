"""Training on any labelled structures: units, references, forces, and what is missing."""

import ase.io
import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.attention.near import GaussianDistanceBasis
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.model.file import load_model
from molflt.prediction.predict import predict
from molflt.simulate.ase import MolFLTCalculator
from molflt.training.data_module import EnergyDataModule
from molflt.training.recorder import Score
from molflt.training.run import train
from molflt.training.run_dir import read_records
from tests.training.runs import QUICK, go

KCAL = 23.060547830619  # kcal/mol in an eV
HARTREE = 27.211386245988


def crystals(n, seed):
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
def crystal_files(tmp_path_factory):
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
def crystal_config(make_config, crystal_files):
    def make(suffix="", **overrides):
        files = {
            "data.train": str(crystal_files / f"train{suffix}.extxyz"),
            "data.val": {"val": str(crystal_files / f"val{suffix}.extxyz")},
        }
        return make_config(**{**files, "data.target": "energy", "loss.force_weight": 5.0, **overrides})

    return make


OTHER_UNITS = {
    "data.label": "E_kcal",
    "data.unit": "kcal/mol",
    "data.per": "atom",
    "data.force_label": "F_au",
    "data.force_unit": "Hartree/bohr",
}


def test_energies_and_forces_are_learnt(crystal_config, tmp_path):
    schedule = {"trainer.max_epochs": 25, "optimiser.ema_decay": 0.0, "optimiser.lr": 1e-2}
    config = crystal_config(**schedule)
    run = go(config, tmp_path / "run")
    records = read_records(tmp_path / "run")
    for metric, share in {"train/loss": 0.8, "train/energy_mae": 0.8, "val/force_mae": 0.6}.items():
        assert records[-1][metric] < share * records[0][metric]
    data = open_dataset(crystal_config().data.val["val"])
    loaded = load_model(tmp_path / "run" / "last.safetensors")
    prediction = predict(loaded, data, forces=True)
    error = np.concatenate([f - data[i].forces.numpy() for i, f in enumerate(prediction.forces)])
    assert np.abs(error).mean() == pytest.approx(records[-1]["val/force_mae"], rel=1e-4)

    # The distance basis is as it began.
    basis = loaded.model.radial
    fresh = GaussianDistanceBasis(len(basis.centres), basis.cutoff)
    assert torch.equal(basis.log_widths, fresh.log_widths)
    assert torch.equal(basis.centres, fresh.centres)

    # What is best is what is best at both, each error over what it is without a model.
    force_std = EnergyDataModule(config).training_set.force_std
    both = [record["val/energy_mae"] / run.mad + record["val/force_mae"] / force_std for record in records]
    best = int(np.argmin(both))
    assert load_model(run.best_model).metadata.epoch == best == run.best_epoch - 1
    assert [record["best_epoch"] for record in records] == [1 + int(np.argmin(both[: k + 1])) for k in range(25)]
    assert (run.best, run.best_force_mae) == (records[best]["val/energy_mae"], records[best]["val/force_mae"])


@pytest.mark.parametrize(("kind", "best"), [("energy", 0), ("forces", 2), ("both", 1)])
def test_the_best_epoch_is_a_choice(kind, best):
    epochs = [(0.1, 0.9), (0.2, 0.3), (0.9, 0.2)]
    score = Score(kind, "val", energy_scale=1.0, force_scale=2.0)
    found = [score({"val/energy_mae": energy, "val/force_mae": 2 * forces}) for energy, forces in epochs]
    assert int(np.argmin(found)) == best


def test_a_heavy_weight_of_forces_is_no_explosion(crystal_config, tmp_path):
    lines = []
    config = crystal_config(**QUICK, **{"loss.force_weight": 1e3})
    train(config, tmp_path / "run", say=lines.append)
    assert read_records(tmp_path / "run")[0]["train/grad_norm"] > 10 * config.optimiser.clip_norm
    assert not [line for line in lines if "explode" in line]


def test_the_weight_of_forces_goes_by_what_they_leave_open(make_config, tmp_path):
    """Forces say nothing of the energy between different cells or compositions. A box is not a cell."""

    def weight(silver=0, strain=0.0, pbc=True):
        frames = [bulk("Cu", cubic=True) for _ in range(4)]
        frames[-1].numbers[:silver] = 47
        frames[-1].set_cell((1 + strain) * frames[-1].cell[:])
        for k, frame in enumerate(frames):
            frame.rattle(0.05, seed=k)
            frame.pbc = pbc
            frame.calc = SinglePointCalculator(frame, energy=0.1 * k, forces=np.ones((4, 3)))
        ase.io.write(tmp_path / "few.extxyz", frames)
        path = str(tmp_path / "few.extxyz")
        files = {"data.train": path, "data.val": {"val": path}, "data.target": "energy"}
        found = EnergyDataModule(make_config(**files, **{"loss.force_weight": "auto"})).training_set
        assert found.force_weight(3.0) == 3.0
        return found.force_weight("auto")

    assert [weight(), weight(silver=1), weight(strain=0.01), weight(strain=0.01, pbc=False)] == [100, 10, 10, 100]


def test_totals_of_one_composition_are_learnt_as_well_as_differences(crystal_config, crystal_files, tmp_path):
    """No fit can tell the elements apart, and −30,000 eV in float32 have steps of 2 meV."""
    found = []
    for shift in (0.0, -30_000.0):
        for name in ("train", "val"):
            frames = ase.io.read(crystal_files / f"{name}.extxyz", ":")[::2]
            for atoms in frames:
                atoms.numbers[1] = 47
                atoms.calc.results["energy"] += shift
                atoms.calc.atoms = atoms.copy()
            ase.io.write(tmp_path / f"{name}.extxyz", frames)
        files = {"data.train": str(tmp_path / "train.extxyz"), "data.val": {"val": str(tmp_path / "val.extxyz")}}
        run = go(crystal_config(**files, **QUICK), tmp_path / f"run{shift}")
        found.append([run.best, run.best_force_mae, run.mad])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_energies_alone_learn_no_forces(crystal_config, tmp_path):
    go(crystal_config(**QUICK, **{"loss.force_weight": 0.0}), tmp_path / "run")
    assert "val/force_mae" not in read_records(tmp_path / "run")[0]


def test_given_references(crystal_config):
    given = {"Cu": -1.0 * KCAL, "Ag": 2.0 * KCAL, "Au": 0.0}
    config = crystal_config("_units", **OTHER_UNITS, **{"data.references": given})
    statistics = EnergyDataModule(config).training_set.statistics
    assert statistics.given == pytest.approx({29: -1.0, 47: 2.0}, rel=1e-6)
    copper, silver = statistics.references[29], statistics.references[47]
    assert silver - copper == pytest.approx(3.0, rel=1e-6)
    data = open_dataset(config.data.train, ReadOptions(labels=config.data.labels()))
    left = [
        float(data[i].energy) - 4 * (copper if 29 in data[i].atomic_numbers else silver) for i in range(len(data))
    ]
    assert np.mean(left) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(InputError, match=r"holds Ag, for which data\.references has no energy"):
        EnergyDataModule(crystal_config(**{"data.references": {"Cu": 1.0}}))


def test_force_units_as_people_write_them(make_config):
    for text in ("eV/Å", "eV/A", "eV/Ang", "eV/angstrom"):
        assert make_config(**{"data.force_unit": text}).data.labels().force_unit == "eV/Ang"


def test_partial_charges_are_learnt(make_config, tmp_path):
    """Charges given by the element and the molecule: what is learnt gives the dipole of others."""
    random, given = np.random.default_rng(0), {1: 0.3, 6: -0.1, 7: -0.5, 8: -0.7}
    frames = []
    for name in ("H2O", "NH3", "CH3OH", "CH4") * 8:
        atoms = molecule(name)
        atoms.positions += random.normal(scale=0.05, size=atoms.positions.shape)
        charges = np.array([given[z] for z in atoms.numbers])
        atoms.set_array("partial_charges", charges - charges.mean())
        atoms.calc = SinglePointCalculator(atoms, energy=2 * random.normal())
        frames.append(atoms)
    files = {"train": tmp_path / "train.extxyz", "val": tmp_path / "val.extxyz"}
    ase.io.write(files["train"], frames[:24])
    ase.io.write(files["val"], frames[24:])
    charges = {"model.charges": 1, "model.partial_charges": True, "loss.charge_weight": 10.0, "loss.separation": 0}
    more = {"data.target": "energy", "optimiser.ema_decay": 0.0, "optimiser.lr": 1e-2, "trainer.max_epochs": 40}
    config = make_config(**{"data.train": str(files["train"]), "data.val": str(files["val"])}, **charges, **more)
    go(config, tmp_path / "run")
    for atoms in frames[24:]:
        expected = atoms.arrays["partial_charges"]
        atoms.calc = MolFLTCalculator(tmp_path / "run" / "last.safetensors")
        assert np.abs(atoms.get_charges() - expected).mean() < 0.1 * np.abs(expected).mean()
        np.testing.assert_allclose(atoms.get_dipole_moment(), expected @ atoms.positions, atol=0.05)
    # Two that are far apart do not charge each other.
    apart = molecule("H2O") + molecule("CH4")
    apart.positions[3:] += [0.0, 0.0, 30.0]
    apart.calc = MolFLTCalculator(tmp_path / "run" / "last.safetensors")
    assert abs(apart.get_charges()[:3].sum()) < 0.03
    del frames[3].arrays["partial_charges"]
    ase.io.write(files["train"], frames[:24])
    with pytest.raises(InputError, match=r"train\.extxyz#3: no array 'partial_charges'"):
        go(config, tmp_path / "without")
