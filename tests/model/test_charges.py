"""Models with latent charges: held sums, invariance, forces and stress, and ions taken and refused."""

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError

from molflt import load
from molflt.data.ase import from_atoms, to_atoms
from molflt.data.batch import collate
from molflt.data.images import separate_fragments
from molflt.data.rdkit import from_smiles
from molflt.data.reading import ReadOptions
from molflt.data.record import to_data, to_record
from molflt.errors import InputError
from molflt.export.scripted import refuse_what_cannot_be_exported
from molflt.invariance.structures import doubled
from molflt.model.file import save_model
from molflt.simulate.ase import MolFLTCalculator
from tests.attention.structures import batch_of, rotated
from tests.model.files import metadata_of
from tests.model.models import batch_for, check_forces, check_stress, energies, make_model

IONS = ReadOptions(charges=True)


@pytest.fixture(scope="module")
def model():
    """Charges of some tenths of e."""
    found = make_model("molflt", cutoff=3.0, charges=2)
    assert found.charge_head is not None
    with torch.no_grad():
        found.charge_head.mlp[2].weight.mul_(5.0)
    return found


def salt():
    crystal = bulk("NaCl", "rocksalt", a=5.6) * (2, 1, 1)
    crystal.rattle(0.2, seed=0)
    return crystal


def test_the_sum_of_charges_is_held(model):
    batch = batch_for(model, [molecule("H2O"), molecule("CH3CH2OH"), salt()])
    batch.charge = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    output = model(batch)
    sums = torch.zeros(3, 2, dtype=torch.float64).index_add(0, batch.batch, output.charges)
    expected = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(sums, expected, atol=1e-12, rtol=0)
    assert output.charges.std() > 0.05
    parts = torch.zeros(3, dtype=torch.float64).index_add(0, batch.batch, output.atomic_energies)
    torch.testing.assert_close(parts + model.standardiser.mean, output.energy)


def test_energies_are_invariant_and_add_up_over_cells(model):
    ethanol, crystal = molecule("CH3CH2OH"), salt()
    plain = energies(model, [ethanol, crystal])
    torch.testing.assert_close(energies(model, [rotated(ethanol, 1), crystal]), plain)
    turned = Atoms(crystal.numbers[::-1], crystal.positions[::-1] + 0.3, cell=crystal.cell, pbc=True)
    torch.testing.assert_close(energies(model, [turned])[0], plain[1], rtol=1e-6, atol=1e-6)
    mean = model.standardiser.mean
    super_cell = energies(model, [crystal * (1, 2, 1)])[0]
    torch.testing.assert_close(super_cell - mean, 2 * (plain[1] - mean), rtol=1e-6, atol=1e-6)


def test_forces_and_stress_are_derivatives(model):
    for atoms in (molecule("CH3CH2OH"), salt()):
        check_forces(model, atoms, at_rest=1e-6, torque=1e-3)
    check_stress(model, salt(), tolerance=1e-4)


def test_two_ions_far_apart_feel_each_other_only_with_charges(model):
    def at(distance, charges):
        pair = batch_of([Atoms("NaCl", [[0, 0, 0], [0, 0, distance]])], 3.0, False)
        other = model if charges else make_model("local", cutoff=3.0)
        return float(other(pair).energy.detach())

    assert at(50.0, 0) == pytest.approx(at(60.0, 0), abs=1e-12)
    assert abs(at(50.0, 1) - at(60.0, 1)) > 1e-5


def test_ions_are_taken_by_models_with_charges_and_refused_by_others():
    hydroxide = Atoms("OH", [[0, 0, 0], [0, 0, 0.97]], info={"charge": -1})
    with pytest.raises(InputError, match=r"ion: .*know no charge.*--allow-charged.*model\.charges=1"):
        from_atoms(hydroxide, "ion")
    data = from_atoms(hydroxide, "ion", options=IONS)
    assert data.charge.tolist() == [-1.0]
    assert to_atoms(data).info["charge"] == -1.0
    assert to_data(to_record(data), "again", options=IONS).charge.tolist() == [-1.0]
    assert from_smiles("[NH4+]", options=ReadOptions(charges=True, conformers=1)).charge.tolist() == [1.0]
    hydroxide.info["charge"] = 0
    with pytest.raises(InputError, match=r"odd number of electrons.*know no spin"):
        from_atoms(hydroxide, "radical", options=IONS)
    neutral = from_atoms(molecule("H2O"), "water", options=IONS)
    assert "charge" not in neutral
    assert collate([data, neutral]).charge.tolist() == [-1.0, 0.0]
    assert separate_fragments([data, data, neutral], [6.0, 6.0], np.random.default_rng(0)).charge.tolist() == [-2.0]
    crystal = Atoms("OH", [[0, 0, 0], [0, 0, 0.97]], cell=[4, 4, 4], pbc=True, info={"charge": -1})
    assert doubled(from_atoms(crystal, "crystal", options=IONS), np.random.default_rng(0)).charge.tolist() == [-2.0]


