"""The energy model, readable whole: embedding → encoder → heads (DESIGN §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from molflt.attention.build import build_attention
from molflt.attention.context import FourierContext
from molflt.attention.far.choice import Contraction
from molflt.attention.geometry import Geometry, build_geometry
from molflt.attention.near import GaussianDistanceBasis, Neighbourhood, local_neighbourhood
from molflt.literature.kernels import redraw
from molflt.model.config import ModelConfig
from molflt.model.embedding import AtomEmbedding
from molflt.model.encoder import Encoder
from molflt.model.heads import DisplacementHead, EnergyHead
from molflt.model.precision import full_precision
from molflt.model.standardiser import Standardiser


@dataclass
class ModelOutput:
    """What the model says of a batch.

    Attributes:
        energy: (n_structures,) eV, float64.
        atomic_energies: (n_atoms,) eV, float64: each atom's term of the sum, reference energy included; a mean
            per structure belongs to no atom and is not in them.
        displacement: (n_atoms, 3) Å, predicted relaxed minus given position; None without the auxiliary head.
        contractions: numerical method and contraction order of each structure's far field; empty for attention
            that has no such choice.
    """

    energy: Tensor
    atomic_energies: Tensor
    displacement: Tensor | None
    contractions: list[Contraction]


class EnergyModel(nn.Module):
    """Energy of a structure, invariant to rotation, translation, reflection, atom order and periodic image.

    Args:
        config: sizes and attention.
        seed: of the random frequencies and features, which are saved with the weights.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.seed = seed
        self.radial = GaussianDistanceBasis(config.n_rbf, config.cutoff, config.pair_types)
        self.embedding = AtomEmbedding(config.dim, config.n_rbf)
        self.positions, layers = build_attention(
            config.attention,
            config.dim,
            config.n_heads,
            config.n_layers,
            config.n_recycles,
            config.n_rbf,
            config.attention_dropout,
            seed,
            config.pair_types,
        )
        self.encoder = Encoder(layers, config.dim, config.ffn_dim, config.dropout, config.n_recycles)
        self.energy_head = EnergyHead(config.dim)
        self.displacement_head = (
            DisplacementHead(config.dim, config.n_heads, config.n_rbf) if config.auxiliary_head else None
        )
        self.standardiser = Standardiser()

    @property
    def dtype(self) -> torch.dtype:
        """Floating dtype of the weights, in which the network computes."""
        return self.energy_head.factor.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.energy_head.factor.device

    def geometry(self, batch: Any, n_max: int | None = None) -> Geometry:
        """The geometry of a ``torch_geometric`` batch with a neighbour list (see ``molflt.vocabulary``).

        Args:
            batch: a collated batch.
            n_max: width of the padded layout; no result depends on it.
        """
        return build_geometry(
            batch.positions,
            batch.atomic_numbers,
            batch.batch,
            batch.cell,
            batch.pbc,
            batch.edge_index,
            batch.cell_offsets,
            self.dtype,
            n_max,
        )

    def forward(self, batch: Any, n_max: int | None = None) -> ModelOutput:
        """Energies of a ``torch_geometric`` batch with a neighbour list.

        Args:
            batch: a collated batch whose neighbour list reaches ``config.neighbour_cutoff``.
            n_max: width of the padded layout; no result depends on it.
        """
        with full_precision(self.device):
            geometry = self.geometry(batch, n_max)
            neighbourhood = local_neighbourhood(geometry, self.radial, self.config.cutoff)
            context = self.positions(geometry, neighbourhood)
            x = self.embedding(geometry, batch.tags, neighbourhood)
        x = self.encoder(x, geometry, context)
        with full_precision(self.device):
            contractions = context.contractions if isinstance(context, FourierContext) else []
            return self._output(x, geometry, neighbourhood, batch.tags, contractions)

    def _output(
        self,
        x: Tensor,
        geometry: Geometry,
        neighbourhood: Neighbourhood,
        tags: Tensor,
        contractions: list[Contraction],
    ) -> ModelOutput:
        statistics = self.standardiser
        atomic = statistics.references[geometry.atomic_numbers] + statistics.std * self.energy_head(x, tags)
        energy = statistics.mean + geometry.sum_over_structures(atomic)
        displacement = None
        if self.displacement_head is not None:
            displacement = self.displacement_head(x, geometry, neighbourhood)
            displacement = displacement * statistics.displacement_std.to(displacement.dtype)
        return ModelOutput(energy, atomic, displacement, contractions)

    def redraw_features(self, seed: int) -> None:
        """Draw the random features of every layer anew, the same for the same seed."""
        redraw(self, torch.Generator().manual_seed(seed))

    def n_parameters(self) -> int:
        """Number of parameters, all of which are trained."""
        return sum(p.numel() for p in self.parameters())
