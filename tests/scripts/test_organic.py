"""Sets for the model of organic molecules: whose energies dimers learn, and which of them are left out."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from rdkit import Chem

from scripts.tools.organic.geometries import dipeptides
from scripts.tools.organic.sets import CUTOFF, beyond_cutoff, by_reference


def labelled(atoms: Atoms, energy: float, **info: object) -> Atoms:
    atoms.info |= {"kind": "benchmark", "split": "train", **info}
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=np.zeros((len(atoms), 3)))
    return atoms


def pair(gap: float) -> Atoms:
    """Water and ammonia whose oxygen and nitrogen are so far apart."""
    water, ammonia = molecule("H2O"), molecule("NH3")
    water.positions -= water.positions[0]
    ammonia.positions += np.array([0.0, 0.0, gap]) - ammonia.positions[0]
    return water + ammonia


def test_a_dimer_has_the_energy_of_its_molecules_and_the_reference():
    """A series of two distances, its molecules given with each dimer."""
    series = []
    for k, (gap, reference) in enumerate([(3.0, -0.25), (4.0, -0.1)]):
        series.append(labelled(pair(gap), -7.0, dimer=k, n_first=3, interaction_energy=reference))
        series += [labelled(molecule("H2O"), -4.0, dimer=k), labelled(molecule("NH3"), -3.5, dimer=k)]
    kept = by_reference(series)
    assert [str(atoms.symbols) for atoms in kept] == ["OH2NH3", "OH2", "NH3"] * 2
    energies = [atoms.get_potential_energy() for atoms in kept]
    assert energies == pytest.approx([-7.75, -4.0, -3.5, -7.6, -4.0, -3.5])


def test_dimers_beyond_the_teachers_cutoff_are_left_out():
    """Distances count between the closest atoms."""
    for gap, out in [(CUTOFF - 0.5, False), (CUTOFF + 2.5, True)]:
        atoms = labelled(pair(gap), 0.0, n_first=3, kind="dimer")
        assert beyond_cutoff(atoms) is out
    assert not beyond_cutoff(labelled(molecule("H2O"), 0.0, kind="thermal"))


def test_dipeptides_are_capped_and_of_left_handed_residues():
    """The alpha carbon of all natural residues but glycine and cysteine is S by CIP."""
    backbone = Chem.MolFromSmarts("[CH3]C(=O)NCC(=O)NCC(=O)N[CH3]")
    many = [Chem.MolFromSmiles(text) for text in dipeptides(19 * 18, 0)]
    assert len({Chem.MolToSmiles(mol) for mol in many}) == len(many)
    assert all(mol.HasSubstructMatch(backbone) and Chem.GetFormalCharge(mol) == 0 for mol in many)
    for mol in many:
        alphas = mol.GetSubstructMatch(backbone)[4], mol.GetSubstructMatch(backbone)[8]
        labels = [dict(Chem.FindMolChiralCenters(mol)).get(k) for k in alphas]
        sulfur = mol.HasSubstructMatch(Chem.MolFromSmarts("[CH2][SH]"))
        assert labels.count("R") == sulfur, Chem.MolToSmiles(mol)
