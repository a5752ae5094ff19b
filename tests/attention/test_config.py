"""Configurations by mechanism: only keys that act, and refusals that say what to set instead."""

import re
import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from molflt.attention.build import build_attention
from molflt.attention.kernels import spectraformer
from molflt.attention.registry import (
    ATTENTIONS,
    COMPONENT_FUNCTIONS,
    KERNELS,
    MECHANISMS,
    WEIGHT_MATRICES,
    AttentionConfig,
    attention_config,
    imported,
)
from tests.attention.layers import SIZES

READ = TypeAdapter(AttentionConfig).validate_python


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_preset_is_read_built_and_written(name):
    config = READ(name)
    assert config == attention_config(name)
    assert READ(config.model_dump()) == config
    shared, layers = build_attention(config, SIZES)
    assert len(layers) == SIZES.n_layers
    assert shared.rpe is None or shared.method is not None


def test_names_of_the_registry_lead_somewhere():
    for name, mechanism in MECHANISMS.items():
        assert callable(imported(mechanism.build))
        assert mechanism.config.model_fields["mechanism"].default == name
    assert set(COMPONENT_FUNCTIONS) == set(spectraformer.COMPONENT_FUNCTIONS)
    assert {*spectraformer.DRAWN_MATRICES, "fastfood"} == set(WEIGHT_MATRICES)
    assert set(KERNELS) < set(ATTENTIONS)


def test_configurations_are_read_without_torch():
    code = "import sys, molflt.attention.registry as r; r.attention_config('flt'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("fourier-transformer", "unknown attention 'fourier-transformer'"),
        ("moflt", "did you mean molflt?"),
        (
            {"mechanism": "fourrier"},
            "unknown mechanism 'fourrier'; choose one of fourier, local, matrices, kernelised",
        ),
        ({"sigma_min": 5.0, "sigma_max": 5.0}, "must be smaller than sigma_max"),
        ({"far_rank": "m", "kernel": "posrf-orff"}, "unknown kernel 'posrf-orff'; among those there are: posrf-orf"),
        # Keys of another mechanism, named with those that have them.
        ({"dense_cutoff": 8}, "dense_cutoff is not a key of mechanism=fourier, but of softmax"),
        (
            {"mechanism": "softmax", "moment_channels": 8},
            "moment_channels is not a key of mechanism=softmax, but of fo",
        ),
        ({"mechanism": "local", "sigma_max": 8}, "sigma_max is not a key of mechanism=local"),
        ({"no_such_key": 1}, "Extra inputs are not permitted"),
    ],
    ids=str,
)
def test_what_is_refused(settings, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        READ(settings)


def test_a_default_that_is_written_out_does_no_harm_where_it_does_not_act():
    READ({"n_features": 64})
