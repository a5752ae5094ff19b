"""Layers of the model in the operations that TorchScript has."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.kernels.random_features import RandomFeatureKernel
from molflt.attention.layer import FourierAttention
from molflt.attention.matrices import MatrixAttention, bounded
from molflt.attention.mechanism import COMPONENTS
from molflt.attention.near import GaussianDistanceBasis
from molflt.attention.smooth import GAUSSIAN_END
from molflt.export.far_field import convolved
from molflt.model.encoder import EncoderLayer
from molflt.vocabulary import MAX_ATOMIC_NUMBER


class Radial(nn.Module):
    """The Gaussian distance basis."""

    __constants__ = ("pair_types", "even")

    def __init__(self, radial: GaussianDistanceBasis) -> None:
        super().__init__()
        self.cutoff, self.pair_types, self.end = radial.cutoff, radial.pair_types, GAUSSIAN_END
        self.even, self.reach = radial.spacing == "even", -math.expm1(-radial.cutoff)
        steepness = torch.exp(-radial.log_widths.detach()) / math.sqrt(2)
        self.steepness = nn.Buffer(steepness)
        self.shift = nn.Buffer(radial.centres.detach() * steepness)
        if radial.pair_types:
            self.gamma = nn.Buffer(radial.gamma.detach())
            self.beta = nn.Buffer(radial.beta.detach())
        self.n_types = MAX_ATOMIC_NUMBER + 1

    def forward(self, distances: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        """(n,) Å, (n,) and (n,) atomic numbers → (n, n_basis)."""
        x = distances / self.cutoff if self.even else -torch.expm1(-distances) / self.reach
        if self.pair_types:
            pair_type = receiver_types * self.n_types + sender_types
            x = self.gamma[pair_type] * x + self.beta[pair_type]
        z = x[:, None] * self.steepness - self.shift
        return torch.exp(-(z * z).clamp(max=self.end))


class Layer(nn.Module):
    """One layer of the encoder, see :class:`molflt.attention.layer.FourierAttention`."""

    # TorchScript omits the branches of parts that a model lacks.
    __constants__ = ("gated", "has_far", "has_moments", "kernelised")

    def __init__(self, layer: EncoderLayer) -> None:
        super().__init__()
        attention = layer.attention
        assert isinstance(attention, FourierAttention)
        self.attention_norm, self.ffn_norm, self.ffn = layer.attention_norm, layer.ffn_norm, layer.ffn
        self.projection, self.value = attention.query_key.projection, attention.value
        self.bias, self.output = attention.local_rpe.bias, attention.output
        self.root_temperature = nn.Buffer(attention.query_key.temperature.detach().sqrt())
        self.rpe_weights = nn.Buffer(attention.rpe_weights.detach())
        self.n_heads, self.stream = attention.n_heads, attention.stream
        # The far field carries the first channels of every head: of vectors, which come first, and of scalars.
        self.far_vectors = 0 if attention.stream is None else COMPONENTS * attention.stream.far_channels
        self.carried = self.far_vectors + attention.far_channels
        self.has_far = len(attention.rpe_weights) > 0
        self.gated = self.has_far and attention.far_rank == 1
        if self.gated:
            self.query_gate, self.key_gate = attention.query_gate.linear, attention.key_gate.linear
        kernel = attention.kernel
        self.kernelised = isinstance(kernel, RandomFeatureKernel)
        if isinstance(kernel, RandomFeatureKernel):
            self.omega = nn.Buffer(kernel.weights().detach())
        moments = attention.moments
        self.has_moments = moments is not None
        if moments is not None:
            self.moment_value, self.moment_filters = moments.value, moments.filters
            self.mix_first, self.mix_second = moments.mix_first, moments.mix_second
            self.moment_output = moments.output

    def features(self, x: Tensor) -> Tensor:
        """φ(x) = exp(ω·x − |x|²/2)/√m: (n, n_heads, c) → (n, n_heads, m)."""
        exponent = x @ self.omega.t() - 0.5 * (x * x).sum(dim=-1, keepdim=True)
        return torch.exp(exponent) / math.sqrt(float(self.omega.shape[0]))

    def far_sum(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor, waves: Tensor, spectra: Tensor
    ) -> Tensor:
        """Σ_j f̂_h(Δ_ij) c(q_i, k_j) v_j, (n, n_heads, channels)."""
        if self.gated:
            c_q = functional.softplus(self.query_gate(x))[:, :, None]
            c_k = functional.softplus(self.key_gate(x))[:, :, None]
            return c_q * convolved(self.rpe_weights, c_k * v, pairs, waves, spectra)
        if self.kernelised:
            c_q, c_k = self.features(q), self.features(k)
            carried = (c_k[:, :, :, None] * v[:, :, None, :]).flatten(2)
            found = convolved(self.rpe_weights, carried, pairs, waves, spectra).view(
                v.shape[0], v.shape[1], -1, v.shape[2]
            )
            return (c_q[:, :, :, None] * found).sum(dim=2)
        return convolved(self.rpe_weights, v, pairs, waves, spectra)

    def moments(self, x: Tensor, i: Tensor, j: Tensor, weighted: Tensor, powers: Tensor) -> Tensor:
        """(n, 10, channels), see :class:`molflt.attention.moments.LocalMoments`."""
        terms = self.moment_filters(weighted) * self.moment_value(x)[j]
        sums = terms.new_zeros((x.shape[0], 10, terms.shape[1]))
        return sums.index_add(0, i, powers[:, :, None] * terms[:, None, :])

    def read_moments(self, sums: Tensor) -> Tensor:
        """Map moments and their products to features, (n, dim)."""
        zeroth, first, second = sums[:, 0], sums[:, 1:4], sums[:, 4:]
        products = [(first * self.mix_first(first)).sum(dim=1), (second * self.mix_second(second)).sum(dim=1)]
        return self.moment_output(torch.cat([zeroth, products[0], products[1]], dim=1))

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
        """Scalars (n, dim) and vectors (n, 9, C) → the same."""
        n, h = x.shape[0], self.attention_norm(x)
        projected = self.projection(h).view(n, 2, self.n_heads, -1)
        length = self.root_temperature[:, None]
        q, k = functional.normalize(projected[:, 0], dim=-1) * length, functional.normalize(projected[:, 1], dim=-1)
        k = k * length
        v = self.value(h).view(n, self.n_heads, -1)
        n_scalars = v.shape[2]
        # Without moments nothing reads them.
        sums = self.moments(h, i, j, weighted, powers) if self.has_moments else h
        if self.stream is not None:
            tensors = tensors + self.stream.take(sums)
            of_vectors = self.stream.values(self.stream.sender_gate(h), tensors)
            v = torch.cat([of_vectors[:, :, : self.far_vectors], v, of_vectors[:, :, self.far_vectors :]], dim=2)
        near = torch.exp((q[i] * k[j]).sum(dim=-1) + self.bias(basis)) * fade[:, None]
        on_self = torch.exp((q * k).sum(dim=-1) + self.bias(self_basis))
        denominator = on_self.index_add(0, i, near)[:, :, None]
        total = (on_self[:, :, None] * v).index_add(0, i, near[:, :, None] * v[j])
        if self.has_far:
            far = self.far_sum(h, q, k, v[:, :, : self.carried], pairs, waves, spectra)
            total = torch.cat([total[:, :, : self.carried] + far, total[:, :, self.carried :]], dim=2)
        found = total / denominator
        end = self.far_vectors + n_scalars
        change = self.output(found[:, :, self.far_vectors : end].flatten(1))
        if self.has_moments:
            change = change + self.read_moments(sums)
        if self.stream is not None:
            carried = torch.cat([found[:, :, : self.far_vectors], found[:, :, end:]], dim=2)
            tensors = tensors + self.stream.gather(carried)
            of_products, turned = self.stream.products(self.stream.gate(h), tensors)
            change, tensors = change + of_products, tensors + turned
        x = x + change
        return x + self.ffn(self.ffn_norm(x)), tensors


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
        self.rpe_weights = nn.Buffer(own.rpe_weights.detach())

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
        matrices = matrices + change + self.algebra.squared(change)
        read = torch.cat([self.algebra.squares_of(matrices), messages[0], matrices[0]], dim=1)
        return x + self.output(read), matrices.transpose(0, 1)
