"""A layer of matrices in the operations that TorchScript has."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.matrices import MatrixAttention, bounded
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
        self.algebra = own.algebra
        self.rpe_weights: Tensor
        self.register_buffer("rpe_weights", own.rpe_weights.detach())

    def from_afar(self, sent: Tensor, pairs: Tensor, waves: Tensor, spectra: Tensor) -> Tensor:
        """Σ_all f̂_h Y_j, (n, 9 C) → (9, n, C)."""
        heads = sent.unflatten(1, [9, self.n_heads, -1])
        carried = heads[:, :, :, : self.far_channels].transpose(1, 2).flatten(2)
        found = convolved(self.rpe_weights, carried, pairs, waves, spectra).unflatten(2, [9, -1])
        return functional.pad(found.permute(2, 0, 1, 3), [0, heads.shape[3] - self.far_channels]).flatten(2)

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
        matrices = tensors.transpose(0, 1) + self.source(self.algebra.lifted(around))
        values = self.value(bounded(matrices))
        sent = values.transpose(0, 1).flatten(1)
        hidden = functional.silu(self.radial(basis) + self.receiver(z[i]) + self.sender(z[j]))
        near = self.near(hidden) * (fade / self.root_neighbours)[:, None]
        summed = sent.new_zeros((n, self.n_heads, sent.shape[1]))
        summed = summed.index_add(0, i, near[:, :, None] * sent[j][:, None])
        messages = self.gathered(summed.unflatten(2, [9, -1]).permute(2, 0, 1, 3))
        if self.has_far:
            messages = messages + self.from_afar(sent, pairs, waves, spectra)
        change = self.product(bounded(self.algebra(messages, values)))
        matrices = matrices + change + 0.5 * self.algebra(change, change)
        return x + self.output(self.algebra.squares_of(matrices)), matrices.transpose(0, 1)
