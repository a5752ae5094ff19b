"""Every mechanism of the literature as the attention of a whole model: independent, invariant, and able to learn."""

import numpy as np
import pytest
import torch
from ase.build import make_supercell

from molflt.literature.names import PRESETS
from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from tests.attention.structures import STRUCTURES, batch_of, rotated

BUDGET = {"mechanism": "budget", "n_frequencies": 6, "l_max": 3, "sigma_max": 4.0}
SOME = {
    **{name: name for name in ("ra", "ra-rpe", "lara-rpe", "lara", "elu", "relu", "oprf-mm", "saderf-fastfood")},
    "biased": {"mechanism": "randomised", "sampling": "biased"},
    "budget": BUDGET,
    "kernel of flt": {"mechanism": "sampled", "far_rank": "m", "kernel": "oprf-sorf"},
}
PUBLISHED = "flt-concat"
some = pytest.mark.parametrize("attention", SOME.values(), ids=SOME)


def make_model(attention, dtype=torch.float64) -> EnergyModel:
    """Generic weights, with the far field scaled up until it matters and tags that weigh alike."""
    torch.manual_seed(0)
    model = EnergyModel(ModelConfig(dim=16, n_heads=4, n_layers=2, ffn_dim=32, n_rbf=8, attention=attention))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(30.0)
        model.energy_head.factor.fill_(1.0)
    return model.to(dtype).eval()


def energies(model: EnergyModel, atoms, n_max: int | None = None) -> torch.Tensor:
    config = model.config
    with torch.no_grad():
        return model(batch_of(atoms, config.neighbour_cutoff, config.all_pairs_if_isolated), n_max).energy


def structures():
    return [make() for make in STRUCTURES.values()]


def moved(atoms, seed: int):
    """Turned or reflected, shifted, and written down in other periodic images."""
    random = np.random.default_rng(seed)
    out = rotated(atoms, seed)
    out.positions += random.uniform(-50, 50, size=3)
    out.positions += random.integers(-2, 3, size=(len(out), 3)) * np.array(out.pbc) @ np.asarray(out.cell)
    return out


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).abs() / b.abs().clamp(min=1.0)).max())


@pytest.mark.parametrize("attention", [*SOME.values(), PUBLISHED], ids=[*SOME, PUBLISHED])
def test_a_structure_alone_in_a_batch_padded_and_reordered(attention):
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model, together = make_model(attention, dtype), structures()
        expected, random = energies(model, together), np.random.default_rng(0)
        assert off(torch.cat([energies(model, [a]) for a in together]), expected) < bound
        assert off(energies(model, together, n_max=31), expected) < bound
        assert off(energies(model, [a[random.permutation(len(a))] for a in together]), expected) < bound


@some
def test_invariant_to_rotation_reflection_translation_and_image(attention):
    model, atoms = make_model(attention), structures()
    assert off(energies(model, [moved(a, i) for i, a in enumerate(atoms)]), energies(model, atoms)) < 1e-10


def test_the_published_form_fails_the_same_test():
    model, atoms = make_model(PUBLISHED), structures()
    assert off(energies(model, [rotated(a, i) for i, a in enumerate(atoms)]), energies(model, atoms)) > 1e-5


@pytest.mark.parametrize("attention", ["ra-rpe", "lara-rpe"])
def test_a_supercell_is_a_multiple(attention):
    """Local denominator: n cells give n times the sum over atoms (DESIGN §3)."""
    model = make_model(attention)
    mean = float(model.standardiser.mean)
    for name in ("slab", "triclinic", "tiny_cell"):
        atoms = STRUCTURES[name]()
        big = make_supercell(atoms, np.array([[2, 0, 0], [1, 1, 0], [0, 0, 1]]))
        one, two = energies(model, [atoms])[0] - mean, energies(model, [big])[0] - mean
        assert float((two - 2 * one).abs() / two.abs()) < 1e-6


@pytest.mark.parametrize("attention", [*PRESETS, BUDGET], ids=[*PRESETS, "budget"])
def test_trains_as_it_is_built(attention):
    """Single precision without a conversion, and a finite gradient for every parameter that is used."""
    torch.manual_seed(0)
    config = ModelConfig(dim=16, n_heads=4, n_layers=1, ffn_dim=16, n_rbf=6, attention=attention)
    model = EnergyModel(config)
    kinds = {t.dtype for name, t in model.named_parameters() if "standardiser" not in name}
    assert kinds == {torch.float32}
    some = [STRUCTURES[name]() for name in ("molecule", "slab", "atom")]
    output = model(batch_of(some, config.neighbour_cutoff, config.all_pairs_if_isolated))
    (output.energy.sum() + output.displacement.square().sum()).backward()
    attention_gradients = [p.grad for p in model.encoder.layers.parameters() if p.grad is not None]
    assert attention_gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in attention_gradients)
