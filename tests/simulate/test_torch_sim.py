"""torch-sim's interface against the ASE calculator: many structures in one batch, the same numbers for each."""

import sys

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule

from molflt import MolFLTCalculator
from molflt.errors import InputError
from molflt.prediction.model import Model


def frames(periodic):
    if not periodic:
        found = [molecule(name) for name in ("CH3CH2OH", "H2O", "C6H6")]
    else:
        # Cells that are not symmetric matrices: torch-sim has lattice vectors as columns.
        found = [bulk("Cu") * (1, 2, 1), bulk("Al", cubic=True), bulk("Ni") * (2, 2, 2)]
    for k, atoms in enumerate(found):
        atoms.rattle(0.1, seed=k)
        if periodic:
            atoms.set_cell(atoms.cell @ (np.eye(3) + np.triu(np.full((3, 3), 0.05 + 0.02 * k))), scale_atoms=True)
    return found


@pytest.mark.parametrize("periodic", [False, True])
def test_each_of_a_batch_as_the_calculator_has_it(periodic, random_model):
    ts = pytest.importorskip("torch_sim")
    from molflt.simulate.torch_sim import MolFLTModel

    members = [random_model(seed=0), random_model(seed=1)]
    model = MolFLTModel(Model(members, "cpu"), dtype="float64")
    state = ts.io.atoms_to_state(frames(periodic), torch.device("cpu"), torch.float64)
    found, last = model(state), 0
    for k, atoms in enumerate(frames(periodic)):
        energies, forces, stresses = [], [], []
        for member in members:
            atoms.calc = MolFLTCalculator(member, dtype="float64")
            energies.append(atoms.get_potential_energy())
            forces.append(atoms.get_forces())
            stresses.append(atoms.get_stress(voigt=False) if periodic else np.zeros((3, 3)))
        assert found["energy"][k].item() == pytest.approx(np.mean(energies), abs=1e-10)
        mine = found["forces"][last : last + len(atoms)].numpy()
        np.testing.assert_allclose(mine, np.mean(forces, axis=0), atol=1e-9)
        np.testing.assert_allclose(found["stress"][k].numpy(), np.mean(stresses, axis=0), atol=1e-9)
        assert np.abs(forces).max() > 1e-3
        last += len(atoms)


def test_it_does_what_torch_sim_asks_of_a_model(random_model):
    pytest.importorskip("torch_sim")
    from torch_sim.models.interface import validate_model_outputs

    from molflt.simulate.torch_sim import MolFLTModel

    with pytest.warns(UserWarning, match="not trained on Si"):
        validate_model_outputs(MolFLTModel(random_model()), torch.device("cpu"), torch.float64)


def test_what_it_refuses(random_model, monkeypatch):
    from molflt.simulate import torch_sim

    if "torch_sim" in sys.modules:
        with pytest.raises(InputError, match="no forces: this model"):
            torch_sim.MolFLTModel(random_model(target="y_relaxed"))
    monkeypatch.setattr(torch_sim, "ModelInterface", torch.nn.Module)
    with pytest.raises(InputError, match=r"pip install 'molflt\[torch-sim\]'"):
        torch_sim.MolFLTModel(random_model())
