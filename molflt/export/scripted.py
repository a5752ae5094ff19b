"""Energy of one structure in the operations that TorchScript has, for exported models.

It repeats the model of :mod:`molflt.model.energy` for one structure, with the neighbour list contracted edge by
edge, and the far field of :mod:`molflt.export.far_field`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.config import FourierConfig, LocalConfig
from molflt.attention.kernels.random_features import RandomFeatureKernel, positive
from molflt.attention.layer import FourierAttention
from molflt.attention.mechanism import COMPONENTS, FourierPositions
from molflt.attention.moments import second_power, typical_neighbours
from molflt.attention.near import GaussianDistanceBasis
from molflt.attention.smooth import GAUSSIAN_END, envelope, shortened
from molflt.errors import InputError
from molflt.export.far_field import FarField
from molflt.model.encoder import EncoderLayer
from molflt.model.energy import EnergyModel
from molflt.vocabulary import MAX_ATOMIC_NUMBER, TAG_ADSORBATE


def refuse_what_cannot_be_exported(model: EnergyModel) -> None:
    """Raise InputError for a model whose far field or feature map is not implemented here."""
    config, kernels = model.config.attention, [m for m in model.modules() if isinstance(m, RandomFeatureKernel)]
    own = isinstance(config, FourierConfig | LocalConfig) and all(kernel.component is positive for kernel in kernels)
    if not own:
        raise InputError(
            f"attention of mechanism '{config.mechanism}' cannot be exported; 'fourier' and 'local' can, with the "
            "kernel of the presets"
        )
    if model.config.charges:
        raise InputError("a model with charges (model.charges) cannot be exported yet")


class _Radial(nn.Module):
    """The Gaussian distance basis."""

    __constants__ = ("pair_types",)

    def __init__(self, radial: GaussianDistanceBasis) -> None:
        super().__init__()
        self.cutoff, self.pair_types, self.end = radial.cutoff, radial.pair_types, GAUSSIAN_END
        steepness = torch.exp(-radial.log_widths.detach()) / math.sqrt(2)
        self.steepness = nn.Buffer(steepness)
        self.shift = nn.Buffer(radial.centres.detach() * steepness)
        if radial.pair_types:
            self.gamma = nn.Buffer(radial.gamma.detach())
            self.beta = nn.Buffer(radial.beta.detach())
        self.n_types = MAX_ATOMIC_NUMBER + 1

    def forward(self, distances: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        x = distances / self.cutoff
        if self.pair_types:
            pair_type = receiver_types * self.n_types + sender_types
            x = self.gamma[pair_type] * x + self.beta[pair_type]
        z = x[:, None] * self.steepness - self.shift
        return torch.exp(-(z * z).clamp(max=self.end))


class _Layer(nn.Module):
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

    def convolved(self, v: Tensor, pairs: Tensor, waves: Tensor, spectra: Tensor) -> Tensor:
        """Σ_j f̂_h(Δ_ij) v_j, (n, n_heads, channels)."""
        n, n_heads = v.shape[0], v.shape[1]
        if spectra.shape[0] > 0:
            summed = (waves.t() @ v.reshape(n, -1)).view(-1, n_heads, v.shape[2])
            return (waves @ (summed * (spectra @ self.rpe_weights)[:, :, None]).flatten(1)).view(v.shape)
        far = (self.rpe_weights.t() @ pairs.flatten(1)).view(n_heads, n, n)
        return (far @ v.transpose(0, 1)).transpose(0, 1)

    def far_sum(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor, waves: Tensor, spectra: Tensor
    ) -> Tensor:
        """Σ_j f̂_h(Δ_ij) c(q_i, k_j) v_j, (n, n_heads, channels)."""
        if self.gated:
            c_q = functional.softplus(self.query_gate(x))[:, :, None]
            c_k = functional.softplus(self.key_gate(x))[:, :, None]
            return c_q * self.convolved(c_k * v, pairs, waves, spectra)
        if self.kernelised:
            c_q, c_k = self.features(q), self.features(k)
            carried = (c_k[:, :, :, None] * v[:, :, None, :]).flatten(2)
            found = self.convolved(carried, pairs, waves, spectra).view(v.shape[0], v.shape[1], -1, v.shape[2])
            return (c_q[:, :, :, None] * found).sum(dim=2)
        return self.convolved(v, pairs, waves, spectra)

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


class ScriptedEnergy(nn.Module):
    """The energy of one structure, atom by atom, by a model whose weights are shared."""

    __constants__ = ("has_far",)

    def __init__(self, model: EnergyModel) -> None:
        super().__init__()
        refuse_what_cannot_be_exported(model)
        config, positions = model.config, model.positions
        assert isinstance(positions, FourierPositions)
        self.cutoff, self.n_recycles = config.cutoff, config.n_recycles
        self.root_neighbours = math.sqrt(typical_neighbours(config.cutoff))
        self.radial = _Radial(model.radial)
        self.has_far = positions.rpe is not None
        self.contact, self.adsorbate_tag = config.read_out == "contact", TAG_ADSORBATE
        if isinstance(config.attention, FourierConfig):
            self.far = FarField(positions, config.attention.tolerance)
        layers = [layer for layer in model.encoder.layers if isinstance(layer, EncoderLayer)]
        self.layers = nn.ModuleList(_Layer(layer) for layer in layers)
        self.components, self.vector_channels = COMPONENTS, model.encoder.vector_channels
        embedding, head, statistics = model.embedding, model.energy_head, model.standardiser
        self.element, self.tag, self.neighbour_element = embedding.element, embedding.tag, embedding.neighbour_element
        self.centrality, self.norm, self.mlp = embedding.centrality, model.encoder.norm, head.mlp
        self.factor = nn.Buffer(head.factor.detach())
        self.mean = nn.Buffer(statistics.mean)
        self.std = nn.Buffer(statistics.std)
        self.references = nn.Buffer(statistics.references)

    def atomic_energies(
        self,
        positions: Tensor,
        cell: Tensor,
        pbc: Tensor,
        atomic_numbers: Tensor,
        tags: Tensor,
        edge_index: Tensor,
        cell_offsets: Tensor,
    ) -> Tensor:
        """(n_atoms,) eV, float64: terms of the energy without mean. See :class:`ScriptedMean`."""
        dtype, n, z = self.factor.dtype, positions.shape[0], atomic_numbers.to(torch.int64)
        positions, cell = positions.to(torch.float64), cell.to(torch.float64)
        positions = positions - positions.mean(dim=0)
        i, j = edge_index[0], edge_index[1]
        delta = positions[i] - positions[j] - cell_offsets.to(torch.float64) @ cell
        within = (delta.detach() * delta.detach()).sum(dim=1) < self.cutoff**2
        i, j, delta = i[within], j[within], delta[within].to(dtype)
        distances = delta.square().sum(dim=1).sqrt()
        fade = envelope(distances, self.cutoff)
        basis = self.radial(distances, z[i], z[j])
        self_basis = self.radial(torch.zeros(n, dtype=dtype, device=positions.device), z, z)
        unit = shortened(delta, 1.0)
        powers = torch.cat([torch.ones_like(unit[:, :1]), unit, second_power(unit)], dim=1)
        weighted = basis * (fade / self.root_neighbours)[:, None]
        pairs, waves = torch.zeros((0, 0, 0), dtype=dtype), torch.zeros((0, 0), dtype=dtype)
        spectra = torch.zeros((0, 0), dtype=dtype)
        if self.has_far:
            if bool(pbc.any()):
                waves, spectra = self.far.waves(positions, cell, pbc, dtype)
            else:
                pairs = self.far.pairs(positions, dtype)
        messages = basis * self.neighbour_element(z[j]) * fade[:, None]
        summed = messages.new_zeros((n, messages.shape[1])).index_add(0, i, messages)
        x = self.element(z) + self.tag(tags) + self.centrality(summed)
        tensors = x.new_zeros((n, self.components, self.vector_channels))
        for _ in range(self.n_recycles):
            for layer in self.layers:
                x, tensors = layer(x, tensors, i, j, basis, fade, self_basis, weighted, powers, pairs, waves, spectra)
        own = (self.mlp(self.norm(x)).squeeze(-1) * self.factor[tags]).to(torch.float64)
        adsorbate = tags == self.adsorbate_tag
        if self.contact and bool(adsorbate.any()):
            reached = torch.zeros_like(x[:, 0]).index_add(0, i, fade * adsorbate[j])
            own = own * torch.where(adsorbate, torch.ones_like(reached), 1 - torch.exp(-2 * reached))
        return self.references[z] + self.std * own


class ScriptedMean(nn.Module):
    """Energy, forces and stress of one structure, means over the members of an ensemble.

    Args:
        members: one or more.
        differentiable: whether the derivative of the energy is a force.
    """

    def __init__(self, members: Sequence[ScriptedEnergy], differentiable: bool) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)
        self.differentiable = differentiable

    def forward(
        self,
        positions: Tensor,
        cell: Tensor,
        pbc: Tensor,
        atomic_numbers: Tensor,
        tags: Tensor,
        edge_index: Tensor,
        cell_offsets: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the energy and its derivatives.

        Args:
            positions: (n_atoms, 3) Å, float64.
            cell: (3, 3) Å, float64, lattice vectors as rows; zeros where nothing is periodic.
            pbc: (3,) bool.
            atomic_numbers: (n_atoms,) int64.
            tags: (n_atoms,) int64: 0 sub-surface or untagged, 1 surface, 2 adsorbate.
            edge_index: (2, n_edges) int64, every ordered pair (i, j) up to the cutoff at least, images included.
            cell_offsets: (n_edges, 3): Δ_ij = r_i − r_j − cell_offsets @ cell.

        Returns:
            Energy () eV; forces (n_atoms, 3) eV/Å; stress (3, 3) eV/Å³, zero unless the cell has a volume and is
            periodic. Float64. Forces and stress are empty where the model has none.
        """
        box = cell.detach().to(torch.float64)
        energies: list[Tensor] = []
        forces: list[Tensor] = []
        virials: list[Tensor] = []
        # Members are differentiated one by one, so that only one graph is held at a time.
        for member in self.members:
            at = positions.detach().to(torch.float64).requires_grad_(True)
            strain = torch.zeros((3, 3), dtype=torch.float64, device=at.device).requires_grad_(True)
            symmetric = (strain + strain.t()) / 2
            own = member.atomic_energies(
                at + at @ symmetric, box + box @ symmetric, pbc, atomic_numbers, tags, edge_index, cell_offsets
            )
            energy = member.mean + own.sum()
            energies.append(energy.detach())
            if self.differentiable:
                outgoing: list[Tensor | None] = [torch.ones_like(energy)]
                gradients = torch.autograd.grad([energy], [at, strain], outgoing)
                to_positions, to_strain = gradients[0], gradients[1]
                assert to_positions is not None
                assert to_strain is not None
                forces.append(-to_positions)
                virials.append(to_strain)
        mean = torch.stack(energies).mean(0)
        if not self.differentiable:
            nothing = torch.zeros((0, 3), dtype=torch.float64, device=box.device)
            return mean, nothing, nothing
        volume, virial = torch.linalg.det(box).abs(), torch.stack(virials).mean(0)
        stress = virial / volume if bool(pbc.any()) and bool(volume > 0) else torch.zeros_like(virial)
        return mean, torch.stack(forces).mean(0), stress
