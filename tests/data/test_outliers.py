"""One structure whose energy or forces are out of line is named, and good sets are left in peace."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from molflt.data.open import open_dataset
from molflt.data.quality.labels import energies_out_of_line, forces_out_of_line
from molflt.data.reading import ReadOptions
from molflt.files import resolve_path

ELEMENTS = (-13.6, -1029.5, -2042.0)
"""eV: of hydrogen, carbon and oxygen."""


def _outliers(energies, compositions, additive=True):
    kinds, places = np.unique(compositions, axis=0, return_inverse=True)
    found = energies_out_of_line(energies, places.ravel(), kinds, additive)
    return found.places.tolist(), [*found.sizes.tolist(), found.others]


def _set(n, n_compositions, seed):
    """Energies of elements and 0.2 eV per √atom, of a few compositions drawn at random."""
    random = np.random.default_rng(seed)
    kinds = np.zeros((n_compositions, 119), dtype=np.int64)
    kinds[:, (1, 6, 8)] = random.integers(1, 9, (n_compositions, 3))
    compositions = kinds[random.integers(0, n_compositions, n)]
    noise = random.normal(scale=0.2, size=n) * np.sqrt(compositions.sum(axis=1))
    return compositions[:, (1, 6, 8)] @ ELEMENTS + noise, compositions


@pytest.mark.parametrize(("n", "n_compositions"), [(20, 1), (40, 4), (60, 60), (12_000, 400)])
@pytest.mark.parametrize("error", [-80.0, 5000.0])
def test_a_wrong_energy_is_found_and_measured(n, n_compositions, error):
    for seed in range(1 if n > 1000 else 5):
        energies, compositions = _set(n, n_compositions, seed)
        assert _outliers(energies, compositions)[0] == []
        place = (7 * seed + 3) % n
        energies[place] += error
        (found,), (size, others) = _outliers(energies, compositions)
        assert found == place
        # Of three elements in sixty compositions an error of one is known to within the noise.
        assert size == pytest.approx(abs(error), abs=6)
        assert others < 6


def test_free_atoms_and_a_lone_molecule_of_another_kind_are_no_outliers():
    """Bonds are worth eV, and the spread of vibrations is small."""
    random = np.random.default_rng(0)
    one, several = ("H", "C", "O", "C2H6"), ("CH4", "CH3OH", "H2O")
    formulas = [*several * 30, *one]
    bonds = [*(-17.0, -21.0, -9.5) * 30, 0.0, 0.0, 0.0, -29.0]
    compositions = np.stack([np.bincount(Atoms(formula).numbers, minlength=119) for formula in formulas])
    energies = compositions[:, (1, 6, 8)] @ ELEMENTS + bonds + random.normal(scale=0.02, size=len(bonds))
    assert _outliers(energies, compositions)[0] == []
    energies[40] += 10
    assert _outliers(energies, compositions)[0] == [40]


def test_long_tails_and_sets_too_small_to_judge_have_no_outliers():
    energies, compositions = _set(100, 1, 0)
    energies[::10] += np.linspace(30, 300, 10)
    assert _outliers(energies, compositions)[0] == []
    energies, compositions = _set(3, 3, 0)
    assert _outliers(energies, compositions)[0] == []
    assert _outliers(energies[:1], compositions[:1], additive=False)[0] == []


def test_energies_of_adsorption_are_compared_with_each_other():
    energies = np.random.default_rng(0).normal(-1.0, 1.0, 50)
    energies[[4, 9]] = [-80.0, 500.0]
    places, sizes = _outliers(energies, _set(50, 50, 0)[1], additive=False)
    assert places == [9, 4]
    assert sizes == pytest.approx([501, 79, 2], abs=1.5)


def test_forces():
    sizes = np.random.default_rng(0).uniform(0.1, 2.0, 40)
    assert forces_out_of_line(sizes).places.tolist() == []
    # Relaxed structures but one are no error, and forces in another unit are large everywhere.
    assert forces_out_of_line(np.array([*[1e-3] * 20, 2.0])).places.tolist() == []
    assert forces_out_of_line(500 * sizes).places.tolist() == []
    sizes[[3, 17]] = [200.0, 3000.0]
    found = forces_out_of_line(sizes)
    assert (found.places.tolist(), found.sizes.tolist()) == ([17, 3], [3000.0, 200.0])
    assert found.others <= 2.0
    assert forces_out_of_line(np.empty(0)).places.tolist() == []


def _no_false_alarm(path):
    """In a whole set, and in small ones drawn from it."""
    found = [*open_dataset(path, ReadOptions(tags="oc20"))]
    target = "energy" if "energy" in found[0] else "y_relaxed"
    energies = np.array([float(data[target]) for data in found])
    compositions = np.stack([np.bincount(data.atomic_numbers.numpy(), minlength=119) for data in found])
    assert _outliers(energies, compositions, target == "energy")[0] == []
    for seed in range(20):
        some = np.random.default_rng(seed).choice(len(energies), 30, replace=False)
        assert _outliers(energies[some], compositions[some], target == "energy")[0] == []


def test_no_false_alarm_in_the_set_that_comes_with_molflt():
    _no_false_alarm(Path(resolve_path("bundled:fg/val.lmdb")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["qm7/qm7_train.extxyz.gz", "perovskites/perovskites.extxyz.gz", "acac/train_300K.xyz.gz", "wwl/wwl.extxyz.gz"],
)
def test_no_false_alarm_in_real_sets(name, real_data):
    _no_false_alarm(real_data(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3D_cluster_16_atoms_radius_2point5", "3D_cluster_32_atoms_radius_5"])
def test_no_false_alarm_in_units_of_their_own(name, real_data):
    with np.load(real_data(f"efa/{name}.npz")) as found:
        compositions = np.stack([np.bincount(z, minlength=119) for z in found["atomic_numbers"].astype(int)])
        assert _outliers(found["energy"].ravel(), compositions)[0] == []
        assert forces_out_of_line((found["forces"] ** 2).mean(axis=(1, 2)) ** 0.5).places.tolist() == []
