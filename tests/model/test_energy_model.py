"""The whole model: what it must not depend on, and that it would show if it did."""

import numpy as np
import pytest
import torch
from ase.build import make_supercell

from molflt.attention.config import ATTENTION_PRESETS
from molflt.literature.names import KERNELS
from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from molflt.model.standardiser import Statistics
from tests.attention.structures import STRUCTURES, batch_of, random_rotation, rotated

ATTENTIONS = {
    "molflt": "molflt",
    "flt": "flt",
    "rank one": {"far_rank": 1},
    "rank m": {"far_rank": "m"},
    "quadrature": {"frequencies": "quadrature", "sigma_min": 2.0, "sigma_max": 4.0, "tolerance": 1e-5},
    "lattice": {"frequencies": "lattice", "sigma_min": 2.0, "sigma_max": 4.0},
    "free spectrum": {"frequencies": "sampled", "spectrum": "free"},
    "no far field": {"far_field": False},
    "performer": "performer",
    "softmax": "softmax",
}
PUBLISHED = "flt-concat"
LITERATURE = {
    **{name: name for name in ATTENTION_PRESETS if name not in (*ATTENTIONS, PUBLISHED)},
    **{f"flt with {kernel}": {"far_rank": "m", "frequencies": "sampled", "kernel": kernel} for kernel in KERNELS},
}


def make_model(attention, dtype=torch.float64, recycles: int = 1) -> EnergyModel:
    """Generic weights, with the far field scaled up until it matters and tags that weigh alike."""
    torch.manual_seed(0)
    sizes = {"dim": 16, "n_heads": 4, "n_layers": 2, "ffn_dim": 32, "n_rbf": 8, "n_recycles": recycles}
    config = ModelConfig(**sizes, pair_types=True, attention=attention)
    model = EnergyModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(30.0)
            if "radial" in name and name.endswith(("gamma", "beta")):
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.energy_head.factor.fill_(1.0)
    references = {z: -0.1 * z for z in range(1, 119)}
    model.standardiser.load_statistics(Statistics("element", 0.3, 2.0, references, 0.1))
    return model.to(dtype).eval()


def energies(model: EnergyModel, atoms, n_max: int | None = None) -> torch.Tensor:
    config = model.config
    with torch.no_grad():
        return model(batch_of(atoms, config.neighbour_cutoff, config.all_pairs_if_isolated), n_max).energy


