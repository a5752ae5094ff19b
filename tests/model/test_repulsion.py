"""The repulsion of nuclei: against the published formula, pair by pair, and what it changes in a model."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.data import covalent_radii
from ase.neighborlist import neighbor_list

from molflt.model.derivatives import derivatives
from tests.attention.structures import STRUCTURES
from tests.model.models import batch_for, energies, make_model


def published(atoms):
    """Ziegler, Biersack and Littmark's potential with MACE's envelope, eV; e²/4πε₀ = 14.399645 eV Å."""
    total = 0.0
    for i, j, d in zip(*neighbor_list("ijd", atoms, 4.0), strict=True):
        a, b = atoms.numbers[i], atoms.numbers[j]
        x = d * (a**0.23 + b**0.23) / 0.46850
        phi = 0.18175 * np.exp(-3.1998 * x) + 0.50986 * np.exp(-0.94229 * x)
        phi += 0.28022 * np.exp(-0.4029 * x) + 0.02817 * np.exp(-0.20162 * x)
        u = d / (covalent_radii[a] + covalent_radii[b])
        fade = 1 - 28 * u**6 + 48 * u**7 - 21 * u**8 if u < 1 else 0.0
        total += 0.5 * 14.399645 * a * b / d * phi * fade
    return total


def models(**sizes):
    return [make_model({"mechanism": "local"}, repulsion=on, **sizes) for on in (True, False)]


def pressed(scale):
    """Water and a cell of two carbon atoms whose images are near, pressed."""
    water = Atoms("OH2", scale * np.array([[0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]]))
    cell = Atoms("C2", scale * np.array([[0, 0, 0], [0.7, 0.8, 0.9]]), cell=1.9 * scale * np.eye(3), pbc=True)
    return [water, cell]


@pytest.mark.parametrize("scale", [0.5, 0.7, 0.9])
def test_it_is_the_published_formula(scale):
    given = pressed(scale)
    difference = energies(models()[0], given) - energies(models()[1], given)
    expected = torch.tensor([published(atoms) for atoms in given], dtype=torch.float64)
    assert expected.min() > 0.01
    torch.testing.assert_close(difference, expected, rtol=1e-6, atol=1e-9)


def test_it_ends_at_the_covalent_radii():
    given = [make() for make in STRUCTURES.values()]
    far = [atoms for atoms in given if published(atoms) == 0]
    assert len(far) > 1
    on, off = models()
    assert torch.equal(energies(on, far), energies(off, far))


def test_a_pressed_bond_is_pushed_apart():
    model = models()[0]
    for d in (0.05, 0.2, 0.4, 0.6):
        atoms = Atoms("CH", [[0, 0, 0], [d, 0, 0]])
        forces = derivatives(model, batch_for(model, [atoms])).forces
        assert forces[1, 0] > 20
        assert torch.isfinite(forces).all()


def test_its_second_derivatives_are_finite_in_single_precision():
    model = make_model({"mechanism": "local"}, torch.float32, repulsion=True)
    batch = batch_for(model, pressed(0.7))
    derivatives(model, batch, create_graph=True).forces.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
