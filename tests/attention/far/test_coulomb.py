"""1/r as a ladder of Gaussians: against 1/r itself, Madelung constants, and every method against the others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.neighborlist import neighbor_list

from molflt.attention.far.coulomb import (
    COULOMB,
    FINEST,
    INVERSE,
    INVERSE_SIXTH,
    PLAN,
    fields,
    potentials,
    potentials_of_neighbours,
)
from molflt.attention.layout import Plan
from molflt.errors import InputError
from tests.attention.structures import geometry_of


def geometry(*atoms, dtype=torch.float64, way=None, reach=1.0):
    return geometry_of(list(atoms), reach, dtype, plan=Plan(reach, charges=replace(PLAN, way=way)))


def energy(atoms, charges):
    """½ Σ q_i φ_i, eV."""
    return 0.5 * float((charges * potentials(geometry(atoms), charges)).sum())


def cloud(n, side, neutral=True):
    random = np.random.default_rng(0)
    charges = random.normal(size=(n, 1))
    return Atoms(f"H{n}", random.uniform(0, side, (n, 3))), torch.from_numpy(charges - neutral * charges.mean())


@pytest.mark.parametrize("distance", [4.0, 5.5, 10.0, 31.0, 100.0, 1e3, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_one_over_r(distance, dtype):
    pair = geometry(Atoms("H2", [[0, 0, 0], [0, 0, distance]]), dtype=dtype)
    found = potentials(pair, torch.tensor([[1.0], [0.0]]))
    assert float(found[1]) == pytest.approx(COULOMB / distance, rel=3e-6)
    assert abs(float(found[0])) < 1e-9, "a charge has no energy with itself"


def test_what_neighbours_have_of_each_other_is_that_of_pairs():
    """All of it up to half the cutoff, none beyond it, for a charge and for every image of it."""
    cutoff, charges = 4.0, torch.tensor([[1.0], [0.0]], dtype=torch.float64)

    def of_neighbours(atoms):
        return float(potentials_of_neighbours(geometry(atoms, reach=4.5), charges, cutoff)[1])

    def pair(distance):
        return Atoms("H2", [[0, 0, 0], [0, 0, distance]])

    for distance, share in ((1.2, 1.0), (2.0, 1.0), (3.0, 0.5), (4.0, 0.0), (4.4, 0.0)):
        whole = float(potentials(geometry(pair(distance)), charges)[1])
        assert of_neighbours(pair(distance)) == pytest.approx(share * whole, abs=1e-6)
    chain = pair(1.2)
    chain.set_cell([20.0, 20.0, 3.0])
    chain.pbc = True
    assert of_neighbours(chain) == pytest.approx(of_neighbours(pair(1.2)) + of_neighbours(pair(1.8)), abs=1e-9)


def test_dispersion_is_one_over_r6():
    for distance in (5.0, 7.0, 20.0):
        pair = geometry(Atoms("H2", [[0, 0, 0], [0, 0, distance]]))
        found = fields(pair, [(INVERSE_SIXTH, torch.tensor([[2.0], [0.0]]))])[0]
        assert float(found[1]) == pytest.approx(2 / distance**6, rel=2e-3)
        assert abs(float(found[0])) < 1e-12


def test_dispersion_of_a_crystal_is_the_sum_over_images():
    crystal, sources = cloud(5, 6.0, neutral=False)
    crystal.set_cell([[7, 0, 0], [1, 6, 0], [0, -2, 8]])
    crystal.pbc = True
    i, j, r = neighbor_list("ijd", crystal, 60.0)
    widths = FINEST * 2 ** (0.5 * torch.arange(80, dtype=torch.float64))
    ladder = INVERSE_SIXTH.weights(widths)[:, None] * torch.exp(
        -(torch.from_numpy(r) ** 2) / (2 * widths[:, None] ** 2)
    )
    expected = np.bincount(i, ladder.sum(dim=0).numpy() * sources[j, 0].numpy())
    # Beyond, the atoms are spread evenly.
    expected += float(sources.sum()) * 4 * np.pi / (3 * 60.0**3) / crystal.cell.volume
    for way in ("waves", "mesh"):
        found = fields(geometry(crystal, way=way), [(INVERSE_SIXTH, sources)])[0][:, 0]
        np.testing.assert_allclose(found, expected, atol=1e-4 * abs(expected).max())


def test_potentials_of_a_crystal_are_those_of_ewald_s_sum():
    torchpme = pytest.importorskip("torchpme", reason="torch-pme is not installed: pip install torch-pme")
    crystal, charges = cloud(12, 6.0)
    crystal.set_cell([[7, 0, 0], [1, 6, 0], [0, -2, 8]])
    crystal.pbc = True
    i, j, r = neighbor_list("ijd", crystal, 8.0)
    pairs, distances = torch.from_numpy(np.stack([i, j], axis=1)), torch.from_numpy(r)
    cell, positions = (torch.from_numpy(x) for x in (crystal.cell.array, crystal.positions))
    ewald = torchpme.EwaldCalculator(torchpme.CoulombPotential(1.0), lr_wavelength=0.4, full_neighbor_list=True)
    expected = 2 * ewald.to(torch.float64)(charges, cell, positions, pairs, distances)
    widths = FINEST * 2 ** (0.5 * torch.arange(80, dtype=torch.float64))
    ladder = (INVERSE.weights(widths) * torch.exp(-(distances[:, None] ** 2) / (2 * widths**2))).sum(dim=1)
    expected.index_add_(0, pairs[:, 0], (ladder - 1 / distances)[:, None] * charges[pairs[:, 1]])
    found = potentials(geometry(crystal), charges) / COULOMB
    assert float((found - expected).abs().max()) < 2e-5 * float(expected.abs().max())


@pytest.mark.parametrize("way", ["waves", "mesh"])
def test_a_charged_crystal_has_a_uniform_background(way):
    """Charges on a simple cubic lattice have φ = −2.837297 q/a, and the ladder lacks its finest rungs."""
    edge, charge = 10.0, torch.ones((1, 1), dtype=torch.float64)
    found = potentials(geometry(Atoms("H", cell=[edge] * 3, pbc=True), way=way), charge)
    # Of widths FINEST/√2, FINEST/2, ..., whose squares add up to FINEST².
    finer = INVERSE.strength * (2 * np.pi) ** 1.5 * FINEST**2 / edge**3
    assert float(found) / COULOMB == pytest.approx(-2.837297 / edge + finer, rel=3e-5)


def test_all_methods_agree():
    """On pairs, on the mesh, and in a box so large that images are far; also for a charged structure."""
    atoms, charges = cloud(60, 12.0, neutral=False)
    on_pairs = potentials(geometry(atoms, way="pairs"), charges)
    on_mesh = potentials(geometry(atoms, way="mesh"), charges)
    assert float((on_mesh - on_pairs).abs().max()) < 1e-5 * float(on_pairs.abs().max())
    crystal, charges = cloud(60, 12.0)
    crystal.set_cell([[13, 0, 0], [2, 12, 0], [0, -3, 14]])
    crystal.pbc = True
    on_lattice = potentials(geometry(crystal, way="waves"), charges)
    on_mesh = potentials(geometry(crystal, way="mesh"), charges)
    assert float((on_mesh - on_lattice).abs().max()) < 1e-5 * float(on_lattice.abs().max())


def test_rungs_come_and_go_smoothly():
    """With two fragments moving apart, the number of rungs jumps and the energy does not."""
    atoms, charges = cloud(8, 5.0, neutral=False)
    found = []
    for gap in np.arange(20.0, 40.0, 0.5):
        moved = atoms.copy()
        moved.positions[4:, 0] += gap
        r = np.linalg.norm(moved.positions[:4, None] - moved.positions[None, 4:], axis=-1)
        q = charges[:, 0].numpy()
        found.append(energy(moved, charges) - COULOMB * float((q[:4, None] * q[None, 4:] / r).sum()))
    assert np.ptp(found) < 1e-5


def test_company_changes_nothing_and_channels_do_not_meet():
    (first, q), (second, other) = cloud(6, 6.0), cloud(10, 8.0, neutral=False)
    together = potentials(geometry(first, second), torch.cat([q, other]))
    alone = torch.cat([potentials(geometry(first), q), potentials(geometry(second), other)])
    torch.testing.assert_close(together, alone, rtol=1e-13, atol=1e-13)
    both = potentials(geometry(first), torch.cat([q, 2 * q], dim=1))
    torch.testing.assert_close(both[:, 1], 2 * both[:, 0])


@pytest.mark.parametrize("pbc", [(True, True, False), (False, True, False)])
def test_slabs_and_chains_are_refused(pbc):
    atoms = Atoms("H", cell=[5, 5, 5], pbc=pbc)
    with pytest.raises(InputError, match="periodic along all three"):
        potentials(geometry(atoms), torch.zeros(1, 1))
