"""Rows of attention matrices against recorded outputs, against formulas written out, and what they sum to."""

import pytest
import torch

from molflt.attention.registry import ATTENTIONS, KERNELS
from molflt.report.explain import LayerCall, attention_row, recorded_forward
from tests.attention.layers import near_and_far, prepare
from tests.attention.structures import STRUCTURES, batch_of
from tests.model.models import make_model

NAMED = [name for name in ATTENTIONS if name not in KERNELS]
CASES = {
    **{name: name for name in NAMED if name != "matrices"},
    **{name: name for name in KERNELS if name.endswith("-orf")},
    "rank one": {"far_rank": 1},
    "vectors": {"vector_channels": 4},
    "lattice": {"frequencies": "lattice", "sigma_min": 2.0, "sigma_max": 4.0},
    "mesh": {"frequencies": "mesh", "sigma_max": 4.0},
    "biased randomised": {"mechanism": "randomised", "sampling": "biased"},
}
STOCHASTIC_ROWS = {"softmax", "performer", "ra", "elu", "relu", "lara", "posrf-orf", "flt-concat"}


def record(model, atoms):
    """Values and heads of each layer in a plain evaluation, independent of the code under test."""
    found = []
    handles = []
    for layer in model.encoder.layers:
        seen = {"values": []}
        found.append(seen)
        dropout, output = layer.attention.dropout, layer.attention.output
        handles.append(dropout.register_forward_hook(lambda m, a, out, seen=seen: seen["values"].append(out)))
        handles.append(output.register_forward_pre_hook(lambda m, a, seen=seen: seen.update(out=a[0])))
    config = model.config
    with torch.no_grad():
        model(batch_of([atoms], config.neighbour_cutoff, config.all_pairs_if_isolated))
    for handle in handles:
        handle.remove()
    return found


def calls_of(model, atoms):
    config = model.config
    return recorded_forward(model, batch_of([atoms], config.neighbour_cutoff, config.all_pairs_if_isolated))[1]


def matrix(call):
    return torch.stack([attention_row(call, i) for i in range(call.x.shape[0])], dim=1)


@pytest.mark.parametrize("name", ["molecule", "triclinic"])
def test_rows_of_matrices_times_what_is_sent_are_the_messages(name):
    model, atoms = make_model({"mechanism": "matrices"}), STRUCTURES[name]()
    for call in calls_of(model, atoms):
        layer, seen = call.layer, {}
        sent = torch.randn(len(atoms), 9, layer.vector_channels, dtype=torch.float64)
        rows = torch.stack([attention_row(call, i) for i in range(len(atoms))], dim=1).detach()
        with torch.no_grad():
            far = layer._from_afar(sent.flatten(1), call.geometry, call.prepared)
            layer.gathered.register_forward_pre_hook(
                lambda module, arguments, seen=seen: seen.update(near=arguments[0])
            )
            layer.value.register_forward_hook(lambda module, arguments, out, sent=sent: sent.transpose(0, 1))
            layer(call.x, call.geometry, call.prepared, call.vectors)
        expected = torch.einsum("hij,jkc->kihc", rows, sent)
        size = layer.vector_channels // layer.n_heads
        for h in range(layer.n_heads):
            few = h * size + torch.arange(layer.far_channels)
            found = seen["near"][:, :, h, few] + far[:, :, few]
            torch.testing.assert_close(expected[:, :, h, few], found)
        assert float(far.abs().max()) > 0


@pytest.mark.parametrize("name", ["molecule", "triclinic"])
@pytest.mark.parametrize("case", CASES)
def test_the_matrix_times_the_values_is_the_output(case, name):
    model, atoms = make_model(CASES[case]), STRUCTURES[name]()
    calls = calls_of(model, atoms)
    for call, seen in zip(calls, record(model, atoms), strict=True):
        (value,) = seen["values"]
        carried = slice(getattr(call.layer, "far_channels", None))
        expected = seen["out"].unflatten(1, (*value.shape[1:2], -1))[..., carried]
        out = torch.einsum("hij,jhc->ihc", matrix(call), value[..., carried])
        torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("far_rank", [0, "m"])
@pytest.mark.parametrize("frequencies", ["auto", "mesh"])
def test_of_channels_without_far_field_the_matrix_is_another(frequencies, far_rank):
    """The far field carries one channel of a head: of that the matrix holds, of the next it does not."""
    options = {"far_rank": far_rank, "frequencies": frequencies, "sigma_max": 4.0}
    model = make_model({**options, "far_dim": 4})
    atoms = STRUCTURES["molecule"]()
    (call, *_), (seen, *_) = calls_of(model, atoms), record(model, atoms)
    (value,) = seen["values"]
    out = seen["out"].unflatten(1, (4, -1))
    found = torch.einsum("hij,jhc->ihc", matrix(call), value)
    torch.testing.assert_close(found[..., 0], out[..., 0], rtol=1e-8, atol=1e-10)
    assert not torch.allclose(found[..., 1], out[..., 1], atol=1e-4)


@pytest.mark.parametrize("case", sorted(STOCHASTIC_ROWS))
def test_rows_sum_to_one(case):
    model = make_model(case)
    for call in calls_of(model, STRUCTURES["slab"]()):
        total = matrix(call).sum(dim=-1)
        torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("name", ["linear", "wire"])
def test_molflt_is_its_formula(name):
    layer, shared, radial, geometry, x, context = prepare(name, {"frequencies": "exact"})
    found = matrix(LayerCall(layer, x, geometry, layer.prepare(geometry, context))).detach()
    near, far = near_and_far(STRUCTURES[name](), layer, shared, radial, *layer.query_key(x))
    expected = ((near + far) / near.sum(dim=1, keepdim=True)).permute(2, 0, 1)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-11)


def test_the_last_pass_counts_and_hooks_are_gone():
    model, atoms = make_model("molflt", n_recycles=3), STRUCTURES["molecule"]()
    inputs = []
    handle = model.encoder.layers[0].attention.register_forward_pre_hook(lambda m, a: inputs.append(a[0]))
    calls = calls_of(model, atoms)
    handle.remove()
    assert len(inputs) == 3
    assert torch.equal(calls[0].x, inputs[-1])
    assert not torch.equal(calls[0].x, inputs[0])
    attention_row(calls[0], 0)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters())