def all_structures():
    return [make() for make in STRUCTURES.values()]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative to the energy, and to 1 eV, half the standard deviation of these models, where it crosses zero."""
    return float(((a - b).abs() / b.abs().clamp(min=1.0)).max())


@pytest.mark.parametrize(
    "attention", [*ATTENTIONS.values(), *LITERATURE.values(), PUBLISHED], ids=[*ATTENTIONS, *LITERATURE, PUBLISHED]
)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_alone_in_a_batch_padded_and_reordered_agree(attention, dtype, bound):
    model, structures = make_model(attention, dtype), all_structures()
    together = energies(model, structures)
    alone = torch.cat([energies(model, [a]) for a in structures])
    padded = energies(model, structures, n_max=31)
    random = np.random.default_rng(0)
    shuffled = energies(model, [a[random.permutation(len(a))] for a in structures])
    turned = energies(model, structures[::-1]).flip(0)
    for other in (alone, padded, shuffled, turned):
        assert relative(other, together) < bound


@pytest.mark.parametrize("attention", [*ATTENTIONS.values(), *LITERATURE.values()], ids=[*ATTENTIONS, *LITERATURE])
def test_invariant_to_rotation_reflection_translation_and_image(attention):
    model, structures = make_model(attention), all_structures()
    expected = energies(model, structures)
    random = np.random.default_rng(0)
    moved = []
    for i, atoms in enumerate(structures):
        a = rotated(atoms, seed=i)
        a.positions += random.uniform(-50, 50, size=3)
        images = random.integers(-2, 3, size=(len(a), 3)) * np.array(a.pbc)
        a.positions += images @ np.asarray(a.cell)
        moved.append(a)
    # lattice and quadrature hold to their tolerance where an axis does not repeat or nodes follow the diameter
    tolerance = (
        model.config.attention.tolerance if attention in (ATTENTIONS["lattice"], ATTENTIONS["quadrature"]) else 0
    )
    assert relative(energies(model, moved), expected) < max(1e-10, 10 * tolerance)


@pytest.mark.parametrize(
    "attention", [*ATTENTIONS.values(), *LITERATURE.values(), PUBLISHED], ids=[*ATTENTIONS, *LITERATURE, PUBLISHED]
)
def test_trains_as_it_is_built(attention):
    """Single precision without a conversion, and a finite gradient for every parameter that is used."""
    torch.manual_seed(0)
    config = ModelConfig(dim=16, n_heads=4, n_layers=1, ffn_dim=32, n_rbf=8, attention=attention)
    model = EnergyModel(config)
    kinds = {t.dtype for name, t in model.named_parameters() if "standardiser" not in name}
    assert kinds == {torch.float32}
    structures = [STRUCTURES[name]() for name in ("molecule", "slab", "atom")]
    output = model(batch_of(structures, config.neighbour_cutoff, config.all_pairs_if_isolated))
    (output.energy.sum() + output.displacement.square().sum()).backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


def test_the_published_form_fails_the_same_test():
    model, structures = make_model(PUBLISHED), all_structures()
    expected = energies(model, structures)
    turned = energies(model, [rotated(a, seed=i) for i, a in enumerate(structures)])
    assert relative(turned, expected) > 1e-5


@pytest.mark.parametrize("attention", ["molflt", "flt"])
def test_invariance_holds_where_the_far_field_matters(attention):
    """No vacuous pass: with weights such that removing the far field moves energies by 30 % of their spread."""
    model, structures = make_model(attention), all_structures()
    with_far = energies(model, structures)
    turned = energies(model, [rotated(a, seed=i) for i, a in enumerate(structures)])
    assert relative(turned, with_far) < 1e-10
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.zero_()
    without = energies(model, structures)
    references = torch.tensor([float(sum(-0.1 * z for z in atoms.numbers)) for atoms in structures])
    learnt = with_far - references
    spread = (learnt - learnt.mean()).abs().mean()
    assert float((without - with_far).abs().mean()) > 0.3 * float(spread)


@pytest.mark.parametrize(
    "attention", ["molflt", "flt", {"far_rank": "m"}, "softmax", "ra-rpe", "lara-rpe", "saderf-mm"]
)
def test_a_supercell_is_a_multiple(attention):
    """Local denominator: n cells give n times the sum over atoms (DESIGN §3)."""
    model = make_model(attention)
    mean = float(model.standardiser.mean)
    for name in ("slab", "triclinic", "tiny_cell"):
        atoms = STRUCTURES[name]()
        big = make_supercell(atoms, np.array([[2, 0, 0], [1, 1, 0], [0, 0, 1]]))
        assert len(big) == 2 * len(atoms)
        one, two = energies(model, [atoms])[0] - mean, energies(model, [big])[0] - mean
        assert float((two - 2 * one).abs() / two.abs()) < 1e-6


def test_a_performer_sees_no_positions_and_molflt_does():
    for attention, sees in (("performer", False), ("molflt", True)):
        model = make_model(attention)
        model.embedding.neighbour_element.weight.data.zero_()
        atoms = STRUCTURES["molecule"]()
        other = atoms.copy()
        other.rattle(0.1, seed=5)
        moved = float((energies(model, [atoms]) - energies(model, [other])).abs())
        assert (moved > 1e-6) == sees


def test_far_weights_reach_beyond_every_neighbour():
    """Two clusters out of each other's local reach: only the Fourier RPE lets one feel the other."""
    from ase import Atoms

    def pair(distance: float) -> Atoms:
        return Atoms("CONF", [[0, 0, 0], [1.2, 0, 0], [distance, 0, 0], [distance, 1.3, 0]])

    near, further = [pair(9.0)], [pair(11.0)]
    blind, sighted = make_model({"far_field": False}), make_model("molflt")
    assert float((energies(blind, near) - energies(blind, further)).abs()) < 1e-12
    assert float((energies(sighted, near) - energies(sighted, further)).abs()) > 1e-6


