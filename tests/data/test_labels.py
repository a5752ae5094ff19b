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
    atoms = molecule("H2O")
    atoms.info.update(info)
    return atoms


def test_units_are_those_of_the_tables():
    assert set(ENERGY_UNITS) == set(IN_EV)
    for unit, factor in IN_EV.items():
        assert ENERGY_UNITS[unit] == pytest.approx(factor, rel=1e-7)
        assert FORCE_UNITS[f"{unit}/Ang"] == pytest.approx(factor, rel=1e-7)
    assert FORCE_UNITS["Hartree/bohr"] == pytest.approx(51.42206747, rel=1e-7)


@given(st.sampled_from(sorted(IN_EV)), st.sampled_from(["structure", "atom"]), st.floats(-1e4, 1e4))
def test_energy_in_any_unit(unit, per, value):
    spec = LabelSpec(label="U0", unit=unit, per=per)
    data = from_atoms(water(U0=value), "x", ReadOptions(labels=spec))
    expected = value * IN_EV[unit] * (3 if per == "atom" else 1)
    assert float(data.energy) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("unit", [None, "Hartree/bohr", "meV/Ang"])
def test_forces_in_any_unit(unit):
    atoms = water(E=-1.0)
    forces = np.arange(9.0).reshape(3, 3)
    atoms.set_array("dft_forces", forces)
    spec = LabelSpec(label="E", unit="kcal/mol", force_label="dft_forces", force_unit=unit)
    factor = {None: IN_EV["kcal/mol"], "Hartree/bohr": 51.42206747, "meV/Ang": 1e-3}[unit]
    np.testing.assert_allclose(
        from_atoms(atoms, "x", ReadOptions(labels=spec)).forces.numpy(), forces * factor, rtol=1e-7
    )


@pytest.mark.parametrize("spec", [LabelSpec(), LabelSpec(label="energy", force_label="forces")])
def test_the_default_is_the_label_of_its_own_name_and_two_values_of_it_are_refused(spec):
    """Whatever holds them: a calculator, ``info`` or arrays; and by name or by default."""
    forces = np.arange(9.0).reshape(3, 3)
    atoms = water(energy=-2.0 + 1e-7)
    atoms.calc = SinglePointCalculator(atoms, energy=-2.0, free_energy=-2.5, forces=forces)
    atoms.set_array("forces", forces.copy())
    found = from_atoms(atoms, "x", ReadOptions(labels=spec))
    assert (float(found.energy), found.forces.tolist()) == (-2.0, forces.tolist())
    atoms.info["energy"] = -1.0
    with pytest.raises(InputError, match=r"x: two values are stored under 'energy', -2\.0 by a .* and -1\.0 in info"):
        from_atoms(atoms, "x", ReadOptions(labels=spec))
    atoms.info["energy"] = "-2"
    assert float(from_atoms(atoms, "x", ReadOptions(labels=spec)).energy) == -2.0
    atoms.arrays["forces"][1, 2] += 1e-3
    with pytest.raises(InputError, match="x: two values are stored under 'forces'"):
        from_atoms(atoms, "x", ReadOptions(labels=spec))
    record = {"pos": atoms.positions, "atomic_numbers": atoms.numbers, "forces": forces, "force": forces}
    assert to_data(record, "x", ReadOptions(labels=LabelSpec())).forces.tolist() == forces.tolist()
    with pytest.raises(InputError, match="x: two values are stored under 'forces'"):
        to_data(record | {"force": forces + 1}, "x", ReadOptions(labels=LabelSpec()))


def test_a_free_energy_alone_is_no_energy_but_may_be_meant():
    atoms = water(step=3.0)
    atoms.calc = SinglePointCalculator(atoms, free_energy=-2.5)
    data = from_atoms(atoms, "x", ReadOptions(labels=LabelSpec()))
    assert "energy" not in data
    assert data[CANDIDATES] == "step; free_energy"
    assert float(from_atoms(atoms, "x", ReadOptions(labels=LabelSpec(label="free_energy"))).energy) == -2.5


def test_the_named_label_takes_the_place_of_the_target():
    atoms = water(U0=5.0, energy=1.0)
    assert float(from_atoms(atoms, "x", ReadOptions(labels=LabelSpec(label="U0"))).energy) == 5.0
    assert float(from_atoms(atoms, "x").energy) == 1.0
    # Not there: no label, rather than another one.
    missing = from_atoms(atoms, "x", ReadOptions(labels=LabelSpec(label="U298")))
    assert "energy" not in missing
    assert "U0" in missing[STORED]


def test_one_spec_reads_extxyz_db_csv_sdf_and_lmdb(tmp_path):
    spec = LabelSpec(label="U0", unit="Hartree", per="atom")
    expected = -0.5 * 3 * IN_EV["Hartree"]
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
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    for file in files:
        assert float(open_dataset(file, ReadOptions(labels=spec))[0].energy) == pytest.approx(expected, rel=1e-7), (
            file
        )
    # Once converted, the label stands in eV under its target's name.
    convert([str(tmp_path / "a.extxyz")], tmp_path / "e.lmdb", options=ReadOptions(labels=spec))
    assert float(open_dataset(tmp_path / "e.lmdb")[0].energy) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("value", ["minus one", [1.0, 2.0], None])
def test_a_label_that_is_no_number(value):
    if value is None:
        assert "energy" not in from_atoms(water(U0=None), "x", ReadOptions(labels=LabelSpec(label="U0")))
        return
    with pytest.raises(InputError, match=r"'U0' is .*, expected one number"):
        from_atoms(water(U0=value), "frame 7", ReadOptions(labels=LabelSpec(label="U0")))


def test_forces_of_the_wrong_shape():
    atoms = water(F=np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"'F' has shape \(2, 3\), expected \(3, 3\)"):
        from_atoms(atoms, "x", ReadOptions(labels=LabelSpec(force_label="F")))
