"""Configurations of models: what is shown acts, what does nothing is refused, and old keys are named with the new."""

from functools import cache

import pytest
import torch
import yaml
from pydantic import TypeAdapter, ValidationError

from molflt.attention.registry import ATTENTIONS, KERNELS, MECHANISMS, attention_config
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.training.config import preset_config
from molflt.training.yaml import load_config, to_yaml
from tests.attention.structures import STRUCTURES, batch_of
from tests.training.runs import written

OTHER_VALUES = {
    "frequencies": ["lattice"], "tolerance": [9e-3], "far_rank": [1, "m"],
    "far_dim": [4], "moment_channels": [3], "vector_channels": [2], "n_basis": [5], "sigma_min": [1.1],
    "sigma_max": [5.0], "isolated_atoms": [7.0], "n_frequencies": [9], "directions": ["random"], "radii": ["random"],
    "proposal": ["own"], "means": [True], "spectrum": ["free", "sampled"], "periodic_radius": [5.0],
    "kernel": ["posrf-iid", "elu"], "n_features": [6], "redraw_every": [3], "n_landmarks": [3], "n_samples": [3],
    "sampling": ["biased"], "dense_cutoff": [6.0], "channels": [16],
}  # fmt: skip
"""For every key whose other values are not found by :func:`other_values`: some that are not its default."""
VARIANTS = {
    "fourier": [{"frequencies": "lattice"}, {"frequencies": "exact"}, {"far_rank": "m"}, {"spectrum": "both"}],
    "matrices": [{"frequencies": "lattice"}, {"frequencies": "exact"}],
    "undamped": [{}, {"directions": "random", "far_rank": "m"}, {"spectrum": "free"}],
}
"""Values that decide which other keys act."""
CASES = [(name, keys) for name in MECHANISMS for keys in VARIANTS.get(name, [{}])]
NARROW = {"sigma_min": 1.5, "sigma_max": 3.0}
"""Of a far field that reaches few periodic images."""


def tensors_and_results(attention):
    """The tensors of a model, and how it contracts two structures, their energies, or why it refuses them.

    One energy is of a model in training: attention that draws while it trains draws the same.
    """
    torch.manual_seed(0)
    config = ModelConfig(dim=8, n_heads=2, n_layers=1, ffn_dim=8, n_rbf=4, cutoff=4.0)
    # Not validated: also with a key that would be refused.
    config.attention = attention
    model = EnergyModel(config).double()
    found = []
    for name, training in (("linear", False), ("triclinic", True)):
        torch.manual_seed(1)
        try:
            with torch.no_grad():
                output = model.train(training)(batch(name, config.neighbour_cutoff, config.all_pairs_if_isolated))
            found += [[str(contraction) for contraction in output.contractions], output.energy.tolist()]
        except InputError as error:
            found.append(str(error))
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}, found


@cache
def batch(name, cutoff, all_pairs):
    return batch_of([STRUCTURES[name]()], cutoff, all_pairs)


def redrawn(attention):
    """Return True if a model has random features that ``redraw_every`` draws anew."""
    model = EnergyModel(ModelConfig(dim=8, n_heads=2, n_layers=1, ffn_dim=8, n_rbf=4, attention=attention))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.redraw_features(1)
    return any(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def shown(config):
    """The keys and values of the attention as ``molflt config`` prints them."""
    whole = preset_config("tiny")
    whole.model.attention = config
    return dict(yaml.safe_load(to_yaml(whole))["model"]["attention"])


@pytest.mark.parametrize(("mechanism", "keys"), CASES)
def test_keys_that_are_shown_act_and_others_are_refused(mechanism, keys):
    """No result depends on a key that is not shown, whatever it is set to behind the configuration's back."""
    fields = MECHANISMS[mechanism].config.model_fields
    given = {"mechanism": mechanism, **keys, **(NARROW if "sigma_max" in fields else {})}
    config = attention_config(**given)
    printed = shown(config)
    assert attention_config(**printed) == config
    tensors, results = tensors_and_results(config)
    for key in fields.keys() - {"mechanism"} - keys.keys():
        values = [value for value in other_values(key, fields[key].default) if allowed(fields[key], value)]
        changed = [tensors_and_results(config.model_copy(update={key: value})) for value in values]
        refused = [does_nothing(key, **{**given, key: value}) for value in values]
        if key in printed:
            assert not any(refused), key
            acts = any(other != (tensors, results) for other in changed)
            assert redrawn(config) if key == "redraw_every" else acts, f"{key} is shown and does nothing"
        else:
            assert all(refused), key
            assert all(other == results for _, other in changed), f"{key} is not shown, but acts"


def other_values(key, default):
    """Values other than the default: those listed, the other truth value, or five thirds of a number."""
    if key in OTHER_VALUES:
        return OTHER_VALUES[key]
    if isinstance(default, bool):
        return [not default]
    assert isinstance(default, int | float), f"name another value of {key} in OTHER_VALUES"
    return [type(default)(5 * default / 3 + (default == 0))]


def allowed(field, value):
    """Return True if a value is of the field's type: the keys of two mechanisms may have one name."""
    try:
        TypeAdapter(field.annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def does_nothing(key, **keys):
    """Return True if a configuration is refused because this key, and no other, does nothing."""
    try:
        attention_config(**keys)
    except ValidationError as error:
        return f"{key} acts only with" in str(error) and "leave it out" in str(error)
    return False


@pytest.mark.parametrize("preset", sorted(ATTENTIONS.keys() - set(KERNELS)))
def test_every_preset_survives_yaml(preset, tmp_path):
    whole = preset_config("tiny")
    whole.model.attention = attention_config(preset)
    assert load_config(written(whole, tmp_path)) == whole


def test_far_dim_must_fit_the_heads():
    for far_dim in (12, 256):
        with pytest.raises(ValidationError, match=rf"attention.far_dim \({far_dim}\) must be a multiple of n_heads"):
            ModelConfig.model_validate({"dim": 128, "n_heads": 8, "attention": {"far_dim": far_dim}})
    ModelConfig.model_validate({"dim": 128, "n_heads": 8, "attention": {"far_dim": 128}})


def test_vectors_must_fit_the_heads():
    with pytest.raises(
        ValidationError, match=r"attention.vector_channels \(12\) must be a multiple of n_heads \(8\)"
    ):
        ModelConfig.model_validate({"dim": 128, "n_heads": 8, "attention": {"vector_channels": 12}})


def test_a_file_of_a_retired_option_that_was_off_is_read():
    assert ModelConfig.model_validate({"repulsion": False}) == ModelConfig()
    with pytest.raises(ValidationError, match="repulsion"):
        ModelConfig.model_validate({"repulsion": True})
