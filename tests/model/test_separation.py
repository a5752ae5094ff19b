"""Two structures far apart have the sum of their energies; and what a global normaliser does to that."""

import pytest
import torch
from ase import Atoms

from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from tests.attention.structures import STRUCTURES, batch_of

WIDTHS = {"sigma_min": 1.5, "sigma_max": 4.0, "n_basis": 4}
METHODS = {
    "exact": ({"frequencies": "exact"}, 1e-12),
    "quadrature": ({"frequencies": "quadrature", "tolerance": 1e-6}, 1e-6),
    "lattice": ({"frequencies": "lattice", "tolerance": 1e-5}, 1e-5),
    "mesh": ({"frequencies": "mesh", "tolerance": 1e-4}, 1e-4),
    "exact, rank m": ({"frequencies": "exact", "far_rank": "m"}, 1e-12),
    "RA": ({"mechanism": "randomised", "positional_mask": True, "frequencies": "exact"}, 1e-12),
}


def energy(attention: dict, atoms: Atoms) -> float:
    torch.manual_seed(0)
    config = ModelConfig(dim=16, n_heads=4, n_layers=2, ffn_dim=32, cutoff=4.0, n_rbf=8, attention=attention)
    model = EnergyModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(10.0)
        return float(model(batch_of([atoms], config.neighbour_cutoff, config.all_pairs_if_isolated)).energy)


def apart(gap: float) -> tuple[Atoms, Atoms, Atoms]:
    one, two = STRUCTURES["molecule"](), STRUCTURES["benzene"]()
    two.positions += (gap, 0.3 * gap, -0.1 * gap)
    return one, two, one + two


@pytest.mark.parametrize("method", list(METHODS))
def test_energies_of_separate_structures_add_up(method):
    attention, tolerance = METHODS[method]
    one, two, both = apart(50.0)
    total = energy({**WIDTHS, **attention}, one) + energy({**WIDTHS, **attention}, two)
    assert energy({**WIDTHS, **attention}, both) == pytest.approx(total, abs=10 * tolerance * abs(total))


def test_close_structures_and_global_normalisers_do_not_add_up():
    """Power: at 5 Å the far field shows, and with a normaliser over all atoms no distance is enough."""
    one, two, both = apart(5.0)
    exact = {**WIDTHS, "frequencies": "exact"}
    total = energy(exact, one) + energy(exact, two)
    assert abs(energy(exact, both) - total) > 1e-4 * abs(total)
    for mechanism in ("softmax", "kernelised"):
        one, two, both = apart(50.0)
        total = energy({"mechanism": mechanism}, one) + energy({"mechanism": mechanism}, two)
        assert abs(energy({"mechanism": mechanism}, both) - total) > 1e-5 * abs(total)
