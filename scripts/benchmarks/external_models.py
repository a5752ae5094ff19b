"""PaiNN of SchNetPack and MACE of mace-torch; imported only where they are installed (.venv-peers)."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import dataloader

from scripts.benchmarks.measuring import UnavailableError
from scripts.benchmarks.plain import PlainBatch

Inputs = dict[str, Any]

if not hasattr(dataloader, "T_co"):
    # SchNetPack imports this name, an annotation, from where newer versions of PyTorch do not have it any more.
    dataloader.T_co = TypeVar("T_co", covariant=True)


class PaiNNEnergy(nn.Module):
    """SchNetPack's PaiNN with a sum over atoms.

    Args:
        n_atom_basis: width.
        n_interactions: layers.
        n_rbf: Gaussians of the distance basis.
        cutoff: Å.
    """

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

    def prepare(self, batch: PlainBatch) -> Inputs:
        """Edges and vectors from the centre to the neighbour."""
        from schnetpack import properties

        return {
            properties.Z: batch.atomic_numbers,
            properties.idx_i: batch.edge_index[0],
            properties.idx_j: batch.edge_index[1],
            properties.Rij: -batch.edge_vectors,
            properties.idx_m: batch.batch,
        }

    def forward(self, inputs: Inputs) -> Tensor:
        """(n_structures,) energies."""
        return self.head(self.representation(dict(inputs)))["energy"]


def painn_with_forces(n_atom_basis: int, n_interactions: int, n_rbf: int, cutoff: float) -> Any:
    """SchNetPack's ASE calculator of an untrained PaiNN, with the neighbour list of matscipy.

    Args:
        n_atom_basis: width.
        n_interactions: layers.
        n_rbf: Gaussians of the distance basis.
        cutoff: Å.
    """
    try:
        from schnetpack.atomistic import Atomwise, Forces, PairwiseDistances
        from schnetpack.interfaces import SpkCalculator
        from schnetpack.model import NeuralNetworkPotential
        from schnetpack.nn import CosineCutoff, GaussianRBF
        from schnetpack.representation import PaiNN
        from schnetpack.transform import MatScipyNeighborList
    except ImportError as error:
        raise UnavailableError(f"SchNetPack: {error}") from error

    class Calculator(SpkCalculator):
        """Takes a model, where SchNetPack's takes the path of a pickled one."""

        def _load_model(self, model: nn.Module) -> nn.Module:
            return model.eval()

    representation = PaiNN(n_atom_basis, n_interactions, GaussianRBF(n_rbf, cutoff), CosineCutoff(cutoff))
    heads = [Atomwise(n_in=n_atom_basis, output_key="energy"), Forces()]
    model = NeuralNetworkPotential(representation, input_modules=[PairwiseDistances()], output_modules=heads)
    return Calculator(model, MatScipyNeighborList(cutoff), energy_unit="eV")


N_ELEMENTS = 89
"""Of the published MACE-MP models."""


class MACEEnergy(nn.Module):
    """mace-torch's ScaleShiftMACE, energy only.

    Args:
        channels: of the hidden states.
        max_l: highest order of the hidden states.
        num_bessel: radial basis functions.
        cutoff: Å.
        correlation: order of the product basis.
        max_ell: highest order of the spherical harmonics of the edges.
        neighbours: mean number of neighbours, a constant of the model.
    """

    def __init__(
        self,
        channels: int,
        max_l: int,
        num_bessel: int,
        cutoff: float,
        correlation: int = 3,
        max_ell: int = 3,
        neighbours: float = 50.0,
    ) -> None:
        super().__init__()
        try:
            from e3nn import o3
            from mace.modules import ScaleShiftMACE, interaction_classes
        except ImportError as error:
            raise UnavailableError(f"mace-torch: {error}") from error
        block = interaction_classes["RealAgnosticResidualInteractionBlock"]
        irreps = [f"{channels}x{l}{'o' if l % 2 else 'e'}" for l in range(max_l + 1)]  # noqa: E741
        self.model = ScaleShiftMACE(
            r_max=cutoff,
            num_bessel=num_bessel,
            num_polynomial_cutoff=5,
            max_ell=max_ell,
            interaction_cls=block,
            interaction_cls_first=block,
            num_interactions=2,
            num_elements=N_ELEMENTS,
            hidden_irreps=o3.Irreps(" + ".join(irreps)),
            MLP_irreps=o3.Irreps("16x0e"),
            atomic_energies=torch.zeros(N_ELEMENTS).numpy(),
            avg_num_neighbors=neighbours,
            atomic_numbers=list(range(1, N_ELEMENTS + 1)),
            correlation=correlation,
            gate=nn.functional.silu,
            radial_MLP=[64, 64, 64],
            radial_type="bessel",
            atomic_inter_scale=1.0,
            atomic_inter_shift=0.0,
        )

    def prepare(self, batch: PlainBatch) -> Inputs:
        """MACE's names; its vectors are receiver minus sender plus shift."""
        receiver = batch.edge_index[0]
        offsets = -batch.cell_offsets.to(batch.cell.dtype)
        shifts = torch.einsum("ek,ekl->el", offsets, batch.cell[batch.batch[receiver]])
        sizes = torch.bincount(batch.batch, minlength=batch.n_structures)
        return {
            "positions": batch.positions.float(),
            "node_attrs": nn.functional.one_hot(batch.atomic_numbers - 1, N_ELEMENTS).float(),
            "edge_index": batch.edge_index.flip(0),
            "shifts": shifts.float(),
            "unit_shifts": offsets.float(),
            "cell": batch.cell.float().flatten(0, 1),
            "batch": batch.batch,
            "ptr": torch.cat([sizes.new_zeros(1), torch.cumsum(sizes, 0)]),
        }

    def forward(self, inputs: Inputs) -> Tensor:
        """(n_structures,) energies."""
        return self.model(dict(inputs), training=self.training, compute_force=False)["energy"]
