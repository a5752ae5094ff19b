"""``molflt adsorb`` and ``molflt.adsorb``, with a model that has learnt nothing but knows all elements of the set."""

import csv
import re

import numpy as np
import pytest
import torch
from ase.io import read

import molflt
from molflt.adsorption import PLACING, Adsorption, adsorb, molecule
from molflt.adsorption.placing import guesses
from molflt.adsorption.surfaces import METALS, surface
from molflt.data.quality.domain import DomainFit
from molflt.errors import InputWarning
from molflt.model.energy import EnergyModel
from molflt.model.file import load_model, save_model
from molflt.report.figures import draw_adsorption, figure

ELEMENTS = sorted({1, 6, 7, 8, *(int(surface(metal).atoms.numbers[0]) for metal in METALS)})


def bars_of(results):
    """Heights of the chart's bars, and half lengths of the error bars where there are any."""
    (axes,) = figure(draw_adsorption, results).axes
    spread = [np.ptp(part[:, 1]) / 2 for lines in axes.collections for part in lines.get_segments()]
    return [bar.get_height() for bar in axes.patches], spread or None


@pytest.fixture
def make_untrained(loaded, tmp_path):
    def make(seed=0, **changes):
        torch.manual_seed(seed)
        changes = {"target": "y_relaxed", "elements": ELEMENTS, "seed": seed, "domain": None, **changes}
        metadata = loaded.metadata.model_copy(update=changes)
        path = tmp_path / f"untrained {seed}.safetensors"
        model = EnergyModel(metadata.config, seed)
        with torch.no_grad():
            # As initialised, it has the same energy for everything.
            for parameter in model.energy_head.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        save_model(path, model, metadata)
        return path

    return make


@pytest.fixture
def untrained(make_untrained):
    return make_untrained()


def test_the_lowest_of_all_guesses(untrained):
    model = molflt.load(untrained)
    results = molflt.adsorb("CC=O", "Pt, zn,Pt", model, n_guesses=9)
    assert [(one.metal, one.face) for one in results] == [("Pt", "fcc(111)"), ("Zn", "hcp(0001)")]
    for one in results:
        energies = [float(model.predict(guess.structure)[0]) for guess in one.guesses]
        assert one.energies == pytest.approx(energies, abs=1e-5)
        assert np.ptp(energies) > 1e-4
        assert one.best == int(np.argmin(energies))
        assert one.energy == one.lowest == pytest.approx(min(energies), abs=1e-5)
        assert (one.doubt, one.inside.all()) == (None, True)
        assert {int(guess.structure.tags.max()) for guess in one.guesses} == {2}
        assert np.isnan(one.uncertainty_eV)
    assert bars_of(results) == ([one.energy for one in results], None)


@pytest.mark.parametrize(
    ("n", "outside", "place", "doubted"),
    [
        (200, (), 9, False),
        (20, (), 0, False),
        (21, (), 1, False),
        (200, range(5), 14, False),
        (200, range(100), 104, False),
        (200, range(101), 105, True),
        (200, range(150), 152, True),
        (200, range(151), 9, None),
        (20, range(3, 20), 0, None),
        (4, (0, 1, 2), 3, True),
        (4, range(4), 0, None),
    ],
)
def test_which_guess_counts(n, outside, place, doubted):
    """The ⌈m/20⌉-th lowest of the m inside; a wider ± with fewer than half inside, no number below a quarter."""
    order = np.random.default_rng(0).permutation(n)
    energies = np.empty(n)
    energies[order] = np.linspace(-2.0, -1.0, n)
    warnings = {int(order[k]): "too far" for k in outside}
    found = Adsorption("CO", "Pt", "fcc(111)", [None] * n, energies, np.full(n, 0.06), warnings)
    assert found.best == order[place]
    assert found.inside.sum() == n - len(outside)
    few = f"Pt(111): {len(outside)} of {n} placements are outside the training domain, so"
    if doubted is None:
        assert not found.is_inside
        assert np.isnan([found.energy, found.lowest, found.uncertainty_eV]).all()
        assert found.doubt == f"{few} no energy is given (the first: too far)"
        return
    assert found.energy == energies[order[place]]
    assert found.lowest == energies[found.inside].min()
    assert (found.energy == found.lowest) == (found.inside.sum() <= 20)
    assert found.uncertainty_eV == pytest.approx(0.2 if doubted else 0.1)
    assert found.doubt == (f"{few} ± is doubled (the first: too far)" if doubted else None)


def test_guesses_outside_the_domain_are_passed_over(untrained):
    loaded = load_model(untrained)
    model = molflt.Model([loaded])
    (everything,) = molflt.adsorb("OC", "Cu", model, n_guesses=12)
    fit = DomainFit(150, forces=False)
    for index in range(150):
        fit.add(fit.look(index, everything.guesses[index % 3].structure))
    loaded.metadata = loaded.metadata.model_copy(update={"domain": fit.domain()})
    (found,) = molflt.adsorb("OC", "Cu", model, n_guesses=12)
    domain = fit.domain()
    inside = [not domain.reasons(guess.structure) for guess in found.guesses]
    assert found.inside.tolist() == inside
    assert 3 <= sum(inside) < 12
    assert found.energy == found.energies[inside].min()
    assert all(reason for reason in found.warnings.values())


