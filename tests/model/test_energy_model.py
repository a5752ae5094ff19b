"""The whole model: additivity, reach, read-out, and precision. Invariance is in tests/invariance."""

import numpy as np
import pytest
import torch
from ase.build import add_adsorbate, fcc111

from molflt.attention.smooth import envelope
from molflt.model.scale_shift import Statistics
from tests.attention.structures import STRUCTURES, random_rotation, rotated
from tests.model.models import all_structures, batch_for, energies, excess, make_model

SEPARABLE = {
    "exact": ({"frequencies": "exact"}, 1e-12),
    "lattice": ({"frequencies": "lattice", "tolerance": 1e-5}, 1e-5),
    "mesh": ({"frequencies": "mesh", "tolerance": 1e-4}, 1e-4),
    "exact, rank m": ({"frequencies": "exact", "far_rank": "m"}, 1e-12),
    "exact, vectors": ({"frequencies": "exact", "vector_channels": 4}, 1e-12),
    "exact, ra": ({"mechanism": "randomised-rpe", "frequencies": "exact", "n_basis": 4}, 1e-12),
    "mesh, vectors": ({"frequencies": "mesh", "tolerance": 1e-4, "vector_channels": 4}, 1e-4),
}


@pytest.mark.parametrize(("attention", "tolerance"), SEPARABLE.values(), ids=SEPARABLE)
def test_energies_of_separate_structures_add_up(attention, tolerance):
    assert excess(make_model({"sigma_min": 1.5, "sigma_max": 4.0, **attention}), 50.0) < 10 * tolerance


def test_recycles_share_weights_and_change_the_result():
    once, thrice = make_model("flt"), make_model("flt", n_recycles=3)
    assert once.n_parameters() == thrice.n_parameters()
    assert not torch.allclose(energies(once, all_structures()), energies(thrice, all_structures()))


@pytest.mark.parametrize("attention", ["flt", {"spectrum": "both"}, "softmax"], ids=str)
def test_displacements_turn_with_the_structure(attention):
    model = make_model(attention)
    structures = [STRUCTURES["slab"](), STRUCTURES["molecule"]()]
    with torch.no_grad():
        before = model(batch_for(model, structures)).displacement
        after = model(batch_for(model, [rotated(a, 7) for a in structures])).displacement
    assert float(before.abs().max()) > 1e-6
    torch.testing.assert_close(after, before @ torch.from_numpy(random_rotation(7)), rtol=1e-9, atol=1e-12)


def test_what_is_far_from_the_adsorbate_counts_only_without_contact():
    """Oracle: the weights from all images by brute force. Power: with ``read_out=all`` a wider slab changes much."""

    def wide(n):
        slab = fcc111("Cu", (n, 3, 2), vacuum=6.0)
        add_adsorbate(slab, "O", 1.5, "ontop", offset=1)
        slab.set_tags([2 if z == 8 else 0 for z in slab.numbers])
        return slab

    small, large = wide(6), wide(12)
    local = {"cutoff": 4.0, "n_layers": 1}
    change = {}
    for read_out in ("contact", "all"):
        model = make_model("local", read_out=read_out, **local)
        model.standardiser.references.zero_()
        a, b = energies(model, [small, large]).tolist()
        change[read_out] = abs(a - b)
    assert change["contact"] < 1e-10 < 0.1 < change["all"]
    model = make_model("local", read_out="contact", **local)
    model.standardiser.references.zero_()
    everything = make_model("local", read_out="all", **local)
    everything.load_state_dict(model.state_dict())
    batch = batch_for(model, [small])
    with torch.no_grad():
        ratio = model(batch).atomic_energies / everything(batch).atomic_energies
    oxygen = small.positions[-1]
    images = np.array([[i, j, 0] for i in (-1, 0, 1) for j in (-1, 0, 1)]) @ small.cell[:]
    d = np.linalg.norm(small.positions[:-1, None] - (oxygen + images), axis=-1)
    reached = envelope(torch.from_numpy(np.minimum(d, 4.0)), 4.0).sum(dim=1)
    torch.testing.assert_close(ratio[:-1], 1 - torch.exp(-2 * reached), rtol=1e-10, atol=1e-12)
    assert float(ratio[-1]) == 1.0
    # A structure without an adsorbate is read out as a whole.
    molecule = STRUCTURES["molecule"]()
    assert torch.equal(energies(model, [molecule]), energies(everything, [molecule]))


def test_reference_energies_keep_float64_in_a_float32_model():
    model = make_model("flt", torch.float32)
    exact = -13587.123456789
    model.standardiser.load_statistics(Statistics("element", 0.0, 1.0, 1.0, {78: exact}, 1.0))
    assert model.float().standardiser.references.dtype == torch.float64
    zero = model.energy_head.factor.data.zero_()
    assert zero.dtype == torch.float32
    assert float(energies(model, [STRUCTURES["tiny_cell"]()])[0]) == exact


@pytest.mark.parametrize("attention", ["flt", {"spectrum": "both"}, "performer", "softmax"], ids=str)
def test_bfloat16_autocast_stays_near(attention):
    """Autocast reaches the feed-forward block only; the output is of the weights' precision."""
    model = make_model(attention, torch.float32).train()
    structures = all_structures()
    full = energies(model, structures)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch_for(model, structures))
    assert output.displacement.dtype == torch.float32
    assert 0 < float((output.energy - full).abs().max()) < 0.05 * float((full - full.mean()).abs().mean())
