"""The common interface: shapes, causality, scale, and what is shared."""

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.sequence.fourier_rpe import GaussianMixtureRpe, LocalRpe
from molflt.literature.sequence.layer import (
    CosformerAttention,
    FourierSequenceAttention,
    LogLinearAttention,
    PerformerSequenceAttention,
    SequenceAttention,
    SoftmaxSequenceAttention,
)
from molflt.literature.sequence.positioned_kernels import ProductKernel
from molflt.literature.sequence.relative_bias import RelativeBias
from tests.literature.sequence.oracles import HEAD_DIM, N_HEADS, assert_differs, dense, generator, kernel_of

DIM = N_HEADS * HEAD_DIM
GRID = (3, 4)
N = 12


def rpe_of(family, grid):
    return family(N_HEADS, 2, 4, generator(3), dim=1 if grid is None else 2)


def float_kernel(name, dim=HEAD_DIM):
    """In the precision that all else is built in."""
    return kernel_of(name, dim).float()


def bias_of(grid):
    bias = RelativeBias(N_HEADS, (N,) if grid is None else grid)
    torch.nn.init.normal_(bias.values, generator=generator(4))
    return bias


LAYERS = {
    "softmax": lambda causal, grid: SoftmaxSequenceAttention(DIM, N_HEADS, bias_of(grid), causal),
    "performer": lambda causal, grid: PerformerSequenceAttention(DIM, N_HEADS, float_kernel("posrf-orf"), causal),
    "log-linear": lambda causal, grid: LogLinearAttention(
        DIM, N_HEADS, float_kernel("posrf-orf"), bias_of(grid), causal
    ),
    "flt gaussians": lambda causal, grid: FourierSequenceAttention(
        DIM, N_HEADS, float_kernel("posrf-orf", HEAD_DIM + 8), rpe_of(GaussianMixtureRpe, grid), causal, grid
    ),
    "flt local": lambda causal, grid: FourierSequenceAttention(
        DIM, N_HEADS, float_kernel("relu", HEAD_DIM + 8), rpe_of(LocalRpe, grid), causal, grid
    ),
    "flt product": lambda causal, grid: PerformerSequenceAttention(
        DIM, N_HEADS, ProductKernel(float_kernel("elu"), rpe_of(LocalRpe, grid), grid), causal
    ),
    "cosformer": lambda causal, grid: CosformerAttention(DIM, N_HEADS, N, causal),
}


def layer_of(name, causal, grid=None):
    torch.manual_seed(0)
    return LAYERS[name](causal, grid).double()


def inputs():
    return torch.randn(2, N, DIM, generator=generator(6), dtype=torch.float64)


@pytest.mark.parametrize("grid", [None, GRID])
@pytest.mark.parametrize("name", LAYERS)
def test_no_token_sees_the_future_where_it_must_not(name, grid):
    """And where it may, it does."""
    x = inputs()
    for i in (0, 5, N - 1):
        changed = x.clone()
        changed[:, i] += 1.0
        for causal in (True, False):
            layer = layer_of(name, causal, grid)
            difference = (layer(changed) - layer(x)).detach().abs().amax(dim=(0, 2))
            assert difference[i:].max() > 1e-4
            if causal:
                assert float(difference[:i].max() if i else 0.0) < 1e-10
            elif i:
                assert difference[:i].max() > 1e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_shapes_and_gradients(name, causal):
    layer, x = layer_of(name, causal), inputs().requires_grad_()
    assert isinstance(layer, SequenceAttention)
    out = layer(x)
    assert out.shape == x.shape
    out.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
    assert any(float(p.grad.abs().max()) > 0 for p in layer.parameters())


@pytest.mark.parametrize("name", ["flt gaussians", "flt local", "log-linear", "softmax"])
def test_every_parameter_of_the_mask_learns(name):
    layer = layer_of(name, True)
    layer(inputs()).square().sum().backward()
    mask = layer.kernel.rpe if name.startswith("flt") else layer.bias
    for parameter in mask.parameters():
        assert float(parameter.grad.abs().max()) > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_sequences_of_a_batch_do_not_see_each_other(name, causal):
    layer, x = layer_of(name, causal), inputs()
    torch.testing.assert_close(layer(x)[:1], layer(x[:1]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_shorter_sequences_see_the_same_past(name):
    """Positions count from the start, and a bias is cut to the offsets there are."""
    layer, x = layer_of(name, True), inputs()
    torch.testing.assert_close(layer(x[:, :7]), layer(x)[:, :7], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_order_matters_unless_the_mechanism_knows_no_positions(name):
    layer, x = layer_of(name, False), inputs()
    turned = layer(x.flip(1)).flip(1)
    shuffled = layer(x[:, torch.arange(N) ^ 1])[:, torch.arange(N) ^ 1]
    if name == "performer":
        torch.testing.assert_close(turned, layer(x), rtol=1e-10, atol=1e-10)
    else:
        assert_differs(shuffled, layer(x))


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_layer_is_scaled_by_the_root_of_the_head_width(causal):
    """Projections and heads written out."""
    layer, x = layer_of("softmax", causal), inputs()
    layer.bias.values.data.zero_()
    with torch.no_grad():
        q, k, v = (
            torch.stack([t[..., h * HEAD_DIM : (h + 1) * HEAD_DIM] for h in range(N_HEADS)], dim=1)
            for t in (x @ layer.projection.weight.T + layer.projection.bias).split(DIM, dim=-1)
        )
        heads = dense(torch.exp(q @ k.transpose(-1, -2) / HEAD_DIM**0.5), v, causal)
        wanted = layer.output(torch.cat([heads[:, h] for h in range(N_HEADS)], dim=-1))
    torch.testing.assert_close(layer(x).detach(), wanted, rtol=1e-10, atol=1e-10)


def test_normalised_queries_do_not_depend_on_their_length():
    x = inputs()
    found = {}
    for normalise in (True, False):
        torch.manual_seed(0)
        layer = LogLinearAttention(DIM, N_HEADS, float_kernel("posrf-orf"), bias_of(None), True, normalise).double()
        before = layer(x)
        layer.projection.weight.data[: 2 * DIM] *= 2
        layer.projection.bias.data[: 2 * DIM] *= 2
        found[normalise] = float((layer(x) - before).detach().abs().max())
    assert found[True] < 1e-10
    assert found[False] > 1e-4


def test_layers_can_share_an_rpe():
    rpe = rpe_of(LocalRpe, None)
    layers = torch.nn.Sequential(
        *(FourierSequenceAttention(DIM, N_HEADS, float_kernel("elu", HEAD_DIM + 8), rpe, True) for _ in range(2))
    )
    assert sum(p is rpe.weights for p in layers.parameters()) == 1


def test_refusals():
    with pytest.raises(InputError, match="heads"):
        CosformerAttention(7, 2, 4, True)
    with pytest.raises(InputError, match="future"):
        PerformerSequenceAttention(DIM, N_HEADS, float_kernel("oprf-orf"), True)
    with pytest.raises(InputError, match="future"):
        LogLinearAttention(DIM, N_HEADS, float_kernel("saderf-orf"), bias_of(None), True)
    PerformerSequenceAttention(DIM, N_HEADS, float_kernel("oprf-orf"), False)
