"""Uncertainties that a model's file knows: measured, given with predictions, and lost where they would be wrong."""

import numpy as np
import pytest
import torch
from ase.build import molecule
from scipy.stats import norm

import molflt
from molflt import MolFLTCalculator
from molflt.data.ase import from_atoms
from molflt.errors import InputError, InputWarning
from molflt.model.config import LEVELS, Uncertainty
from molflt.model.file import save_models
from molflt.prediction.evaluate import measured
from molflt.prediction.members import calibrated, load_member, load_members, uncertainty_of
from molflt.prediction.metrics import calibrate, cross_fitted, measure
from molflt.prediction.predict import domain_violations, predict

KNOWN = Uncertainty(
    n_members=2, floor=0.1, multiples=[1.0, 2.0, 3.0, 4.0], coverage=[0.5, 0.7, 0.9, 0.95], data="x", n_structures=99
)


def drawn(n, seed=0):
    """Errors with tails of Student's t (3 degrees of freedom), as wide as 0.05 eV + the spread says, and spreads."""
    random = np.random.default_rng(seed)
    spread = random.gamma(2.0, 0.05, n)
    return (0.05 + spread) * random.standard_t(3, n), spread


def test_intervals_hold_what_they_should_on_new_structures():
    """Hard structures are no exception, and the coverage that is stated is found."""
    error, spread = drawn(3_000)
    found = measure(error, spread, np.zeros(len(error)), 3, "drawn")
    new, hard = drawn(60_000, seed=1)
    for level, said in zip(LEVELS, found.coverage, strict=True):
        inside = np.abs(new) <= found.half_width(hard, level)
        assert inside.mean() == pytest.approx(level, abs=0.02)
        assert said == pytest.approx(level, abs=0.01)
        assert inside[hard > np.quantile(hard, 0.8)].mean() == pytest.approx(level, abs=0.04)
    assert found.floor == pytest.approx(0.05, rel=0.5)


def test_coverage_is_measured_on_other_structures():
    """Of few, the intervals of all would hold more of these themselves than they do of others."""
    error, spread = drawn(60)
    shares = cross_fitted(np.abs(error), spread)
    assert shares.shape == (60, len(LEVELS))
    assert (np.diff(shares, axis=1) >= 0).all()
    largest = np.abs(error / (0.05 + spread)).argmax()
    assert shares[largest, -1] == 0
    with pytest.raises(InputError, match="18 labelled structures are too few"):
        measure(error[:18], spread[:18], np.zeros(18), 2, "drawn")
    # Perfect predictions have an uncertainty, too.
    assert measure(np.zeros(20), np.zeros(20), np.zeros(20), 1, "drawn").half_width(np.zeros(1))[0] > 0


def test_intervals_of_their_own_outside_the_domain(two, tmp_path):
    """For the structure that is outside, not for the one beside it; in batches and in the calculator."""
    inside, outside = molecule("H2O"), molecule("C6H6")
    of_each = [bool(domain_violations(two[0], from_atoms(atoms, "x"))) for atoms in (inside, outside)]
    assert of_each == [False, True]
    widths = {}
    for name, multiples in (("without", []), ("with", [2.0, 6.0, 7.0, 8.0])):
        known = KNOWN.model_copy(update={"outside": multiples, "outside_floor": 0.1})
        save_models(tmp_path / f"{name}.safetensors", calibrated(two, known))
        with pytest.warns(InputWarning, match="and so is ±"):
            widths[name] = molflt.load(tmp_path / f"{name}.safetensors").predict(
                [inside, outside], return_uncertainty=True
            )[1]
    np.testing.assert_allclose(widths["with"] / widths["without"], [1.0, 3.0], rtol=1e-9)
    outside.calc = MolFLTCalculator(tmp_path / "with.safetensors")
    with pytest.warns(UserWarning, match="outside the model's domain"):
        outside.get_potential_energy()
    assert outside.calc.uncertainty_eV == pytest.approx(widths["with"][1], rel=1e-4)
    further = KNOWN.model_copy(update={"outside": [1.0, 6.0, 7.0, 8.0], "outside_floor": 0.3})
    assert further.half_width(np.array([0.2, 0.2]), broken=[{}, {"size"}]) == pytest.approx([0.6, 3.0])
    of_rules = further.model_copy(update={"by_rule": {"size": (0.8, [1.0, 9.0, 9.0, 9.0]), "gap": (0.8, [0.1] * 4)}})
    broken = [{}, {"size"}, {"gap"}, {"bond"}, {"size", "bond"}]
    assert of_rules.half_width(np.full(5, 0.2), broken=broken) == pytest.approx([0.6, 9.0, 0.6, 3.0, 9.0])
    with pytest.raises(ValueError, match="one for each of"):
        Uncertainty.model_validate(KNOWN.model_dump() | {"outside": [1.0]})
    with pytest.raises(ValueError, match="one for each of"):
        Uncertainty.model_validate(KNOWN.model_dump() | {"by_rule": {"size": (0.1, [1.0])}})


@pytest.fixture
def path(two, tmp_path):
    save_models(tmp_path / "two.safetensors", calibrated(two, KNOWN))
    return tmp_path / "two.safetensors"


