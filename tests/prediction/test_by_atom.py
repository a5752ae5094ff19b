"""Predictions by atom, from Python and the command line: forces, terms of the energy, embeddings."""

import json

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from molflt import MolFLTCalculator, load
from molflt.errors import InputError
from molflt.training.ensemble import train_ensemble


@pytest.fixture(scope="module")
def energy_run(make_config, tmp_path_factory):
    """An ensemble of two that learnt energies of the given geometry, which have forces."""
    folder = tmp_path_factory.mktemp("energy") / "run"
    train_ensemble(make_config(**{"data.target": "energy", "ensemble": 2, "trainer.max_epochs": 1}), folder, say=len)
    return folder


MIXED = [molecule("H2O"), "C[N", "CCO", molecule("CO")]


def test_by_atom(energy_run):
    model = load(energy_run / "member-0")
    with pytest.warns(UserWarning, match="1 of 4 entries"):
        found = model.predict(MIXED, forces=True, per_atom=True, embeddings=True, on_error="skip")
    assert [len(values) for values in found.forces] == [3, 0, 9, 2]
    for place, atoms in ((0, MIXED[0]), (3, MIXED[3])):
        atoms = atoms.copy()
        atoms.calc = MolFLTCalculator(energy_run / "member-0")
        assert found.energies[place] == pytest.approx(atoms.get_potential_energy())
        assert found.forces[place] == pytest.approx(atoms.get_forces(), abs=1e-6)
        assert found.atomic_energies[place].sum() == pytest.approx(found.energies[place])
    # Of the atoms, and not of how they lie: the two hydrogens of water are alike.
    water = found.embeddings[0]
    assert water.shape == (3, model.metadata.config.dim)
    assert water[1] == pytest.approx(water[2], abs=1e-5)
    assert np.abs(water[0] - water[1]).max() > 0.1
    assert list(found.failures) == [1]
    assert np.isnan(found.energies[1])
    # What was not asked for is not there.
    assert model.predict(MIXED[0], per_atom=True).by_atom.keys() == {"atomic_energies"}


def test_of_an_ensemble(energy_run):
    ensemble = load(energy_run)
    found = ensemble.predict(MIXED[0], forces=True, per_atom=True)
    each = [load(energy_run / f"member-{k}").predict(MIXED[0], forces=True, per_atom=True) for k in (0, 1)]
    assert found.uncertainty_eV == pytest.approx(ensemble.predict(MIXED[0], return_uncertainty=True)[1])
    for name in ("forces", "atomic_energies"):
        assert found.by_atom[name][0] == pytest.approx(np.mean([one.by_atom[name][0] for one in each], axis=0))
    with pytest.raises(InputError, match="embeddings: those of 2 models have nothing in common"):
        ensemble.predict(MIXED[0], embeddings=True)


def test_forces_of_a_model_of_minima_come_with_a_warning(molflt):
    with pytest.warns(UserWarning, match="trained without forces"):
        load("pretrained:qm7-small").predict("O", forces=True)
    for option, warned in (("--forces", True), ("--per-atom", False)):
        done = molflt("predict", "pretrained:qm7-small", "O", "--json", option)
        assert ("trained without forces" in " ".join(done.err.split())) is warned


def test_json_lines(molflt, energy_run, tmp_path):
    file = tmp_path / "in.extxyz"
    ase.io.write(file, [MIXED[0], MIXED[3]])
    done = molflt("predict", energy_run, file, "CCO", "--json", "--forces", "--per-atom")
    assert done.status == 0, done
    lines = [json.loads(line) for line in done.out.splitlines()]
    found = load(energy_run).predict([file, "CCO"], forces=True, per_atom=True)
    assert [line["name"] for line in lines] == found.names
    for k, line in enumerate(lines):
        assert line["energy"] == pytest.approx(found.energies[k])
        assert line["uncertainty_eV"] == pytest.approx(found.uncertainty_eV[k])
        assert np.array(line["forces"]) == pytest.approx(found.forces[k], abs=1e-7)
        assert line["atomic_energies"] == pytest.approx(found.atomic_energies[k].tolist())
        assert (line["target"], line["unit"]) == ("energy", "eV")
    # A structure that failed: no energy, and the reason.
    (tmp_path / "bad.smi").write_text("C\nC[N\n", encoding="utf-8")
    done = molflt("predict", energy_run, tmp_path / "bad.smi", "--json", "--on-error", "skip")
    good, bad = [json.loads(line) for line in done.out.splitlines()]
    assert "error" not in good
    assert bad["energy"] is None
    assert "C[N" in bad["error"]


def test_per_atom_in_extxyz(molflt, energy_run, tmp_path):
    out = tmp_path / "out.extxyz"
    assert molflt("predict", energy_run, "CCO", "--per-atom", "-o", out).status == 0
    atoms = ase.io.read(out)
    assert atoms.get_potential_energies().sum() == pytest.approx(atoms.get_potential_energy())
