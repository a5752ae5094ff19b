"""``molflt train --task``: the task by the labels of a file; printed forces; names that are kept for one release."""

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.cli.train import _task_of
from molflt.model.file import load_model
from molflt.prediction.model import load
from tests.training.runs import QUICK, written


@pytest.fixture
def file(tmp_path):
    """Twelve geometries of water with energies in kJ/mol under another name, and forces under theirs."""
    frames = []
    for seed in range(12):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=seed)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = None
        atoms.info["REF_energy"] = energy * 96.485
        atoms.arrays["REF_forces"] = forces * 96.485
        frames.append(atoms)
    ase.io.write(tmp_path / "a.extxyz", frames)
    return tmp_path / "a.extxyz"


def test_the_task_is_found_in_the_labels(file, tiny_data, tmp_path):
    atoms = molecule("H2O")
    for results, task in (({"energy": -1.0}, "energy"), ({"energy": -1.0, "forces": np.zeros((3, 3))}, "forces")):
        atoms.calc = SinglePointCalculator(atoms, **results)
        ase.io.write(tmp_path / "one.extxyz", atoms)
        assert _task_of(str(tmp_path / "one.extxyz")) == task
    assert _task_of(str(tiny_data / "train.lmdb")) == "adsorption"


def test_files_names_and_unit_are_options(molflt, file, make_config, tmp_path):
    config, run = written(make_config(**QUICK), tmp_path), tmp_path / "run"
    files = ("--train", file, "--val", file, "--energy-key", "REF_energy", "--forces-key", "REF_forces")
    result = molflt("train", config, *files, "--unit", "kJ/mol", "--out", run, "--no-report", "data.max_atoms=12")
    assert result.status == 0, result
    assert "task: forces, by the labels in" in result.err
    assert "not read" not in result.err
    metadata = load_model(run / "best.safetensors").metadata
    spec = metadata.label_spec
    assert (metadata.target, spec.label, spec.unit, spec.force_label) == (
        "energy", "REF_energy", "kJ/mol", "REF_forces"
    )  # fmt: skip
    assert "val/force_mae" in metadata.validation
    for preset in ((), ("tiny",)):
        alone = molflt("train", *preset, "--train", file, "--out", tmp_path / "other")
        assert (alone.status, "give --val FILE" in alone.err) == (2, True)
    odd = molflt("train", config, *files, "--task", "energy", "--out", tmp_path / "other")
    assert (odd.status, "--task energy learns no forces" in odd.err) == (2, True)
    # An override may stand in the place of the configuration.
    other = molflt("train", "trainer.max_epochs=1", *files, "--out", tmp_path / "other", "model.dim=none")
    assert (other.status, "model.dim" in other.err) == (2, True)
    # Printed with the energies, to the digits shown.
    found = load(run).predict(file, forces=True)
    head, *lines = molflt("predict", run, file, "--forces").out.splitlines()
    assert head == "# energy_eV  name; below, of each atom: element  forces_eV/Å"
    assert [line.split()[0] for line in lines[1:4]] == ["O", "H", "H"]
    printed = np.array([line.split()[1:] for line in lines[1:4]], dtype=float)
    np.testing.assert_allclose(printed, found.forces[0], atol=2e-6)


def test_former_names_work_and_say_so(molflt, model_path):
    for option in (("--frequencies", "exact"), ("--frequencies=exact",)):
        result = molflt("predict", model_path, "O", *option)
        assert result.status == 0, result
        assert "Warning: --frequencies is now --far-field-method" in result.err
    assert "is now" not in molflt("predict", model_path, "O", "--far-field-method", "exact").err
    model = load([model_path, model_path])
    with pytest.warns(DeprecationWarning, match="return_std is now return_uncertainty"):
        _, width = model.predict("O", return_std=True)
    found = model.predict("O", per_atom=True)
    with pytest.warns(DeprecationWarning, match="std is now uncertainty_eV"):
        np.testing.assert_array_equal(found.std, width)