def test_it_comes_with_every_prediction(path, two, val_set):
    """Twice the floor plus the standard deviation over the members: in batches, from Python and in the calculator."""
    raw = predict(two, val_set)
    found = predict(load_members(path), val_set)
    np.testing.assert_array_equal(found.energies, raw.energies)
    np.testing.assert_allclose(found.uncertainty_eV, 2.0 * (0.1 + raw.uncertainty_eV), rtol=1e-12)
    model = molflt.load(path)
    assert model.uncertainty == KNOWN
    atoms = molecule("H2O")
    (energy,), (width,) = model.predict(atoms, return_uncertainty=True)
    (_, (spread,)) = molflt.load([f"{path}#0", f"{path}#1"]).predict(atoms, return_uncertainty=True)
    assert width == pytest.approx(2.0 * (0.1 + spread), rel=1e-9)
    atoms.calc = MolFLTCalculator(path)
    assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-6)
    assert atoms.calc.uncertainty_eV == pytest.approx(width, rel=1e-4)


def test_a_single_model_has_one_for_all(path, two, val_set):
    one = calibrated(two[:1], KNOWN.model_copy(update={"n_members": 1}))
    np.testing.assert_allclose(predict(one, val_set).uncertainty_eV, 0.2)
    model = molflt.Model(one)
    assert model.predict("O", return_uncertainty=True)[1] == pytest.approx([0.2])
    atoms = molecule("H2O")
    atoms.calc = MolFLTCalculator(model)
    atoms.get_potential_energy()
    assert atoms.calc.uncertainty_eV == pytest.approx(0.2)


def test_what_was_measured_of_all_holds_for_no_part(path, two):
    members = load_members(path)
    assert uncertainty_of(members) == KNOWN
    assert [member.name for member in members] == [str(path)] * 2
    assert uncertainty_of(members[:1]) is None
    said = []
    second = load_member(f"{path}#1", said.append)
    assert torch.equal(second.model.energy_head.factor, two[1].model.energy_head.factor)
    assert second.name == f"{path}#1"
    for parts in (f"{path}#1", [f"{path}#0", f"{path}#1"], [path, path]):
        assert uncertainty_of(load_members(parts)) is None
    with pytest.raises(InputError, match="has 2 members, counted from 0"):
        load_members(f"{path}#2")
    assert not said
    first = load_member(path, said.append)
    assert (first.name, said) == (f"{path}#0", [f"{path} is an ensemble of 2 models; this is the first, {path}#0"])
    renamed = path.with_name("a#1")
    path.rename(renamed)
    assert len(load_members(renamed)) == 2


def test_measuring_leaves_aside_what_the_file_knows(path, two, tiny_data):
    data = str(tiny_data / "train.lmdb")
    found, evaluation = measured(load_members(path), data)
    again, _ = measured(two, data)
    assert found == again
    assert (found.n_members, found.data, found.n_structures) == (2, data, len(evaluation))


N = 20_000


def normal_errors(factor, seed=0):
    """Predictions, spreads, and labels whose errors are ``factor`` times as wide as the spreads say."""
    random = np.random.default_rng(seed)
    std = random.uniform(0.05, 0.5, N)
    expected = random.normal(size=N)
    return expected + factor * std * random.normal(size=N), std, expected


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_the_factor_is_found(factor):
    found = calibrate(*normal_errors(factor))
    assert found.factor == pytest.approx(factor, rel=0.03)
    np.testing.assert_allclose(found.calibrated_coverage, LEVELS, atol=0.015)
    as_it_is = [2 * norm.cdf(norm.ppf((1 + level) / 2) / factor) - 1 for level in LEVELS]
    np.testing.assert_allclose(found.coverage, as_it_is, atol=0.015)
    assert found.calibrated_nll <= found.nll + 1e-12


def test_nll_is_that_of_the_normal_distribution():
    predicted, std, expected = normal_errors(1.7)
    found = calibrate(predicted, std, expected)
    assert found.nll == pytest.approx(-norm.logpdf(expected, predicted, std).mean(), rel=1e-9)
    assert found.calibrated_nll == pytest.approx(-norm.logpdf(expected, predicted, std * found.factor).mean())
    # The factor is the best one.
    for other in (0.95, 1.05):
        worse = -norm.logpdf(expected, predicted, std * found.factor * other).mean()
        assert worse > found.calibrated_nll


def test_rank_correlation_knows_hard_from_easy():
    predicted, std, expected = normal_errors(1.0)
    assert calibrate(predicted, std, expected).rank_correlation > 0.3
    shuffled = np.random.default_rng(1).permutation(std)
    assert abs(calibrate(predicted, shuffled, expected).rank_correlation) < 0.05
    assert np.isnan(calibrate(predicted, np.full(N, 0.1), expected).rank_correlation)


def test_what_cannot_be_calibrated():
    with pytest.raises(InputError, match="at least two"):
        calibrate(np.zeros(1), np.ones(1), np.zeros(1))
    with pytest.raises(InputError, match="agree exactly"):
        calibrate(np.zeros(2), np.array([1.0, 0.0]), np.ones(2))


def test_perfect_predictions():
    found = calibrate(np.zeros(5), np.ones(5), np.zeros(5))
    assert found.factor == 0.0
    assert found.coverage == (1.0,) * len(LEVELS)
