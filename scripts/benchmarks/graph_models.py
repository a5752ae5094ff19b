"""Models of molflt, and torch_geometric's SchNet and DimeNet++, on given neighbour lists.

As they come, the latter two build their graphs themselves, without periodic images and with compiled extensions
(torch-cluster, torch-sparse). Here they take molflt's neighbour list, and the triplets of DimeNet++ come from
:func:`triplets`; every weight and every operation after that is torch_geometric's. Elements and edges are in the
convention of ``molflt.vocabulary``: edge (i, j) carries what j sends to i, and Δ_ij = r_i − r_j.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.models import DimeNetPlusPlus, SchNet, dimenet

from molflt.attention.registry import ATTENTIONS
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.training.config import PRESETS
from scripts.benchmarks.peers import FIELDS, PlainBatch

Inputs = dict[str, Any]

# Sympy takes up to a minute over the formulas of this layer. It has no weights: models of all widths share one.
dimenet.SphericalBasisLayer = cache(dimenet.SphericalBasisLayer)


def model_config(preset: str, attention: str) -> ModelConfig:
    """Configuration of a preset's model with another attention."""
    sizes = dict(PRESETS[preset]["model"])
    changes = ATTENTIONS[attention]
    own = sizes.get("attention", {}) if "mechanism" not in changes else {}
    sizes["attention"] = {**own, **changes}
    return ModelConfig.model_validate(sizes)


class MolfltEnergy(nn.Module):
    """The energy model of a preset, with an attention that ``model.attention`` takes."""

    def __init__(self, preset: str, attention: str = "flt") -> None:
        super().__init__()
        self.model = EnergyModel(model_config(preset, attention))

    def prepare(self, batch: PlainBatch) -> Any:
        """Fields and neighbour list, as a loader gives them; geometry is part of the model."""
        return SimpleNamespace(**{name: getattr(batch, name) for name in FIELDS})

    def forward(self, inputs: Any) -> Tensor:
        """(n_structures,) energies."""
        return self.model(inputs).energy

    def loss(self, inputs: Any, batch: PlainBatch) -> Tensor:
        """Of a training step: energies, and the relaxed displacement that the auxiliary head learns."""
        output = self.model(inputs)
        loss = (output.energy - batch.target).square().mean()
        if output.displacement is not None:
            loss = loss + (output.displacement - batch.displacement).abs().mean()
        return loss


class SchNetEnergy(nn.Module):
    """torch_geometric's SchNet, its graph given."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.model = SchNet(interaction_graph=self._graph, **sizes)
        self.graph: tuple[Tensor, Tensor] | None = None

    def _graph(self, positions: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.graph

    def prepare(self, batch: PlainBatch) -> Inputs:
        """Sender and receiver of every edge, and its length."""
        return {
            "z": batch.atomic_numbers,
            "pos": batch.positions.float(),
            "batch": batch.batch,
            "graph": (batch.edge_index.flip(0), batch.edge_vectors.norm(dim=1)),
        }

    def forward(self, inputs: Inputs) -> Tensor:
        """(n_structures,) energies."""
        self.graph = inputs["graph"]
        return self.model(inputs["z"], inputs["pos"], inputs["batch"]).squeeze(-1)


class DimeNetEnergy(nn.Module):
    """torch_geometric's DimeNet++ on given edges and triplets, its forward pass line by line."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.model = DimeNetPlusPlus(out_channels=1, **sizes)

    def prepare(self, batch: PlainBatch) -> Inputs:
        """Lengths, triplets, angles."""
        edges, vectors = batch.edge_index, batch.edge_vectors
        kj, ji = triplets(edges, batch.cell_offsets, len(batch.positions))
        # As in torch_geometric: the angle between r_i − r_j and r_j − r_k.
        along = (vectors[ji] * vectors[kj]).sum(dim=-1)
        across = torch.cross(vectors[ji], vectors[kj], dim=1).norm(dim=-1)
        return {
            "z": batch.atomic_numbers,
            "batch": batch.batch,
            "n_structures": batch.n_structures,
            "edges": edges,
            "distances": vectors.norm(dim=1),
            "angles": torch.atan2(across, along),
            "kj": kj,
            "ji": ji,
        }

    def forward(self, inputs: Inputs) -> Tensor:
        """(n_structures,) energies."""
        model, (i, j), kj, ji = self.model, inputs["edges"], inputs["kj"], inputs["ji"]
        n_atoms = len(inputs["z"])
        radial = model.rbf(inputs["distances"])
        spherical = model.sbf(inputs["distances"], inputs["angles"], kj)
        x = model.emb(inputs["z"], radial, i, j)
        atomic = model.output_blocks[0](x, radial, i, num_nodes=n_atoms)
        for interaction, output in zip(model.interaction_blocks, model.output_blocks[1:], strict=True):
            x = interaction(x, radial, spherical, kj, ji)
            atomic = atomic + output(x, radial, i, num_nodes=n_atoms)
        energy = atomic.new_zeros(inputs["n_structures"])
        return energy.index_add(0, inputs["batch"], atomic.squeeze(-1))


def triplets(edge_index: Tensor, cell_offsets: Tensor, n_atoms: int) -> tuple[Tensor, Tensor]:
    """Pairs of edges k → j → i, without those that lead back to the same image of the same atom.

    Args:
        edge_index: (2, n_edges), (i, j): atom j sends to atom i, in any order.
        cell_offsets: (n_edges, 3) translation of the sender's image.
        n_atoms: atoms.

    Returns:
        kj, ji: (n_triplets,) indices of the two edges.
    """
    receiver, sender = edge_index
    by_receiver = torch.argsort(receiver, stable=True)
    degree = torch.bincount(receiver, minlength=n_atoms)
    first = torch.cumsum(degree, 0) - degree
    # Every edge j → i meets all edges that end at j; these stand together once sorted.
    counts = degree[sender]
    ji = torch.repeat_interleave(torch.arange(len(receiver), device=receiver.device), counts)
    start = torch.cumsum(counts, 0) - counts
    place = torch.arange(len(ji), device=ji.device) - start[ji]
    kj = by_receiver[first[sender[ji]] + place]
    moved = (cell_offsets[kj] + cell_offsets[ji] != 0).any(dim=1)
    kept = (sender[kj] != receiver[ji]) | moved
    return kj[kept], ji[kept]
