"""PaiNN of SchNetPack; imported only where it is installed (.venv-peers)."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils.data import dataloader

from scripts.benchmarks.measuring import UnavailableError
from scripts.benchmarks.plain import PlainBatch

Inputs = dict[str, Any]

if not hasattr(dataloader, "T_co"):
    # SchNetPack imports this name, an annotation, from where newer versions of PyTorch do not have it any more.
    dataloader.T_co = TypeVar("T_co", covariant=True)


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
    """SchNetPack's ASE calculator of an untrained PaiNN, with the neighbour list of matscipy; the cutoff is in Å."""
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
