"""No NaN and no infinity, forward or backward, at the edges of what can be asked for."""

import pytest
import torch
from ase import Atoms

from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from tests.attention.structures import STRUCTURES
from tests.invariance.test_harness import ATTENTIONS as MECHANISMS
from tests.model.models import SIZES, check_finite

WIDTHS = {"sigma_max": 5.0, "n_basis": 4}
ATTENTIONS = {
    "flt": WIDTHS,
    "both": {"spectrum": "both", **WIDTHS},
    "rank m": {"far_rank": "m", "n_features": 16, **WIDTHS},
    "performer": "performer",
    "softmax": "softmax",
    "undamped": {"mechanism": "undamped", "far_rank": "m", **WIDTHS},
    "flt-concat": "flt-concat",
}


def far_away():
    atoms = STRUCTURES["molecule"]()
    atoms.positions += 1e4
    return atoms


AWKWARD = {
    "one atom": [STRUCTURES["atom"]()],
    "no neighbours": [Atoms("He3", [[0, 0, 0], [0, 0, 40.0], [0, 400.0, 0]])],
    "all sorts": [
        Atoms("H2", [[0, 0, 0], [0, 0, 0.32]]),
        far_away(),
        *(STRUCTURES[name]() for name in ("atom", "slab", "tiny_cell")),
    ],
}
"""Apart where nothing else in the batch may hide that there is no edge."""


def make_model(attention):
    torch.manual_seed(0)
    return EnergyModel(ModelConfig(**SIZES, attention=attention))


@pytest.mark.parametrize("attention", [*MECHANISMS.values(), "flt-concat"], ids=[*MECHANISMS, "flt-concat"])
def test_finite(attention):
    check_finite(make_model(attention), AWKWARD["all sorts"])


@pytest.mark.parametrize(
    ("case", "autocast"),
    [("one atom", False), ("no neighbours", False), pytest.param("all sorts", True, id="bfloat16")],
)
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_finite_where_little_is_there_or_of_little_precision(attention, case, autocast):
    check_finite(make_model(attention), AWKWARD[case], autocast)


BOUNDED = ("raw_widths", "raw_scales", "raw_temperature")
EXTREMES = {
    "long queries": ("projection.weight", lambda p: 100 * p),
    "negative weights": ("rpe_weights", lambda p: -10 * p.abs()),
    "widest": (BOUNDED, lambda p: torch.full_like(p, 60.0)),
    "narrowest": (BOUNDED, lambda p: torch.full_like(p, -60.0)),
}


@pytest.mark.parametrize(("endings", "change"), EXTREMES.values(), ids=EXTREMES)
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_finite_at_extreme_parameters(attention, endings, change):
    model = make_model(attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(endings):
                parameter.copy_(change(parameter))
    check_finite(model, [STRUCTURES[name]() for name in ("molecule", "slab", "atom", "tiny_cell")], autocast=True)


def test_far_from_the_origin_is_the_same():
    """1e4 Å away float32 has 1e-3 Å left; positions are centred in float64 before that shows."""
    model = make_model("flt")
    near = check_finite(model, [STRUCTURES["molecule"]()])
    torch.testing.assert_close(check_finite(model, [far_away()]), near, rtol=1e-6, atol=1e-6)
