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

from molflt.attention.config import FourierConfig, LocalConfig, MatricesConfig, MethodKeys
from molflt.attention.kernels.random_features import RandomFeatureKernel, positive
from molflt.attention.mechanism import COMPONENTS, FourierPositions
from molflt.attention.moments import second_power, typical_neighbours
from molflt.attention.smooth import envelope, shortened
from molflt.errors import InputError
from molflt.export.far_field import FarField
from molflt.export.layers import Layer, MatrixLayer, Radial
from molflt.model.encoder import EncoderLayer
from molflt.model.energy import EnergyModel
from molflt.vocabulary import TAG_ADSORBATE


def refuse_what_cannot_be_exported(model: EnergyModel) -> None:
    """Raise InputError for a model whose far field or feature map is not implemented here."""
    config, kernels = model.config.attention, [m for m in model.modules() if isinstance(m, RandomFeatureKernel)]
    own = isinstance(config, FourierConfig | LocalConfig | MatricesConfig) and all(
        kernel.component is positive for kernel in kernels
    )
    if not own:
        raise InputError(
            f"attention of mechanism '{config.mechanism}' cannot be exported; 'fourier', 'local' and 'matrices' can, "
            "with the kernel of the presets"
        )
    if model.config.charges:
        raise InputError("a model with charges (model.charges) cannot be exported yet")


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
        self.radial = Radial(model.radial)
        self.has_far = positions.rpe is not None
        self.contact, self.adsorbate_tag = config.read_out == "contact", TAG_ADSORBATE
        if self.has_far:
            assert isinstance(config.attention, MethodKeys)
            self.far = FarField(positions, config.attention.tolerance)
        layers = [layer for layer in model.encoder.layers if isinstance(layer, EncoderLayer)]
        matrices = isinstance(config.attention, MatricesConfig)
        self.layers = nn.ModuleList(
            MatrixLayer(layer, self.root_neighbours) if matrices else Layer(layer) for layer in layers
        )
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
                x, tensors = layer(
                    x, tensors, i, j, z, basis, fade, self_basis, weighted, powers, pairs, waves, spectra
                )
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
