"""Settings of attention that exclude each other are refused, each by a message that says what to set."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from molflt.attention.build import interchangeable_method
from molflt.attention.config import AttentionConfig
from molflt.model.config import ModelConfig

CONCAT = {"combine": "concat", "frequencies": "sampled", "moment_channels": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("fourier-transformer", "unknown attention 'fourier-transformer'"),
        ({"sigma_min": 5.0, "sigma_max": 5.0}, "must be smaller than sigma_max"),
        ({**CONCAT, "frequencies": "mesh"}, "set frequencies=sampled"),
        ({**CONCAT, "mechanism": "softmax"}, "combine=concat belongs to mechanism=fourier, not softmax"),
        ({**CONCAT, "spectrum": "free"}, "set spectrum=gaussian"),
        ({"means": True}, "means need frequencies=sampled with directions=random"),
        ({"means": True, "frequencies": "sampled", "directions": "averaged"}, "means need frequencies=sampled"),
        ({"l_max": 8}, "l_max is a budget"),
        ({"l_max": 8, "frequencies": "sampled", "directions": "random"}, "l_max is a budget"),
        ({**CONCAT, "l_max": 8}, "l_max is a budget"),
        ({"order": "linear", "frequencies": "exact"}, "frequencies=exact as it is set has no linear form"),
        ({"order": "linear", "frequencies": "sampled", "directions": "averaged"}, "or set l_max with sampled"),
        ({**CONCAT, "order": "linear"}, "leave order and far_dim at their defaults"),
        ({**CONCAT, "far_dim": 32}, "leave order and far_dim at their defaults"),
        ({"kernel": "gauss"}, "gauss"),
        ({"kernel": "elu", "redraw_every": 10}, "kernel=elu has none: set it to 0"),
        ({"kernel": "posrf-fastfood", "redraw_every": 10}, "what fastfood has learned: set it to 0"),
        ({"positional_mask": True}, "positional_mask belongs to mechanism=randomised"),
        (
            {"mechanism": "randomised", "positional_mask": True, "order": "linear"},
            "mechanism=randomised is quadratic: leave order at auto",
        ),
        ({"mechanism": "softmax", "moment_channels": 8}, "moment_channels belong to mechanism=fourier"),
        ({**CONCAT, "moment_channels": 8}, "moment_channels belong to mechanism=fourier"),
        ({"spectrum": "free"}, "spectrum=free is a property of the sampled estimator: set frequencies=sampled"),
    ],
    ids=str,
)
def test_what_excludes_each_other(settings: Any, message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        AttentionConfig.model_validate(settings)
    assert message in str(refusal.value)


@pytest.mark.parametrize("settings", [CONCAT, {"frequencies": "quadrature", "l_max": 8}, {"mechanism": "softmax"}])
def test_what_does_not(settings: Any) -> None:
    AttentionConfig.model_validate(settings)


@pytest.mark.parametrize(("far_dim", "n_heads"), [(12, 8), (256, 8)])
def test_far_dim_must_fit_the_heads(far_dim: int, n_heads: int) -> None:
    with pytest.raises(ValidationError, match=f"attention.far_dim \\({far_dim}\\) must be a multiple of n_heads"):
        ModelConfig.model_validate({"dim": 128, "n_heads": n_heads, "attention": {"far_dim": far_dim}})
    ModelConfig.model_validate({"dim": 128, "n_heads": n_heads, "attention": {"far_dim": 128}})


def test_sampled_replaces_no_method() -> None:
    with pytest.raises(ValueError, match="it cannot replace another method"):
        interchangeable_method("sampled", 1e-4)
