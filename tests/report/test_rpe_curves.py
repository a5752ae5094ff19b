"""The curves of the learned RPE against the functions they show and against the model's own far field."""

import numpy as np
import pytest
import torch

from molflt.attention.geometry import geometry_of_batch
from molflt.attention.smooth import envelope
from molflt.data.batch import collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.rdkit import from_smiles
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.report.curves import far_curves, local_curves
from tests.attention.layers import small


def make_model(**attention):
    config = ModelConfig(dim=16, n_heads=2, n_layers=3, ffn_dim=16, n_rbf=8, cutoff=4.0, attention=small(**attention))
    torch.manual_seed(0)
    return EnergyModel(config, seed=1).double()


@pytest.mark.parametrize("spectrum", ["gaussians", "both"])
def test_closed_form(spectrum):
    model = make_model(spectrum=spectrum)
    found = far_curves(model)
    assert found.values.shape == (3, 2, len(found.distances))
    assert found.intended is found.nodes is found.coefficients is None
    members = model.positions.rpe().on_pairs(torch.from_numpy(found.distances) ** 2)
    for values, layer in zip(found.values, model.encoder.layers, strict=True):
        np.testing.assert_allclose(values, (layer.attention.rpe_weights.T @ members).detach(), atol=1e-12)


def test_the_spectrum_is_the_transform():
    found = far_curves(make_model(sigma_min=1.5, sigma_max=4.0))
    for k in (0, 20, 80):
        waves = 4 * np.pi * found.xi**2 * np.sinc(2 * found.xi * found.distances[k])
        inverse = np.trapezoid(found.spectrum * waves, found.xi, axis=-1)
        # the spectrum is shown until it has fallen to a thousandth
        np.testing.assert_allclose(inverse, found.values[..., k], atol=6e-3 * np.abs(found.values).max())


@pytest.mark.parametrize(
    ("attention", "far", "local"),
    [
        ({"mechanism": "local"}, False, True),
        ({"mechanism": "kernelised"}, False, False),
        ({"mechanism": "softmax"}, False, True),
        ({"mechanism": "randomised-rpe"}, True, True),
        ({"mechanism": "randomised"}, False, False),
    ],
)
def test_who_has_what(attention, far, local):
    model = make_model(**attention)
    assert (far_curves(model) is not None) == far
    found = local_curves(model, (6, 8))
    assert (found is not None) == local
    if found is not None:
        assert found.values.shape == (3, 2, len(found.distances))
        assert np.allclose(found.values[..., -1], 0)
        assert (found.values[..., :-1] > 0).all()


def test_local_curve_at_a_distance():
    model = make_model()
    found, k = local_curves(model, (6, 8)), 100
    distance = torch.tensor([found.distances[k]])
    bias = model.encoder.layers[1].attention.local_rpe.bias(model.radial(distance, *torch.tensor([[6], [8]])))
    expected = bias.exp() * envelope(distance, 4.0)
    np.testing.assert_allclose(found.values[1, :, k], expected[0].detach(), rtol=1e-10)


def test_reach_is_where_f_has_ended():
    found = far_curves(make_model(sigma_min=1.0, sigma_max=2.0))
    beyond = np.abs(found.values[..., found.distances > found.reach])
    assert (beyond <= 0.01 * np.abs(found.values).max(axis=(1, 2), keepdims=True)).all()


@pytest.mark.parametrize("spectrum", ["gaussian", "free"])
def test_sampled_frequencies_show_what_the_model_multiplies_with(spectrum):
    model = make_model(mechanism="undamped", spectrum=spectrum)
    found = far_curves(model)
    assert (found.intended is None) == (found.spectrum is None) == (spectrum == "free")
    data = attach_neighbours(from_smiles("CCO"), 4.0, False)
    batch = collate([data])
    geometry = geometry_of_batch(batch, model.layout(batch), model.dtype)
    (field,) = model.positions.method.fields(geometry, model.positions.rpe())
    distance = torch.cdist(geometry.positions, geometry.positions).numpy()
    for layer in range(3):
        weights = model.encoder.layers[layer].attention.rpe_weights
        f = field.matrix(weights)[:, 0].movedim(0, -1).detach().numpy()
        for head in range(2):
            shown = np.interp(distance, found.distances, found.values[layer, head])
            np.testing.assert_allclose(shown, f[..., head], atol=5e-3 * np.abs(f).max())
            a, b = found.coefficients[layer, head], 2 * found.nodes
            np.testing.assert_allclose(
                np.sinc(found.distances[:, None] * b) @ a, found.values[layer, head], atol=1e-6
            )
