"""Labels under any name, in any unit, of structures or atoms: against numbers written down by hand."""

import ase.db
import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem

from molflt.data.ase import from_atoms
from molflt.data.labels import CANDIDATES, ENERGY_UNITS, FORCE_UNITS, STORED, LabelSpec
from molflt.data.oc20.writer import convert
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.data.record import to_data
from molflt.errors import InputError

# CODATA 2018, written out: ASE's are those of 2014, which agree to 1e-8.
IN_EV = {"eV": 1.0, "meV": 0.001, "kcal/mol": 0.0433641042, "kJ/mol": 0.0103642697, "Hartree": 27.211386246}


def water(**info):
    return molecule("H2O", info=info)


def read(atoms, **spec):
    return from_atoms(atoms, "x", ReadOptions(labels=LabelSpec(**spec)))


@given(st.sampled_from(sorted(ENERGY_UNITS)), st.sampled_from(["structure", "atom"]), st.floats(-1e4, 1e4))
def test_energy_in_any_unit(unit, per, value):
    expected = value * IN_EV[unit] * (3 if per == "atom" else 1)
    assert float(read(water(U0=value), label="U0", unit=unit, per=per).energy) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("unit", [None, *FORCE_UNITS])
def test_forces_in_any_unit(unit):
    atoms, forces = water(E=-1.0), np.arange(9.0).reshape(3, 3)
    atoms.set_array("dft_forces", forces)
    found = read(atoms, label="E", unit="kcal/mol", force_label="dft_forces", force_unit=unit).forces
    energy, _, length = (unit or "kcal/mol/Ang").rpartition("/")
    expected = forces * IN_EV[energy] / {"Ang": 1.0, "Å": 1.0, "bohr": 0.529177210903}[length]
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("spec", [{}, {"label": "energy", "force_label": "forces"}])
def test_the_default_is_the_label_of_its_own_name_and_two_values_of_it_are_refused(spec):
    """Whatever holds them: a calculator, ``info`` or arrays; and by name or by default."""
    forces = np.arange(9.0).reshape(3, 3)
    atoms = water(energy=-2.0 + 1e-7)
    atoms.calc = SinglePointCalculator(atoms, energy=-2.0, free_energy=-2.5, forces=forces)
    atoms.set_array("forces", forces.copy())
    found = read(atoms, **spec)
    assert (float(found.energy), found.forces.tolist()) == (-2.0, forces.tolist())
    atoms.info["energy"] = -1.0
    with pytest.raises(InputError, match=r"x: two values are stored under 'energy', -2\.0 by a .* and -1\.0 in info"):
        read(atoms, **spec)
    atoms.info["energy"] = "-2"
    assert float(read(atoms, **spec).energy) == -2.0
    atoms.arrays["forces"][1, 2] += 1e-3
    with pytest.raises(InputError, match="x: two values are stored under 'forces'"):
        read(atoms, **spec)
    record = {"pos": atoms.positions, "atomic_numbers": atoms.numbers, "forces": forces, "force": forces}
    assert to_data(record, "x", ReadOptions(labels=LabelSpec())).forces.tolist() == forces.tolist()
    with pytest.raises(InputError, match="x: two values are stored under 'forces'"):
        to_data(record | {"force": forces + 1}, "x", ReadOptions(labels=LabelSpec()))


def test_a_free_energy_alone_is_no_energy_but_may_be_meant():
    atoms = water(step=3.0)
    atoms.calc = SinglePointCalculator(atoms, free_energy=-2.5)
    data = read(atoms)
    assert "energy" not in data
    assert data[CANDIDATES] == "step; free_energy"
    assert float(read(atoms, label="free_energy").energy) == -2.5


def test_the_named_label_takes_the_place_of_the_target():
    atoms = water(U0=5.0, energy=1.0)
    assert float(read(atoms, label="U0").energy) == 5.0
    assert float(from_atoms(atoms, "x").energy) == 1.0
    # Not there: no label, rather than another one.
    missing = read(atoms, label="U298")
    assert "energy" not in missing
    assert "U0" in missing[STORED]


def test_one_spec_reads_extxyz_db_csv_sdf_and_lmdb(tmp_path):
    options = ReadOptions(labels=LabelSpec(label="U0", unit="Hartree", per="atom"))
    expected = pytest.approx(-0.5 * 3 * IN_EV["Hartree"], rel=1e-7)
    ase.io.write(tmp_path / "a.extxyz", water(U0=-0.5))
    with ase.db.connect(tmp_path / "b.db") as database:
        database.write(molecule("H2O"), U0=-0.5)
    (tmp_path / "c.csv").write_text("id, smiles ,U0\n1,O,-0.5\n", encoding="utf-8")
    mol = Chem.AddHs(Chem.MolFromSmiles("O"))
    conformer = Chem.Conformer(3)
    conformer.SetPositions(water().positions)
    mol.AddConformer(conformer)
    mol.SetProp("U0", "-0.5")
    with Chem.SDWriter(str(tmp_path / "d.sdf")) as writer:
        writer.write(mol)
    for name in ("a.extxyz", "b.db", "c.csv", "d.sdf"):
        assert float(open_dataset(tmp_path / name, options)[0].energy) == expected, name
    # Once converted, the label stands in eV under its target's name.
    convert([str(tmp_path / "a.extxyz")], tmp_path / "e.lmdb", options=options)
    assert float(open_dataset(tmp_path / "e.lmdb")[0].energy) == expected


def test_a_label_that_is_no_number():
    assert "energy" not in read(water(U0=None), label="U0")
    for value in ("minus one", [1.0, 2.0]):
        with pytest.raises(InputError, match=r"'U0' is .*, expected one number"):
            read(water(U0=value), label="U0")
    atoms = water(F=np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"'F' has shape \(2, 3\), expected \(3, 3\)"):
        read(atoms, force_label="F")
