"""No NaN and no infinity, forward or backward, at the edges of what can be asked for."""

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from tests.attention.structures import STRUCTURES
from tests.model.models import EXTREMES, SIZES, check_finite

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


def far_away() -> Atoms:
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


def make_model(attention) -> EnergyModel:
    torch.manual_seed(0)
    return EnergyModel(ModelConfig(**SIZES, attention=attention))


@pytest.mark.parametrize(
    ("case", "autocast"), [*((case, False) for case in AWKWARD), pytest.param("all sorts", True, id="bfloat16")]
)
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_finite(attention, case, autocast):
    check_finite(make_model(attention), AWKWARD[case], autocast)


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_finite_at_extreme_parameters(attention, extreme):
    model = make_model(attention)
    extreme(model)
    check_finite(model, [STRUCTURES[name]() for name in ("molecule", "slab", "atom", "tiny_cell")], autocast=True)


def test_far_from_the_origin_is_the_same():
    """1e4 Å away float32 has 1e-3 Å left; positions are centred in float64 before that shows."""
    model = make_model("flt")
    near = check_finite(model, [STRUCTURES["molecule"]()])
    torch.testing.assert_close(check_finite(model, [far_away()]), near, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["flt", "both", "performer"])
def test_five_thousand_atoms(attention):
    random = np.random.default_rng(0)
    side = (5000 / 0.1) ** (1 / 3)
    grid = np.stack(np.meshgrid(*[np.linspace(0, side, 18)] * 3, indexing="ij"), -1).reshape(-1, 3)[:5000]
    atoms = Atoms("O5000", grid + random.normal(0, 0.2, grid.shape))
    for autocast in (False, True):
        check_finite(make_model(ATTENTIONS[attention]), [atoms], autocast)
