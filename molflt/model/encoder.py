"""Pre-norm transformer layers with iterative refinement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from molflt.attention.geometry import Geometry
from molflt.attention.mechanism import COMPONENTS, AttentionLayer


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context without autocast.

    Exponentials of attention and sums over atoms keep the dtype of the weights.
    """
    return torch.autocast(device.type, enabled=False)


def normalised(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """``norm(x)``, with a second derivative in half the steps of PyTorch's."""
    found: Tensor = _Normalised.apply(x, norm.weight, norm.bias, norm.eps)
    return found


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        found, *statistics = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x, weight, *statistics)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*_SlopeNormalised.apply(*gradients, *ctx.saved_tensors), None)


class _SlopeNormalised(torch.autograd.Function):
    """Derivatives with respect to x, weight and bias; only the first is differentiable again.

    The first is P(g ∘ weight)/σ with P(u) = u − mean(u) − s mean(u ∘ s), s = (x − µ)/σ.
    """

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        found = _layer_norm_backward(gradient, x, mean, scale, weight)
        ctx.save_for_backward(gradient, x, weight, mean, scale, found[0])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *to_slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, x, weight, mean, scale, slope = ctx.saved_tensors
        along, *of_parameters = to_slopes
        assert of_parameters == [None, None], "parameters have a first derivative only"
        assert along is not None
        turned = _layer_norm_backward(along, x, mean, scale, None)[0]
        standard, share = (x - mean) * scale, weight / x.shape[-1]
        both = turned * gradient
        to_x = standard * (both @ share)[:, None]
        to_x = torch.addcmul(to_x, turned, ((gradient * standard) @ share)[:, None])
        to_x = torch.addcmul(to_x, slope, (along * standard).mean(dim=-1, keepdim=True))
        return turned * weight, to_x * -scale, both.sum(dim=0), None, None


def _layer_norm_backward(
    gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    wanted = [True, weight is not None, weight is not None]
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        gradient.contiguous(), x, x.shape[-1:], mean, scale, weight, weight, wanted
    )
    return found


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)).

    Autocast reaches the feed-forward block only.
    """

    def __init__(self, attention: AttentionLayer[Any, Any], dim: int, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, dim))
        self.dropout = nn.Dropout(dropout)

    def prepare(self, geometry: Geometry, context: Any) -> Any:
        """See :class:`AttentionLayer`."""
        with full_precision(geometry.positions.device):
            return self.attention.prepare(geometry, context)

    def forward(
        self, x: Tensor, vectors: Tensor | None, geometry: Geometry, prepared: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Scalars (n_atoms, dim) and vectors, if any, (n_atoms, 9, C) → the same."""
        # Neither normalisation nor dropout may act on the components of a vector.
        with full_precision(x.device):
            normal = normalised(self.attention_norm, x)
            if vectors is None:
                change = self.attention(normal, geometry, prepared)
            else:
                change, vectors = self.attention(normal, geometry, prepared, vectors)
            x = x + self.dropout(change)
        return x + self.dropout(self.ffn(normalised(self.ffn_norm, x))), vectors


class Encoder(nn.Module):
    """A stack of layers applied ``n_recycles`` times with the same weights, its output fed back.

    This is the iterative refinement of FLT, appendix B.3, where there are 4 recycles.

    Attributes:
        checkpoint_recycles: recompute each recycle in the backward pass instead of keeping its intermediates: the
            memory of one recycle, for a third more time.
    """

    def __init__(
        self, layers: Sequence[AttentionLayer[Any, Any]], dim: int, ffn_dim: int, dropout: float, n_recycles: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(layer, dim, ffn_dim, dropout) for layer in layers)
        self.n_recycles = n_recycles
        self.checkpoint_recycles = False
        self.vector_channels = max((layer.vector_channels for layer in layers), default=0)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, geometry: Geometry, context: Any) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim).

        ``geometry`` and ``context`` serve every layer and recycle.
        """
        layers = [layer for layer in self.layers if isinstance(layer, EncoderLayer)]
        vectors = x.new_zeros(len(x), COMPONENTS, self.vector_channels) if self.vector_channels else None
        if self.n_recycles == 1:
            for layer in layers:
                x, vectors = layer(x, vectors, geometry, layer.prepare(geometry, context))
            return normalised(self.norm, x)
        prepared = [layer.prepare(geometry, context) for layer in layers]

        def once(x: Tensor, vectors: Tensor | None) -> tuple[Tensor, Tensor | None]:
            for layer, ready in zip(layers, prepared, strict=True):
                x, vectors = layer(x, vectors, geometry, ready)
            return x, vectors

        for _ in range(self.n_recycles):
            if self.checkpoint_recycles and torch.is_grad_enabled():
                x, vectors = checkpoint(once, x, vectors, use_reentrant=False)
            else:
                x, vectors = once(x, vectors)
        return normalised(self.norm, x)
