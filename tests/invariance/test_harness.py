"""The suite passes where it should and fails, property by property, where something has been broken."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from molflt.attention.config import MethodKeys
from molflt.attention.registry import MECHANISMS, attention_config
from molflt.data.ase import from_atoms
from molflt.data.open import open_dataset
from molflt.data.rdkit import from_smiles
from molflt.data.reading import ReadOptions
from molflt.invariance import CHECKS, run_suite
from molflt.invariance.structures import (
    SHARE,
    additivity,
    builtin_structures,
    far_share,
    has_far_field,
    scaled_until_it_matters,
)
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel
from molflt.model.scale_shift import Statistics
from molflt.prediction.predict import unlabelled
from molflt.training.config import preset_config
from tests.attention.structures import STRUCTURES, slab
from tests.model.files import metadata_of

SIZES = {"dim": 16, "n_heads": 4, "n_layers": 2, "ffn_dim": 32, "n_rbf": 8, "cutoff": 4.0}
NARROW = {"sigma_min": 1.5, "sigma_max": 4.0, "n_basis": 4, "n_features": 8}
"""A mechanism takes those that act."""
ATTENTIONS = {
    **{name: name for name in ("flt", "local", "performer", "softmax", "flt-undamped", "ra", "ra-rpe", "lara-rpe")},
    **{name: name for name in ("elu", "relu", "trigrf-qmc")},
    "waves": {"spectrum": "sampled"},
    "both": {"spectrum": "both"},
    "rank one": {"far_rank": 1},
    "rank m": {"far_rank": "m"},
    "lattice": {"frequencies": "lattice"},
    "mesh": {"frequencies": "mesh", "tolerance": 1e-3},
    "vectors": {"vector_channels": 4, "spectrum": "both"},
    "local, vectors": {"mechanism": "local", "vector_channels": 4},
    "undamped, free": {"mechanism": "undamped", "spectrum": "free"},
    "biased ra": {"mechanism": "randomised", "sampling": "biased"},
    **{
        f"undamped with {kernel}": {"mechanism": "undamped", "far_rank": "m", "kernel": kernel}
        for kernel in ("saderf-mm", "oprf-fastfood")
    },
}
"""Every mechanism that is invariant, which concat is not, and a kernel of each kind."""
CONCAT = {"mechanism": "concat"}
_MADE = [attention_config(**{"preset": keys} if isinstance(keys, str) else keys) for keys in ATTENTIONS.values()]
ATTENTIONS |= {name: name for name in MECHANISMS.keys() - {config.mechanism for config in _MADE} - {"concat"}}


def load(config):
    """An untrained model as if from a file, with energies of a realistic size."""
    torch.manual_seed(0)
    model = EnergyModel(config)
    references = {z: -0.1 * z for z in range(1, 119)}
    model.standardiser.load_statistics(Statistics("element", 0.0, 1.0, 1.0, references, 0.1))
    with torch.no_grad():
        model.energy_head.factor.fill_(1.0)
    metadata = metadata_of(config, target="energy", elements=list(range(1, 119)))
    return LoadedModel(model.eval(), metadata, Path("untrained"))


def small(attention):
    config = attention_config(attention) if isinstance(attention, str) else attention_config(**attention)
    acting = {key for key in NARROW.keys() & type(config).model_fields if config.acts(key)} - config.model_fields_set
    return load(ModelConfig(**SIZES, attention=config.model_copy(update={key: NARROW[key] for key in acting})))


def structures(*names):
    return [from_atoms(STRUCTURES[name](), name, ReadOptions(tags="oc20")) for name in names or STRUCTURES]


def verdicts(results, name):
    return {result.verdict for result in results if result.name == name}


FEW = ("molecule", "slab_open", "tiny_cell")
ALSO_SLOW = ("rank one", "mesh")


@pytest.mark.parametrize(
    ("attention", "names"),
    [
        *((attention, FEW) for attention in ATTENTIONS if attention not in ALSO_SLOW),
        *(pytest.param(attention, (), marks=pytest.mark.slow) for attention in ATTENTIONS),
    ],
)
def test_every_property_holds(attention, names):
    loaded, data = small(ATTENTIONS[attention]), structures(*names)
    results = run_suite(loaded, data, n_draws=1)
    assert {result.name for result in results} == {*CHECKS, "dtype"}
    assert {result.far_scaled for result in results} == {False, has_far_field(loaded.model)}
    has_exact_form = isinstance(loaded.model.config.attention, MethodKeys)
    for result in results:
        skipped = result.name == "against exact" and not has_exact_form
        assert result.verdict == ("not applicable" if skipped else "pass"), result


def test_the_published_form_fails_rotation_and_translation():
    results = run_suite(small(CONCAT), structures("molecule", "benzene", "slab"), n_draws=2)
    for name in ("rotation", "reflection", "translation"):
        assert verdicts(results, name) == {"fail"}
        assert max(r.worst for r in results if r.name == name) > 1e-4
    for name in ("padding", "batch-mates", "determinism", "save and load"):
        assert verdicts(results, name) == {"pass"}


BROKEN = {
    "rotation": lambda batch, n_max, energy: energy + batch.positions[:, 0].diff().square().mean(),
    "reflection": lambda batch, n_max, energy: energy + torch.linalg.det(batch.cell.double()).sign(),
    "translation": lambda batch, n_max, energy: energy + 1e-3 * batch.positions.sum(),
    "permutation": lambda batch, n_max, energy: energy + 1e-3 * batch.atomic_numbers[0],
    "image wrapping": lambda batch, n_max, energy: energy + 1e-3 * batch.positions.square().sum(),
    "change of cell": lambda batch, n_max, energy: energy + 1e-3 * batch.cell.square().sum(),
    "supercell": lambda batch, n_max, energy: energy + 1e-3,
    "padding": lambda batch, n_max, energy: energy + 1e-3 * (n_max or 0),
    "batch-mates": lambda batch, n_max, energy: energy + 1e-3 * energy.sum(),
    "determinism": lambda batch, n_max, energy: energy + 1e-3 * torch.rand(()),
}


@pytest.mark.parametrize("name", [*BROKEN, "dtype", "not a number"])
def test_each_check_finds_what_it_is_for(name, monkeypatch):
    """Power: a model that depends on the one thing fails that check, in every precision."""
    sound = EnergyModel.forward

    def broken(self, batch, n_max=None):
        output = sound(self, batch, n_max)
        if name == "dtype":
            # A difference of large numbers, which is zero in exact arithmetic.
            step = output.energy.to(self.energy_head.factor.dtype)
            output.energy = output.energy + ((step + 1e5) - 1e5 - step)
        elif name == "not a number":
            output.energy = output.energy * torch.nan
        else:
            output.energy = BROKEN[name](batch, n_max, output.energy)
        return output

    loaded = small({"mechanism": "local"})
    monkeypatch.setattr(EnergyModel, "forward", broken)
    found = "rotation" if name == "not a number" else name
    checks = {check: CHECKS[check] for check in CHECKS if check == found}
    results = run_suite(loaded, structures("molecule", "slab", "triclinic"), n_draws=2, checks=checks)
    assert verdicts(results, found) == {"fail"}


def test_weights_lost_in_the_file_are_found(monkeypatch):
    monkeypatch.setattr("molflt.invariance.load_model", lambda path: small({"tolerance": 2e-4}))
    loaded = small({})
    with torch.no_grad():
        loaded.model.energy_head.factor.mul_(1.01)
    checks = {"save and load": CHECKS["save and load"]}
    assert verdicts(run_suite(loaded, structures("molecule", "slab"), checks=checks), "save and load") == {"fail"}


def test_far_field_is_made_to_matter():
    model, data = small({}).model.double(), structures(*FEW)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scaled = scaled_until_it_matters(model, data)
    assert 0 <= far_share(model, data) < SHARE <= far_share(scaled, data)
    # The model itself stays what it was.
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    blind = small({"mechanism": "local"}).model
    assert not has_far_field(blind)
    assert scaled_until_it_matters(blind, data) is None


def test_a_method_worse_than_it_says_is_found(monkeypatch):
    """Power: a mesh three times too coarse misses its ε against the exact sum."""
    monkeypatch.setattr("molflt.attention.far.field.spacing_in_widths", lambda tolerance: 1.5)
    checks = {"against exact": CHECKS["against exact"]}
    loaded = small({"frequencies": "mesh", "tolerance": 1e-5})
    results = run_suite(loaded, structures("molecule", "slab"), n_draws=1, checks=checks)
    assert verdicts(results, "against exact") == {"fail"}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["flt", "both"])
def test_oc20_cells(attention):
    folder = Path(os.environ.get("MOLFLT_DATA", "")) / "oc20_is2re"
    if not os.environ.get("MOLFLT_DATA") or not folder.is_dir():
        pytest.skip("MOLFLT_DATA does not name a folder with oc20_is2re")
    data = [unlabelled(open_dataset(folder / name)[i]) for name in ("pyg1.lmdb", "pyg2.lmdb") for i in range(3)]
    results = run_suite(small(ATTENTIONS[attention]), data, n_draws=1)
    for result in results:
        assert result.verdict == "pass", result


def test_additivity_of_fragments():
    """Without a far field they add up to rounding; the far field of random weights makes them feel each other."""
    structures = [from_smiles(smiles) for smiles in ("CCO", "N", "O=C=O")]
    local, far = (load(ModelConfig(**SIZES, attention=attention_config(name))).model for name in ("local", "flt"))
    for model in (local, far):
        model.standardiser.mean.fill_(3.0)
    with torch.no_grad():
        for name, parameter in far.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(30.0)
    found = additivity(local.double(), structures)
    assert found.shape == (3,)
    assert np.abs(found).max() < 1e-9 < 1e-3 < np.abs(additivity(far.double(), structures)).max()
    assert len(additivity(local, [from_atoms(slab(), "slab")])) == 0


def test_not_applicable_where_nothing_is_periodic():
    checks = {name: CHECKS[name] for name in ("image wrapping", "change of cell", "supercell")}
    results = run_suite(small({}), structures("molecule", "linear"), n_draws=1, checks=checks)
    assert {result.verdict for result in results if result.name in checks} == {"not applicable"}


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small", "base"])
def test_presets(preset):
    config = preset_config(preset).model
    data, _ = builtin_structures(range(1, 119))
    assert max(len(d.atomic_numbers) for d in data) <= 200
    for result in run_suite(load(config), data, n_draws=1):
        assert result.verdict == "pass", result
