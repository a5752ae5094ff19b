"""The curves of estimators of f, which show the frequencies that a model sums over."""

import numpy as np
import pytest
import torch

from molflt.data.batch import collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.rdkit import from_smiles
from molflt.report.curves import far_curves
from tests.report.test_rpe_curves import make_model


@pytest.mark.parametrize("spectrum", ["gaussian", "free"])
def test_sampled_frequencies_show_what_the_model_multiplies_with(spectrum):
    model = make_model(mechanism="undamped", spectrum=spectrum)
    found = far_curves(model)
    assert found is not None
    assert found.nodes is not None
    assert found.coefficients is not None
    assert (found.intended is None) == (found.spectrum is None) == (spectrum == "free")
    data = attach_neighbours(from_smiles("CCO"), 4.0, False)
    geometry = model.geometry(collate([data]))
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