@pytest.mark.parametrize("charge", [float("nan"), 0.4, 101, float("inf"), "much", [1, 2]])
def test_a_charge_that_is_none_is_refused_in_one_line(charge):
    atoms = molecule("H2O")
    atoms.info["charge"] = charge
    with pytest.raises(InputError, match=r"^a\.xyz#3: atoms\.info\['charge'\] is .*correct it or leave it out$"):
        from_atoms(atoms, "a.xyz#3", options=IONS)


def test_a_file_a_prediction_a_calculator_and_info(model, tmp_path, molflt):
    path = tmp_path / "model.safetensors"
    save_model(path, model, metadata_of(model.config, target="energy", elements=[1, 8]))
    ion = Atoms("OH", [[0, 0, 0], [0, 0, 0.97]], info={"charge": -1})
    predicted = load(path).predict([ion], per_atom=True)
    atoms = ion.copy()
    atoms.calc = MolFLTCalculator(path)
    assert atoms.get_potential_energy() == pytest.approx(float(predicted.energies[0]))
    assert predicted.atomic_energies[0].sum() + float(model.standardiser.mean) == pytest.approx(predicted.energies[0])
    before = atoms.get_potential_energy()
    atoms.info["charge"] = -3
    assert abs(atoms.get_potential_energy() - before) > 1e-3, "another charge is another structure"
    assert "dipole" not in atoms.calc.implemented_properties, "latent charges mean nothing"
    assert "charges: 2 channels, 1/r to any distance" in molflt("info", "-v", path).out


def test_molecules_that_do_not_touch_attract_by_dispersion():
    """The energy of two, less that of each: with and without dispersion it differs by the sum over pairs of D2."""
    water, methane = molecule("H2O"), molecule("CH4")
    methane.positions += [7.0, 1.0, 0.0]
    both = water + methane
    on, off = (make_model("local", cutoff=3.0, charges=1, dispersion=there) for there in (True, False))

    def interaction(model):
        pair, one, other = energies(model, [both, water, methane])
        return float(pair - one - other + model.standardiser.mean)

    # Grimme 2006, Table 1, J nm⁶/mol.
    c6 = {1: 0.14, 6: 1.75, 8: 0.70}
    expected = -sum(
        np.sqrt(c6[a.number] * c6[b.number])
        * 1e6
        * units.J
        / units.mol
        / np.linalg.norm(a.position - b.position) ** 6
        for a in water
        for b in methane
    )
    assert expected < -1e-4
    assert interaction(on) - interaction(off) == pytest.approx(expected, rel=1e-3)


def test_partial_charges_and_their_dipole_are_offered(tmp_path):
    """The dipole is that of point charges, does not depend on the origin, and turns with the molecule."""
    model = make_model("local", cutoff=3.0, charges=1, partial_charges=True)
    path = tmp_path / "model.safetensors"
    save_model(path, model, metadata_of(model.config, target="energy", elements=[1, 6, 8]))
    ethanol = molecule("CH3CH2OH")
    ethanol.calc = MolFLTCalculator(path)
    dipole, charges = ethanol.get_dipole_moment(), ethanol.get_charges()
    assert np.linalg.norm(dipole) > 0.01
    np.testing.assert_allclose(dipole, charges @ ethanol.positions, atol=1e-12)
    ethanol.positions += [40.0, -7.0, 3.0]
    np.testing.assert_allclose(ethanol.get_dipole_moment(), dipole, atol=1e-9)
    ethanol.rotate(90, "z")
    np.testing.assert_allclose(ethanol.get_dipole_moment(), [-dipole[1], dipole[0], dipole[2]], atol=1e-9)
    ethanol.set_cell([20, 20, 20])
    ethanol.pbc = True
    with pytest.raises(PropertyNotImplementedError):
        ethanol.get_dipole_moment()


def test_no_export_yet(model):
    with pytest.raises(InputError, match="with charges"):
        refuse_what_cannot_be_exported(model)


def test_what_repeats_along_two_axes_is_refused_where_it_is_read():
    slab = Atoms("Cu", cell=[3, 3, 12], pbc=(True, True, False))
    remedy = r"slab#3: periodic along 2 of three axes.*all three, with vacuum"
    with pytest.raises(InputError, match=remedy):
        from_atoms(slab, "slab#3", options=IONS)
    with pytest.raises(InputError, match=remedy):
        to_data(to_record(from_atoms(slab, "slab#3")), "slab#3", options=IONS)
    assert "charge" not in from_atoms(slab, "slab#3")


def test_an_atom_by_itself_is_not_the_ion(model):
    """Its charge acts on nothing: what it is worth, the read-out has to say."""
    batch = batch_for(model, [Atoms("O"), Atoms("O")])
    batch.charge = torch.tensor([0.0, -1.0], dtype=torch.float64)
    atom, ion = model(batch).energy.tolist()
    assert abs(atom - ion) > 1e-3