def test_energies_that_mean_little_are_warned_of(untrained, molflt, tmp_path):
    loaded = load_model(untrained)
    fit = DomainFit(1, forces=False)
    water = guesses(surface("Cu"), molecule("O", 0), 1, "O", 0)[0].structure
    fit.add(fit.look(0, water))
    save_model(untrained, loaded.model, loaded.metadata.model_copy(update={"domain": fit.domain()}))
    with pytest.warns(InputWarning, match=r"few or no placements .*\n  Cu\(111\): 4 of 4 placements are outside"):
        adsorb("OC", "Cu", untrained, n_guesses=4)
    page = tmp_path / "a.html"
    result = molflt("-q", "adsorb", "OC", "--on", "Cu,Pt", "--model", untrained, "--guesses", 4, "-o", page)
    text = page.read_text("utf-8")
    reasons = re.findall(r"<li>(\w+)\(111\): 4 of 4 placements.*6 adsorbate atoms, and at most 3 .*</li>", text)
    assert reasons == ["Cu", "Pt"]
    assert result.err.count("4 of 4 placements are outside the training domain") == 2
    # No number that would look like one to be trusted.
    assert result.out.count("outside │") == 2
    shown = re.sub(
        r"0\.08 eV|[\d.]+ Å",
        "",
        result.out + re.sub(r"(?s)<style.*?</style>|<script.*?</script>|<svg.*?</svg>", "", text),
    )
    assert not re.search(r"\d\.\d\d", shown)
    for name in ("a.csv", "a.extxyz"):
        molflt("-q", "adsorb", "OC", "--on", "Cu,Pt", "--model", untrained, "--guesses", 4, "-o", tmp_path / name)
    with (tmp_path / "a.csv").open(encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            assert (row["y_relaxed_eV"], row["uncertainty_eV"], row["lowest_eV"]) == ("outside", "", "")
            assert row["warning"].startswith(f"{row['metal']}(111): 4 of 4 placements are outside")
    for atoms in read(tmp_path / "a.extxyz", index=":"):
        assert {"predicted_y_relaxed", "uncertainty_eV"}.isdisjoint(atoms.info)
        assert "4 of 4 placements are outside" in atoms.info["warning"]


def test_another_smiles_of_the_same_molecule(untrained):
    first, *others, another = (
        molflt.adsorb(smiles, ["Cu"], untrained, n_guesses=6)[0]
        for smiles in ("CC(=O)OCC", "O=C(OCC)C", "[CH3][CH2]O[C:3](C)=O", "CCOC=O")
    )
    for other in others:
        assert np.array_equal(other.energies, first.energies)
    assert not np.array_equal(another.energies, first.energies)


def test_the_spread_of_an_ensemble(make_untrained):
    members = [make_untrained(seed) for seed in (0, 1, 2)]
    (one,) = molflt.adsorb("O", "Ag", members, n_guesses=5)
    structures = [guess.structure for guess in one.guesses]
    each = np.stack([molflt.load(member).predict(structures) for member in members])
    assert one.energies == pytest.approx(each.mean(axis=0), abs=1e-5)
    assert one.uncertainty_eV == pytest.approx(np.hypot(each[:, one.best].std(ddof=1), PLACING), abs=1e-5)
    assert bars_of([one])[1] == pytest.approx([one.uncertainty_eV])
    with pytest.warns(DeprecationWarning, match="uncertainty is now uncertainty_eV"):
        assert one.uncertainty == one.uncertainty_eV


@pytest.mark.parametrize(
    ("smiles", "on", "message"),
    [
        ("[NH4+]", "Pt", r"\[NH4\+\]: has a net charge of \+1"),
        ("[C]=O", "Pt", r"carbon monoxide is \[C-\]#\[O\+\]"),
        ("CO", "Pt", r"'CO' is methanol \(CH4O\) as a SMILES, and reads as carbon monoxide as a formula"),
        ("CO.O", "Pt", "holds several molecules"),
        ("SC", "Pt", "was not trained on S, so its energies would be meaningless"),
        ("OC", "Pt,Xx", "'Xx' is neither a metal nor a file"),
        ("OC", (), "no surface: name metals, such as Ag"),
        ("C" * 14, "Cu", r"does not fit into the cell of Cu\(111\)"),
    ],
)
def test_what_it_cannot_do(untrained, smiles, on, message):
    with pytest.raises(molflt.InputError, match=message) as caught:
        molflt.adsorb(smiles, on, untrained, n_guesses=2)
    assert "\n" not in str(caught.value)


def test_a_rough_geometry_is_warned_of(untrained):
    with pytest.warns(InputWarning, match="rough geometry: N–N 1.40 Å is a guess"):
        molflt.adsorb("O=NN=O", "Pt", untrained, n_guesses=1)


def test_a_model_of_another_kind(untrained, make_untrained):
    with pytest.raises(molflt.InputError, match="predicts y_init, the energy of the given geometry"):
        molflt.adsorb("OC", "Pt", make_untrained(1, target="y_init"))
    (one,) = molflt.adsorb("[C-]#[O+]", "Pt", make_untrained(2), n_guesses=1)
    assert one.energies.shape == (1,)


def test_command(molflt, untrained, tmp_path):
    command = ("adsorb", "CCO", "--on", "Pt,Fe", "--model", untrained, "--guesses", 4, "-o")
    for name in ("a.csv", "a.extxyz", "a.html"):
        result = molflt(*command, tmp_path / name)
        assert result.status == 0, result
        assert result.err.endswith(f"2 surfaces in {tmp_path / name}\n")
        assert "Fe(110)" in result.out
        assert "ethanol (C2H6O, CCO) on Pt, Fe" in result.out
        assert "±: combines nothing known of the model with 0.08 eV for the choice of the placement" in result.err
        assert (
            "inside the training domain, of up to 20 the lowest; 'outside' if fewer than 25 % are inside"
            in result.err
        )
        assert result.err.count("\n") == 6
    with (tmp_path / "a.csv").open(encoding="utf-8") as handle:
        table = list(csv.DictReader(handle))
    structures = read(tmp_path / "a.extxyz", index=":")
    assert [row["metal"] for row in table] == ["Pt", "Fe"]
    for row, atoms in zip(table, structures, strict=True):
        assert f"{float(row['y_relaxed_eV']):.2f}" in result.out
        assert atoms.info["predicted_y_relaxed"] == float(row["y_relaxed_eV"])
        assert row["guesses"] == "4"
        assert (atoms.info["adsorbate"], atoms.info["metals"]) == ("CCO", row["metal"])
        assert atoms[48:].get_chemical_formula() == "C2H6O"
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert (page.count('class="figure"'), page.count('<div class="structure"')) == (1, 2)
    assert "ethanol (C2H6O, CCO) on Pt, Fe" in page
    again = molflt(*command, tmp_path / "a.csv")
    assert (again.status, again.err.count("\n")) == (2, 1)
    wrong = molflt("adsorb", "[Na+]", "--on", "Pt", "--model", untrained, "-o", tmp_path / "b.html")
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)
    assert not (tmp_path / "b.html").exists()


