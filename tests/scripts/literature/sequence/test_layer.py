"""One layer for every mechanism on sequences: causality, gradients, order, scale, and what is shared."""

import pytest
import torch

from scripts.literature.sequence.fourier_rpe import GaussianMixtureRpe, LocalRpe
from scripts.literature.sequence.layer import (
    KernelisedSequenceAttention,
    LogLinearAttention,
    SoftmaxSequenceAttention,
)
from scripts.literature.sequence.positioned_kernels import ConcatenatedKernel, CosformerKernel
from scripts.literature.sequence.relative_bias import RelativeBias
from scripts.literature.sequence.segments import Segments
from tests.scripts.literature.sequence.oracles import HEAD_DIM, N_HEADS, assert_differs, dense, generator, kernel_of

DIM = N_HEADS * HEAD_DIM
GRID = (3, 4)
N = 12


def rpe_of(family, grid):
    return family(N_HEADS, 2, 4, generator(3), dim=1 if grid is None else 2)


def float_kernel(name, dim=HEAD_DIM):
    return kernel_of(name, dim).float()


def bias_of(grid):
    bias = RelativeBias(N_HEADS, (N,) if grid is None else grid)
    torch.nn.init.normal_(bias.values, generator=generator(4))
    return bias


def kernelised(kernel, causal):
    return KernelisedSequenceAttention(DIM, N_HEADS, kernel, causal)


def flt(kernel, family, causal, grid):
    return kernelised(ConcatenatedKernel(float_kernel(kernel, HEAD_DIM + 8), rpe_of(family, grid), grid), causal)


LAYERS = {
    "softmax": lambda causal, grid: SoftmaxSequenceAttention(DIM, N_HEADS, bias_of(grid), causal),
    "performer": lambda causal, grid: kernelised(float_kernel("posrf-orf"), causal),
    "log-linear": lambda causal, grid: LogLinearAttention(
        DIM, N_HEADS, float_kernel("posrf-orf"), bias_of(grid), causal
    ),
    "flt gaussians": lambda causal, grid: flt("posrf-orf", GaussianMixtureRpe, causal, grid),
    "flt local": lambda causal, grid: flt("relu", LocalRpe, causal, grid),
    "cosformer": lambda causal, grid: kernelised(CosformerKernel(HEAD_DIM, N), causal),
}


def layer_of(name, causal, grid=None):
    torch.manual_seed(0)
    return LAYERS[name](causal, grid).double()


def inputs():
    return torch.randn(2, N, DIM, generator=generator(6), dtype=torch.float64)


@pytest.mark.parametrize("grid", [None, GRID])
@pytest.mark.parametrize("name", LAYERS)
def test_no_token_sees_the_future_where_it_must_not(name, grid):
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
def test_gradients_reach_everything_and_batch_mates_do_not_see_each_other(name, causal):
    layer, x = layer_of(name, causal), inputs().requires_grad_()
    out = layer(x)
    assert out.shape == x.shape
    torch.testing.assert_close(out[:1], layer(x[:1]), rtol=1e-10, atol=1e-10)
    for gradient in torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]):
        assert torch.isfinite(gradient).all()
        assert float(gradient.abs().max()) > 0


@pytest.mark.parametrize("name", LAYERS)
def test_positions_count_except_in_the_performer(name):
    """Two tokens exchanged exchange their outputs, and nothing else, only where positions are unknown."""
    layer, x, order = layer_of(name, False), inputs(), torch.arange(N) ^ 1
    turned = layer(x[:, order])[:, order]
    if name == "performer":
        torch.testing.assert_close(turned, layer(x), rtol=1e-10, atol=1e-10)
    else:
        assert_differs(turned, layer(x))
    # They count from the start, and a bias is cut to the offsets there are: a shorter sequence sees the same past.
    causal = layer_of(name, True)
    torch.testing.assert_close(causal(x[:, :7]), causal(x)[:, :7], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_layer_is_scaled_by_the_root_of_the_head_width(causal):
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


def test_kernels_that_see_the_future_are_refused():
    with pytest.raises(ValueError, match="future"):
        kernelised(float_kernel("oprf-orf"), True)
    with pytest.raises(ValueError, match="future"):
        LogLinearAttention(DIM, N_HEADS, float_kernel("saderf-orf"), bias_of(None), True)
    kernelised(float_kernel("oprf-orf"), False)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_segments_are_contiguous_and_cover_everything(n):
    weights = Segments(3)(torch.zeros(1, 1, n, 4, dtype=torch.float64), None)
    member = weights > 0
    assert bool((member.sum(dim=0) == 1).all())
    assert bool((torch.diff(member.to(torch.int64).argmax(dim=0)) >= 0).all())
    full = member.any(dim=1)
    torch.testing.assert_close(weights.sum(dim=1)[full], torch.ones(int(full.sum()), dtype=torch.float64))
