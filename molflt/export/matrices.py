"""A layer of matrices in the operations that TorchScript has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.matrices import MatrixAttention, bounded, multiplied, times
from molflt.export.far_field import convolved
from molflt.model.encoder import EncoderLayer


class MatrixLayer(nn.Module):
    """One layer of matrices, see :class:`molflt.attention.matrices.MatrixAttention`."""

    __constants__ = ("has_far",)

    def __init__(self, layer: EncoderLayer, root_neighbours: float) -> None:
        super().__init__()
        own = layer.attention
        assert isinstance(own, MatrixAttention)
        self.norm, self.root_neighbours = layer.attention_norm, root_neighbours
        self.source_value, self.source_filters, self.source = own.source_value, own.source_filters, own.source
        self.value, self.radial, self.receiver, self.sender = own.value, own.radial, own.receiver, own.sender
        self.near, self.gathered, self.product, self.output = own.near, own.gathered, own.product, own.output
        self.n_heads, self.far_channels, self.has_far = own.n_heads, own.far_channels, len(own.rpe_weights) > 0
        self.lift: Tensor
        self.basis: Tensor
        self.rpe_weights: Tensor
        self.register_buffer("lift", own.lift * own.squares[0].rsqrt()[:, None])
        self.register_buffer("basis", own.basis * own.squares[1].rsqrt()[:, None])
        self.register_buffer("rpe_weights", own.rpe_weights.detach())

    def elements(self, components: Tensor) -> Tensor:
        """(n, 9, C) → (n, 3, 3, C)."""
        return times(self.basis.t(), components).unflatten(1, [3, 3])

    def components(self, elements: Tensor) -> Tensor:
        """(n, 3, 3, C) → (n, 9, C)."""
        return times(self.basis, elements.flatten(1, 2))

    def from_afar(self, values: Tensor, pairs: Tensor, waves: Tensor, spectra: Tensor) -> Tensor:
        """Σ_all f̂_h Y_j, (n, 9, C)."""
        heads = values.unflatten(2, [self.n_heads, -1])
        sent = heads[:, :, :, : self.far_channels].permute(0, 2, 1, 3).flatten(2)
        found = convolved(self.rpe_weights, sent, pairs, waves, spectra).unflatten(2, [values.shape[1], -1])
        return functional.pad(found.permute(0, 2, 1, 3), [0, heads.shape[3] - self.far_channels]).flatten(2)

    def forward(
        self,
        x: Tensor,
        tensors: Tensor,
        i: Tensor,
        j: Tensor,
        z: Tensor,
        basis: Tensor,
        fade: Tensor,
        self_basis: Tensor,
        weighted: Tensor,
        powers: Tensor,
        pairs: Tensor,
        waves: Tensor,
        spectra: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Scalars (n, dim) and matrices (n, 9, C) → the same."""
        h, n = self.norm(x), x.shape[0]
        terms = self.source_filters(weighted) * self.source_value(h)[j]
        around = terms.new_zeros((n, 10, terms.shape[1])).index_add(0, i, powers[:, :, None] * terms[:, None, :])
        tensors = tensors + self.source(times(self.lift, around))
        values = self.value(bounded(tensors))
        hidden = functional.silu(self.radial(basis) + self.receiver(z[i]) + self.sender(z[j]))
        near = self.near(hidden) * (fade / self.root_neighbours)[:, None]
        given = near[:, :, None] * values.flatten(1)[j][:, None]
        summed = given.new_zeros((n, self.n_heads, given.shape[2])).index_add(0, i, given)
        messages = self.gathered(summed.unflatten(2, [values.shape[1], -1]).transpose(1, 2).flatten(2))
        if self.has_far:
            messages = messages + self.from_afar(values, pairs, waves, spectra)
        one, other = self.elements(messages), self.elements(values)
        change = self.product(bounded(self.components(multiplied(one, other) + multiplied(other, one))))
        turned = self.elements(change)
        tensors = tensors + change + self.components(multiplied(turned, turned))
        parts = [tensors[:, :1], tensors[:, 1:4], tensors[:, 4:]]
        return x + self.output(torch.cat([part.square().sum(dim=1) for part in parts], dim=1)), tensors
