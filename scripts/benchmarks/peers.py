"""Batches of plain tensors, and models that read them; importable without molflt.

PaiNN is SchNetPack's, which has an environment of its own (peers_environment.sh). The others are in
:mod:`scripts.benchmarks.graph_models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import dataloader

from scripts.benchmarks.measuring import UnavailableError

FIELDS = ("positions", "atomic_numbers", "batch", "cell", "pbc", "tags", "edge_index", "cell_offsets")
"""Fields that a loader of molflt gives."""
Structure = dict[str, Tensor]
"""Fields of one structure as in ``molflt.vocabulary``, (1,) target and (n_atoms, 3) displacement."""

if not hasattr(dataloader, "T_co"):
    # SchNetPack imports this name, an annotation, from where newer versions of PyTorch do not have it any more.
    dataloader.T_co = TypeVar("T_co", covariant=True)


@dataclass
class PlainBatch:
    """A batch for every model alike; fields as in ``molflt.vocabulary``, and

    Attributes:
        edge_vectors: (n_edges, 3) float32, Δ_ij = r_i − r_j − offset·cell.
        target: (n_structures,) what a training step fits.
        displacement: (n_atoms, 3) float32, what an auxiliary head fits.
    """

    positions: Tensor
    atomic_numbers: Tensor
    batch: Tensor
    cell: Tensor
    pbc: Tensor
    tags: Tensor
    edge_index: Tensor
    cell_offsets: Tensor
    edge_vectors: Tensor
    target: Tensor
    displacement: Tensor

    @property
    def n_structures(self) -> int:
        """Structures of the batch."""
        return len(self.cell)

    def to(self, device: str | torch.device) -> Self:
        """The batch on another device."""
        return type(self)(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def plain(data: Any, target: float) -> Structure:
    """Fields of a structure that has its neighbour list, and the number that a model fits."""
    relaxed = data.positions_relaxed if "positions_relaxed" in data else data.positions
    own = {name: data[name] for name in FIELDS if name != "batch"}
    return {**own, "target": torch.tensor([target]), "displacement": (relaxed - data.positions).float()}


def collate(structures: Sequence[Structure]) -> PlainBatch:
    """One batch of structures."""
    sizes = torch.tensor([len(one["positions"]) for one in structures])
    starts = (sizes.cumsum(0) - sizes).tolist()
    whole = {name: torch.cat([one[name] for one in structures]) for name in structures[0] if name != "edge_index"}
    whole["batch"] = torch.repeat_interleave(torch.arange(len(structures)), sizes)
    whole["edge_index"] = torch.cat([s["edge_index"] + k for s, k in zip(structures, starts, strict=True)], dim=1)
    places = (whole[name] for name in ("positions", "batch", "cell", "edge_index", "cell_offsets"))
    return PlainBatch(**whole, edge_vectors=edge_vectors(*places))


def edge_vectors(positions: Tensor, batch: Tensor, cell: Tensor, edge_index: Tensor, cell_offsets: Tensor) -> Tensor:
    """(n_edges, 3) float32, Δ_ij = r_i − r_j − offset·cell of every edge (i, j)."""
    receiver, sender = edge_index
    shifts = torch.einsum("ek,ekl->el", cell_offsets.to(cell.dtype), cell[batch[receiver]])
    return (positions[receiver] - positions[sender] - shifts).float()


def build(family: str, sizes: dict[str, Any]) -> nn.Module:
    """The model: ``prepare(batch)`` once, ``forward(inputs)`` gives energies.

    Args:
        family: molflt, schnet, dimenet++ or painn.
        sizes: keyword arguments of its constructor.
    """
    if family == "painn":
        return PaiNNEnergy(**sizes)
    from scripts.benchmarks.graph_models import DimeNetEnergy, MolfltEnergy, SchNetEnergy

    return {"molflt": MolfltEnergy, "schnet": SchNetEnergy, "dimenet++": DimeNetEnergy}[family](**sizes)


def n_parameters(model: nn.Module) -> int:
    """Trained numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class PaiNNEnergy(nn.Module):
    """SchNetPack's PaiNN with a sum over atoms; the cutoff is in Å."""

    def __init__(self, n_atom_basis: int, n_interactions: int, n_rbf: int, cutoff: float) -> None:
        super().__init__()
        try:
            from schnetpack.atomistic import Atomwise
            from schnetpack.nn import CosineCutoff, GaussianRBF
            from schnetpack.representation import PaiNN
        except ImportError as error:
            raise UnavailableError(f"SchNetPack: {error}") from error
        self.representation = PaiNN(n_atom_basis, n_interactions, GaussianRBF(n_rbf, cutoff), CosineCutoff(cutoff))
        self.head = Atomwise(n_in=n_atom_basis, output_key="energy")

    def prepare(self, batch: PlainBatch) -> dict[str, Any]:
        """Edges and vectors from the centre to the neighbour."""
        from schnetpack import properties

        return {
            properties.Z: batch.atomic_numbers,
            properties.idx_i: batch.edge_index[0],
            properties.idx_j: batch.edge_index[1],
            properties.Rij: -batch.edge_vectors,
            properties.idx_m: batch.batch,
        }

    def forward(self, inputs: dict[str, Any]) -> Tensor:
        """(n_structures,) energies."""
        return self.head(self.representation(dict(inputs)))["energy"]


def mace_with_forces(channels: int, cutoff: float, elements: Sequence[int]) -> Any:
    """ASE calculator of an untrained MACE of two layers, vectors and products of four bodies, in float32.

    The other sizes are the defaults of its training command (mace-torch 0.3).
    """
    from e3nn import o3
    from mace.calculators import MACECalculator
    from mace.modules import MACE, RealAgnosticInteractionBlock, RealAgnosticResidualInteractionBlock

    model = MACE(
        r_max=cutoff,
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=3,
        interaction_cls=RealAgnosticResidualInteractionBlock,
        interaction_cls_first=RealAgnosticInteractionBlock,
        num_interactions=2,
        num_elements=len(elements),
        hidden_irreps=o3.Irreps(f"{channels}x0e + {channels}x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        atomic_energies=np.zeros(len(elements)),
        avg_num_neighbors=12.0,
        atomic_numbers=list(elements),
        correlation=3,
        gate=torch.nn.functional.silu,
    )
    return MACECalculator(models=[model.float()], device="cpu", default_dtype="float32")


def painn_with_forces(n_atom_basis: int, n_interactions: int, n_rbf: int, cutoff: float) -> Any:
    """SchNetPack's ASE calculator of an untrained PaiNN, neighbours by matscipy; cutoff in Å."""
    energy = PaiNNEnergy(n_atom_basis, n_interactions, n_rbf, cutoff)
    from schnetpack.atomistic import Forces, PairwiseDistances
    from schnetpack.interfaces import SpkCalculator
    from schnetpack.model import NeuralNetworkPotential
    from schnetpack.transform import MatScipyNeighborList

    class Calculator(SpkCalculator):
        """Takes a model, where SchNetPack's takes the path of a pickled one."""

        def _load_model(self, model: nn.Module) -> nn.Module:
            return model.eval()

    model = NeuralNetworkPotential(
        energy.representation, input_modules=[PairwiseDistances()], output_modules=[energy.head, Forces()]
    )
    return Calculator(model, MatScipyNeighborList(cutoff), energy_unit="eV")