def test_recycles_share_weights_and_change_the_result():
    once, thrice = make_model("molflt"), make_model("molflt", recycles=3)
    assert once.n_parameters() == thrice.n_parameters()
    assert not torch.allclose(energies(once, all_structures()), energies(thrice, all_structures()))


@pytest.mark.parametrize("attention", ["molflt", "flt", "softmax"])
def test_displacements_turn_with_the_structure(attention):
    model = make_model(attention)
    structures = [STRUCTURES["slab"](), STRUCTURES["molecule"]()]
    q = random_rotation(7)
    cutoff, pairs = model.config.neighbour_cutoff, model.config.all_pairs_if_isolated
    with torch.no_grad():
        before = model(batch_of(structures, cutoff, pairs)).displacement
        after = model(batch_of([rotated(a, 7) for a in structures], cutoff, pairs)).displacement
    assert float(before.abs().max()) > 1e-6
    torch.testing.assert_close(after, before @ torch.from_numpy(q), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attention", ["molflt", "flt", {"far_rank": "m"}, {"far_rank": 1}, "softmax"])
def test_gradient_of_the_energy_is_its_finite_difference(attention):
    model = make_model(attention)
    batch = batch_of([STRUCTURES["slab"](), STRUCTURES["linear"]()], model.config.neighbour_cutoff, True)
    batch.positions.requires_grad_()
    (gradient,) = torch.autograd.grad(model(batch).energy.sum(), batch.positions)
    assert bool(torch.isfinite(gradient).all())
    step = 1e-4
    for atom, axis in ((0, 2), (12, 0), (14, 1), (15, 2)):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                moved = batch.clone()
                moved.positions = batch.positions.detach().clone()
                moved.positions[atom, axis] += sign * step
                values.append(model(moved).energy.sum())
        assert float((values[0] - values[1]) / (2 * step)) == pytest.approx(float(gradient[atom, axis]), abs=1e-6)
    # the sum over a structure vanishes: nothing depends on where it is
    assert float(gradient[:13].sum(dim=0).abs().max()) < 1e-9


def test_atomic_energies_sum_to_the_energy():
    model = make_model("molflt")
    batch = batch_of(all_structures())
    with torch.no_grad():
        output = model(batch)
    sums = torch.zeros(len(STRUCTURES), dtype=torch.float64).index_add(0, batch.batch, output.atomic_energies)
    torch.testing.assert_close(output.energy, sums + 0.3)


def test_reference_energies_keep_float64_in_a_float32_model():
    model = make_model("molflt", torch.float32)
    exact = -13587.123456789
    model.standardiser.load_statistics(Statistics("element", 0.0, 1.0, {78: exact}, 1.0))
    assert model.float().standardiser.references.dtype == torch.float64
    zero = model.energy_head.factor.data.zero_()
    assert zero.dtype == torch.float32
    assert float(energies(model, [STRUCTURES["tiny_cell"]()])[0]) == exact


def test_first_layers_are_finite_for_awkward_structures():
    from ase import Atoms

    close = Atoms("OO", [[0, 0, 0], [0, 0, 0.1]])
    offset = STRUCTURES["molecule"]()
    offset.positions += 1e4
    lonely = Atoms("HeHe", [[0, 0, 0], [0, 0, 400.0]])
    for attention in ("molflt", "flt", "performer", "softmax", PUBLISHED):
        model = make_model(attention, torch.float32)
        batch = batch_of([close, offset, lonely], model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
        energy = model(batch).energy
        energy.sum().backward()
        assert bool(torch.isfinite(energy).all())
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                assert bool(torch.isfinite(parameter.grad).all()), name


@pytest.mark.parametrize("attention", [*ATTENTIONS.values(), PUBLISHED], ids=[*ATTENTIONS, PUBLISHED])
def test_bfloat16_autocast_stays_near_and_finite(attention):
    """Autocast reaches the feed-forward block only; the output is of the weights' precision."""
    model = make_model(attention, torch.float32).train()
    structures = all_structures()
    full = energies(model, structures)
    batch = batch_of(structures, model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
    assert output.displacement.dtype == torch.float32
    assert 0 < float((output.energy - full).abs().max()) < 0.05 * float((full - full.mean()).abs().mean())
    output.energy.sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
