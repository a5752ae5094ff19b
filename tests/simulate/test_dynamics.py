"""Constant-energy dynamics with a shipped model."""

import numpy as np
import pytest
from ase.optimize import BFGS

from molflt import MolFLTCalculator, load
from molflt.data.ase import to_atoms
from molflt.data.rdkit import from_smiles
from scripts.benchmarks.md_drift import heat, run_dynamics

pytestmark = pytest.mark.slow


class Broken(MolFLTCalculator):
    """Forces that are not quite the derivative of the energy."""

    def calculate(self, *args):
        super().calculate(*args)
        if "forces" in self.results:
            self.results["forces"] = 1.05 * self.results["forces"]


@pytest.mark.parametrize(
    ("kind", "dtype", "conserved"),
    [(MolFLTCalculator, "float32", True), (MolFLTCalculator, "float64", True), (Broken, "float64", False)],
)
def test_energy_is_conserved(kind, dtype, conserved):
    """Of acetylacetone at 300 K, whose potential energy changes by some 20 meV per atom."""
    atoms = to_atoms(from_smiles("CC(=O)C=C(C)O"))
    atoms.calc = kind(load("pretrained:acac"), dtype=dtype)
    BFGS(atoms, logfile=None).run(fmax=0.1, steps=30)
    heat(atoms, 300.0, np.random.default_rng(0))
    (found,) = run_dynamics([atoms], steps=200, timestep=0.25)
    print(f"\n{dtype}: drift {found.drift:.2g} meV/atom/ps, fluctuation {found.fluctuation:.2g} meV/atom")
    assert (abs(found.drift) < 0.05 and found.fluctuation < 0.02) == conserved
