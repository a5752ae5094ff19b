"""Errors of any calculator of ASE on labelled structures."""

import csv
import importlib.util

import numpy as np
import pytest
from ase import units
from ase.build import molecule
from ase.calculators.calculator import CalculationFailed, Calculator
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from molflt.errors import InputError
from molflt.simulate.benchmark import named_calculator, score

HERE = "tests.simulate.test_benchmark"
ERRORS = (0.0, 0.1, 0.5)
"""eV, of three geometries of ethanol, on top of a zero of their own."""


class Wrong(Calculator):
    """Wrong by what a geometry says: zero for labels, any other number for a calculation of them."""

    implemented_properties = ("energy", "forces", "dipole")

    def calculate(self, atoms=None, properties=(), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        if len(atoms) == 2:
            raise CalculationFailed("two atoms are too few")
        energy = 1000.0 + ERRORS[round(atoms.positions[0, 0])]
        forces = np.where(np.arange(3 * len(atoms)).reshape(-1, 3) % 2, 0.1, -0.3)
        self.results = {"energy": energy, "forces": forces, "dipole": np.array([1.0, 2.0, 2.0]) * units.Debye}


def labelled(name, k=0, **info):
    atoms = molecule(name)
    atoms.positions += [k, 0, 0] - atoms.positions[0]
    results = {"energy": 3.0, "forces": np.zeros((len(atoms), 3)), "dipole": np.zeros(3)}
    atoms.calc = SinglePointCalculator(atoms, **results)
    atoms.info |= info
    return atoms


def test_errors_of_a_calculator_that_is_wrong_in_a_known_way():
    """Energies less the mean of their molecule's; a molecule that occurs once says nothing of them."""
    found = score([labelled("CH3CH2OH", k) for k in range(3)] + [labelled("CH4", 2)], Wrong())
    assert (found.n, found.n_relative, found.failures) == (4, 3, [])
    assert found.relative_mae == pytest.approx(np.mean([0.2, 0.1, 0.3]))
    n_odd = sum(3 * len(atoms) // 2 for atoms in [molecule("CH3CH2OH")] * 3 + [molecule("CH4")])
    n = sum(3 * len(atoms) for atoms in [molecule("CH3CH2OH")] * 3 + [molecule("CH4")])
    assert found.force_mae == pytest.approx((0.1 * n_odd + 0.3 * (n - n_odd)) / n)
    assert found.dipole_mae == pytest.approx(3.0)
    assert found.seconds > 0


def test_isomers_are_told_apart_where_the_file_does():
    isomers = [labelled("CH3CH2OH", 0), labelled("CH3OCH3", 1), labelled("CH3OCH3", 2)]
    assert score(isomers, Wrong()).n_relative == 3
    for atoms, smiles in zip(isomers, ("CCO", "COC", "COC"), strict=True):
        atoms.info["smiles"] = smiles
    found = score(isomers, Wrong())
    assert found.n_relative == 2
    assert found.relative_mae == pytest.approx(0.2)


def test_what_is_missing_or_fails():
    """No dipole from EMT, no forces in the labels; a failure is named and left out, and none left is an error."""
    atoms = labelled("CH4")
    del atoms.calc.results["forces"]
    found = score([atoms, labelled("N2")], EMT())
    assert np.isnan([found.force_mae, found.dipole_mae, found.relative_mae]).tolist() == [False, True, True]
    found = score([labelled("CH4"), labelled("N2")], Wrong())
    assert found.n == 1
    assert found.failures == ["structure 1: two atoms are too few"]
    with pytest.raises(InputError, match="no structure can be computed; the first: structure 0: two atoms"):
        score([labelled("N2")], Wrong())
    assert score([labelled("CH4")], None).force_mae == 0


def test_names():
    assert isinstance(named_calculator(f"{HERE}:Wrong"), Wrong)
    for name, reason in (("os:getcwd", "is no calculator of ASE"), ("no.such:thing", "makes no calculator")):
        with pytest.raises(InputError, match=reason):
            named_calculator(name)
    with pytest.raises(InputError, match="no such file"):
        named_calculator("no-such.safetensors")
    if importlib.util.find_spec("tblite") is None:
        with pytest.raises(InputError, match="pip install tblite"):
            named_calculator("gfn2")


def test_command(molflt, tmp_path):
    """One line for each file; the CSV has the numbers."""
    for name in ("one", "two"):
        write(tmp_path / f"{name}.extxyz", [labelled("CH3CH2OH", k) for k in range(3)], format="extxyz")
    files, table = [str(tmp_path / f"{name}.extxyz") for name in ("one", "two")], tmp_path / "table.csv"
    done = molflt("benchmark", f"{HERE}:Wrong", *files, "-o", str(table))
    assert done.status == 0, done.err
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    assert [row["set"] for row in rows] == files
    assert float(rows[0]["relative energies / eV"]) == pytest.approx(0.2)
    assert float(rows[1]["dipoles / D"]) == pytest.approx(3.0)
    assert "0.2000" in done.out
    again = molflt("benchmark", f"{HERE}:Wrong", *files, "-o", str(table))
    assert again.status == 2
    assert "--overwrite" in again.err
