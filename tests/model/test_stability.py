"""No NaN and no infinity, forward or backward, at the edges of what can be asked for."""

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from tests.attention.structures import STRUCTURES, batch_of

ATTENTIONS = {
    "molflt": {},
    "flt": {"far_rank": "m", "frequencies": "sampled"},
    "flt budget": {"far_rank": "m", "frequencies": "sampled", "l_max": 3, "n_features": 16},
    "quadrature budget": {"frequencies": "quadrature", "l_max": 3, "n_frequencies": 8},
    "random": {"frequencies": "sampled", "directions": "random"},
    "performer": {"mechanism": "kernelised"},
    "softmax": {"mechanism": "softmax"},
    "flt-concat": {"combine": "concat", "frequencies": "sampled", "directions": "random"},
}


def far_away() -> Atoms:
    atoms = STRUCTURES["molecule"]()
    atoms.positions += 1e4
    return atoms


CASES = {
    "one atom": STRUCTURES["atom"],
    "two atoms at 0.1 Å": lambda: Atoms("H2", [[0, 0, 0], [0, 0, 0.1]]),
    "no neighbours": lambda: Atoms("He3", [[0, 0, 0], [0, 0, 40.0], [0, 40.0, 0]]),
    "far from the origin": far_away,
    "periodic": STRUCTURES["slab"],
    "own images": STRUCTURES["tiny_cell"],
}


def make_model(attention: dict) -> EnergyModel:
    torch.manual_seed(0)
    return EnergyModel(ModelConfig(dim=16, n_heads=4, n_layers=2, ffn_dim=32, n_rbf=8, attention=attention))


def check(model: EnergyModel, atoms: list[Atoms], autocast: bool) -> torch.Tensor:
    config = model.config
    batch = batch_of(atoms, config.neighbour_cutoff, config.all_pairs_if_isolated)
    batch.positions.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = model(batch)
    assert bool(torch.isfinite(output.energy).all())
    loss = output.energy.sum()
    if output.displacement is not None:
        assert bool(torch.isfinite(output.displacement).all())
        loss = loss + output.displacement.abs().sum()
    loss.backward()
    for name, tensor in [("positions", batch.positions), *model.named_parameters()]:
        assert tensor.grad is None or bool(torch.isfinite(tensor.grad).all()), name
    return output.energy.detach()


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("attention", list(ATTENTIONS))
def test_finite(attention, case, autocast):
    check(make_model(ATTENTIONS[attention]), [CASES[case]()], autocast)


def extreme_queries(model: EnergyModel) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("projection.weight"):
            parameter.mul_(100.0)


def negative_weights(model: EnergyModel) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("rpe_weights"):
            parameter.copy_(-10 * parameter.abs())


def widest(model: EnergyModel) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith(("raw_widths", "raw_scales", "raw_temperature")):
            parameter.fill_(60.0)


def narrowest(model: EnergyModel) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith(("raw_widths", "raw_scales", "raw_temperature")):
            parameter.fill_(-60.0)


@pytest.mark.parametrize("extreme", [extreme_queries, negative_weights, widest, narrowest])
@pytest.mark.parametrize("attention", list(ATTENTIONS))
def test_finite_at_extreme_parameters(attention, extreme):
    model = make_model(ATTENTIONS[attention])
    with torch.no_grad():
        extreme(model)
    structures = [STRUCTURES[name]() for name in ("molecule", "slab", "atom", "tiny_cell")]
    for autocast in (False, True):
        check(model, structures, autocast)


def test_widths_and_scales_stay_within_their_bounds():
    for fill in (-1e4, -60.0, 60.0, 1e4):
        model = make_model(ATTENTIONS["flt"])
        with torch.no_grad():
            model.positions.rpe.raw_widths.fill_(fill)
            model.positions.method.raw_scales.fill_(fill)
        rpe, method = model.positions.rpe, model.positions.method
        assert bool((rpe.widths > 0).all())
        assert float(rpe.widths.min()) >= rpe.sigma_low * (1 - 1e-6)
        assert float(rpe.widths.max()) <= rpe.sigma_high * (1 + 1e-6)
        assert bool((method.scales > 0).all())


def test_far_from_the_origin_is_the_same():
    """1e4 Å away float32 has 1e-3 Å left; positions are centred in float64 before that shows."""
    model = make_model(ATTENTIONS["molflt"])
    near = check(model, [STRUCTURES["molecule"]()], autocast=False)
    torch.testing.assert_close(check(model, [far_away()], autocast=False), near, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["molflt", "flt budget", "quadrature budget", "random", "performer"])
def test_five_thousand_atoms(attention):
    random = np.random.default_rng(0)
    side = (5000 / 0.1) ** (1 / 3)
    grid = np.stack(np.meshgrid(*[np.linspace(0, side, 18)] * 3, indexing="ij"), -1).reshape(-1, 3)[:5000]
    atoms = Atoms("O5000", grid + random.normal(0, 0.2, grid.shape))
    for autocast in (False, True):
        check(make_model(ATTENTIONS[attention]), [atoms], autocast)