def test_own_models_judge_any_surface(untrained):
    """Planes, coverages and radicals by a model that states no domain, but not elements that it never saw."""
    results = molflt.adsorb("[CH3]", ["Pt:211", "W"], untrained, coverage="1/2", n_guesses=3)
    assert [one.surface for one in results] == ["Pt(211)", "W(110)"]
    assert [one.coverage for one in results] == [0.5, 0.5]
    assert np.isfinite(results[0].energies).all()
    assert np.isnan([*results[1].energies, results[1].energy]).all()
    assert results[1].doubt.endswith("so no energy is given: the model was not trained on W")
    # Guesses are there for whoever wants to compute them.
    assert {len(guess.structure.tags) for guess in results[1].guesses} == {len(results[1].guess.structure.tags)}


def test_what_the_shipped_model_never_saw():
    """A plane, a coverage, a radical and a small molecule have no energy, each for its reason; the rest has."""
    model = molflt.load("pretrained:fg")
    cases = {
        ("CC=O", "Pt:100", None): r"^Pt\(100\): outside .* and this is Pt\(100\) with one to 9$",
        ("CC=O", "Pt", "1/4"): r"and this is Pt\(111\) with one to 4$",
        ("[CH3]", "Pt", None): "pretrained:fg was trained on no radicals$",
        ("[OH]", "Au", None): "pretrained:fg was trained on no radicals$",
        ("molecule:CH3", "Au", None): "pretrained:fg was trained on no radicals$",
        ("[C-]#[O+]", "Pt", None): "2 adsorbate atoms, and at least 4 in training",
        ("O", "Pt", None): "3 adsorbate atoms, and at least 4 in training",
    }
    for (smiles, on, coverage), reason in cases.items():
        with pytest.warns(InputWarning, match="few or no placements are inside the training domain"):
            (one,) = molflt.adsorb(smiles, on, model, coverage=coverage, n_guesses=2)
        assert re.search(reason, one.doubt), one.doubt
        assert np.isnan([one.energy, one.lowest, one.uncertainty_eV]).all()
    (one,) = molflt.adsorb("CC=O", "Pt:111", model, coverage="1/12", n_guesses=2)
    assert np.isfinite([one.energy, one.lowest, one.uncertainty_eV]).all()
