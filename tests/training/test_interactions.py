"""Interaction energies of dimers in the loss."""

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.errors import InputError
from molflt.simulate.ase import MolFLTCalculator
from molflt.training.data_module import EnergyDataModule
from molflt.training.training_structures import SIGN, DimerDataset, NeighbourDataset, dimers_of
from tests.training.runs import go


def interaction(gap):
    return -0.6 * np.exp(2.5 - gap)


def labelled(atoms, energy):
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=np.zeros((len(atoms), 3)))
    return atoms


def with_molecules(gap, random):
    """Water and ammonia, and each alone: energies are known to 1 eV, which is the same for dimer and molecules."""
    water, ammonia = molecule("H2O"), molecule("NH3")
    water.positions -= water.positions[0]
    ammonia.positions += np.array([0.0, 0.0, gap]) - ammonia.positions[0]
    first, second = random.normal(size=2)
    both = labelled(water + ammonia, first + second + interaction(gap))
    return [both, labelled(water, first), labelled(ammonia, second)]


@pytest.fixture
def make(make_config, tmp_path):
    random = np.random.default_rng(0)
    gaps = random.uniform(2.6, 4.0, size=40)
    frames = [atoms for gap in gaps for atoms in with_molecules(gap, random)]
    # Others come between, and behind the last dimer.
    other = [labelled(molecule("CH3OH"), random.normal()) for _ in range(8)]
    ase.io.write(tmp_path / "train.extxyz", [*frames[:60], *other[:4], *frames[60:], *other[4:]])
    ase.io.write(tmp_path / "val.extxyz", frames[:12])

    def configured(weight, **more):
        files = {"data.train": str(tmp_path / "train.extxyz"), "data.val": str(tmp_path / "val.extxyz")}
        usual = {"data.target": "energy", "optimiser.ema_decay": 0.0, "optimiser.lr": 1e-2, "data.max_atoms": 100}
        loss = {"loss.interaction_weight": weight, "loss.separation": 0}
        return make_config(**{**files, **usual, **loss, **more})

    return configured


def test_interactions_are_learnt_where_energies_are_uncertain(make, tmp_path):
    """The error of interaction energies with the loss is a fraction of that without."""
    errors = {}
    for weight in (0.0, 10.0):
        go(make(weight, **{"trainer.max_epochs": 15}), tmp_path / str(weight))
        calc = MolFLTCalculator(tmp_path / str(weight) / "last.safetensors")
        wrong = []
        for gap in (2.8, 3.2, 3.6):
            dimer, *alone = with_molecules(gap, np.random.default_rng(1))
            found = calc.get_potential_energy(dimer) - sum(map(calc.get_potential_energy, alone))
            wrong.append(abs(found - interaction(gap)))
        errors[weight] = np.mean(wrong)
    assert errors[10.0] < 0.05
    assert errors[10.0] < errors[0.0] / 2


def test_a_dimer_is_in_one_batch_with_its_molecules(make):
    """Every structure comes once in an epoch, in whatever order."""
    module = EnergyDataModule(make(1.0))
    prepared = NeighbourDataset(module.train_structures, module.config.model, module.kept)
    numbers = [np.bincount(data.atomic_numbers, minlength=9) for data in module.train_structures]
    dataset = DimerDataset(prepared, dimers_of(np.array(numbers)))
    assert len(dataset) == 48
    members = [data for k in range(len(dataset)) for data in dataset[k]]
    signs = [int(data[SIGN]) for data in members]
    assert signs == [1, -1, -1] * 20 + [0] * 4 + [1, -1, -1] * 20 + [0] * 4
    assert [data.name for data in members] == [data.name for data in module.train_structures]
    assert [sum(d.num_nodes for d in dataset[k]) for k in range(48)] == dataset.n_atoms.tolist()
    assert all(SIGN not in data for data in prepared)


def test_without_dimers_the_weight_is_refused(make, tmp_path):
    ase.io.write(tmp_path / "train.extxyz", [labelled(molecule("CH3OH"), 0.0) for _ in range(4)])
    with pytest.raises(InputError, match=r"need dimers, each just before its two molecules, and there are none"):
        EnergyDataModule(make(1.0))
    with pytest.raises(InputError, match=r"neither loss\.noisy_nodes nor loss\.separation"):
        EnergyDataModule(make(1.0, **{"loss.separation": 0.5, "data.train": make(1.0).data.val["val"]}))
