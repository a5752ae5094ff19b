"""Parts of a predicted energy, and attention of one atom: a row of every attention matrix.

With queries and keys held fixed, the result of a layer before its output projection is linear in the values, for
each head and channel separately:

    out_ihc = Σ_j A^h_ij v_jhc

so with one channel of values, whatever its content, the vector-Jacobian product of ``out`` with respect to them,
its cotangent one at atom i in every head, is row i of all A^h. That is exact, never forms a matrix of n² entries
where the layer does not, and relies only on a property shared by all mechanisms: values pass through ``dropout`` as
(n_atoms, n_heads, head_dim), and the heads, one after the other, enter ``output``. If the far field carries only
some of the channels (``far_dim``), the matrix is that of these; the others have its near part.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.data import Data

from molflt.attention.geometry import Geometry
from molflt.attention.matrices import MatrixAttention
from molflt.attention.mechanism import AttentionLayer
from molflt.data.batch import StructureCollater
from molflt.data.images import nearest_image
from molflt.data.progress import track
from molflt.errors import InputError
from molflt.model.encoder import full_precision
from molflt.model.energy import EnergyModel, ModelOutput
from molflt.model.file import LoadedModel
from molflt.prediction.predict import choose_device, lowest_of, unlabelled


@dataclass(frozen=True)
class Explanation:
    """Decomposed energy of one structure: energy = mean + Σ_i (reference_i + learnt_i).

    The network is free to share an energy among atoms in any way: only the sum was trained.

    Attributes:
        structure: the explained structure, without labels.
        target: the field that the model predicts.
        energy: eV, the same as from ``molflt predict``.
        mean: eV, the constant that belongs to no atom; 0 where the model has reference energies per element.
        reference: (n_atoms,) eV, float64: the reference energy of each atom's element; zeros without references.
        learnt: (n_atoms,) eV, float64: the network's contribution of each atom.
        atom: index of the atom that attends.
        attention: (n_layers, n_heads, n_atoms), float64, dimensionless: the weights with which that atom sums the
            values of all atoms, in the last pass where the stack is recycled; images of one atom are summed.
            Rows sum to one in softmax, Performer and their kin. In the attention of molflt the near part sums to
            one and the far part, of either sign, comes on top.
        distance: (n_atoms,) Å, from that atom to the nearest image of every atom.
    """

    structure: Data
    target: str
    energy: float
    mean: float
    reference: np.ndarray
    learnt: np.ndarray
    atom: int
    attention: np.ndarray
    distance: np.ndarray

    @property
    def name(self) -> str:
        """Origin of the structure."""
        return str(self.structure.name)

    @property
    def atomic_energies(self) -> np.ndarray:
        """(n_atoms,) eV: reference plus learnt part."""
        return self.reference + self.learnt

    @property
    def share(self) -> np.ndarray:
        """(n_atoms,): |learnt_i| / Σ_j |learnt_j|, with sum one; zeros if nothing was learnt."""
        size = np.abs(self.learnt)
        total = size.sum()
        return size / total if total > 0 else size


def explain(
    loaded: LoadedModel, structure: Data, atom: int | None = None, device: torch.device | str = "cpu"
) -> Explanation:
    """Explain the energy of one structure.

    This takes one evaluation, then for every layer one evaluation and one backward pass of its attention alone.

    Args:
        loaded: the model.
        structure: under ``molflt.vocabulary``; its neighbour list is rebuilt. Of several conformers, the one with
            the lowest energy is explained.
        atom: whose attention to give, counted from 0; None: the one whose learnt part is furthest from the median of
            all, which in a slab is an adsorbate rather than one metal atom of many.
        device: where to compute.

    Raises:
        InputError: there is no such atom, or the energy of the structure cannot be computed.
    """
    n_atoms = int(structure.num_nodes)
    if atom is not None and not 0 <= atom < n_atoms:
        raise InputError(
            f"{structure.name}: has no atom {atom}; its {n_atoms} atoms are counted from 0 to {n_atoms - 1}"
        )
    structure = unlabelled(lowest_of(loaded, structure, choose_device(str(device))))
    model = loaded.model.to(choose_device(str(device)))
    collate = StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
    batch = collate([structure]).to(model.device)
    output, calls = recorded_forward(model, batch)
    energy = float(output.energy)
    if not np.isfinite(energy):
        raise InputError(
            f"{structure.name}: the model's energy is not finite; check the structure for overlapping atoms"
        )
    statistics = model.standardiser
    reference = statistics.references[batch.atomic_numbers]
    learnt = (output.atomic_energies - reference).cpu().numpy()
    chosen = int(np.abs(learnt - np.median(learnt)).argmax()) if atom is None else atom
    rows = [attention_row(call, chosen).cpu() for call in track(calls, "attention", len(calls))]
    return Explanation(
        structure=structure,
        target=loaded.metadata.target,
        energy=energy,
        mean=float(statistics.mean),
        reference=reference.cpu().numpy(),
        learnt=learnt,
        atom=chosen,
        attention=torch.stack(rows).to(torch.float64).numpy(),
        distance=_distances(structure, chosen),
    )


def _distances(structure: Data, atom: int) -> np.ndarray:
    positions = structure.positions.numpy()
    cell, pbc = structure.cell[0].numpy(), structure.pbc[0].numpy()
    here = np.broadcast_to(positions[atom], positions.shape)
    nearest = nearest_image(here, positions, cell, pbc, str(structure.name))
    return np.asarray(np.linalg.norm(nearest - here, axis=1))


@dataclass
class LayerCall:
    """Arguments of one layer's call.

    Attributes:
        layer: the attention.
        x: (n_atoms, dim), its input.
        geometry: of the batch.
        prepared: its result for the positions alone (see :meth:`AttentionLayer.prepare`).
        vectors: (n_atoms, 9, C), for a layer that has them.
    """

    layer: AttentionLayer[Any, Any]
    x: Tensor
    geometry: Geometry
    prepared: Any
    vectors: Tensor | None = None


def recorded_forward(model: EnergyModel, batch: Any) -> tuple[ModelOutput, list[LayerCall]]:
    """Evaluate a batch and record the input of every attention layer.

    If the stack is recycled, the inputs are those of the last pass.
    """
    calls: dict[int, LayerCall] = {}

    def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(module, AttentionLayer)
        calls[id(module)] = LayerCall(module, *arguments)

    layers = [module for module in model.encoder.modules() if isinstance(module, AttentionLayer)]
    with ExitStack() as hooks, torch.no_grad():
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(record))
        output = model(batch)
    return output, [calls[id(layer)] for layer in layers]


def attention_row(call: LayerCall, atom: int) -> Tensor:
    """Compute the weights with which one atom sums the values of all.

    Periodic images of an atom are summed, and the far field's weight is added to the near one's. Weights of
    mechanisms with a far field or with features of either sign may be negative.

    Args:
        call: of a layer in evaluation mode.
        atom: index in the batch of the atom that attends.

    Returns:
        (n_heads, n_atoms), dimensionless; zero for atoms of other structures. Of matrices, the weights of messages.
    """
    if isinstance(call.layer, MatrixAttention):
        with torch.no_grad(), full_precision(call.x.device):
            return call.layer.row(atom, call.geometry, call.prepared)
    values: list[Tensor] = []
    outputs: list[Tensor] = []

    def one_channel(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
        values.append(torch.zeros_like(output[..., :1]).requires_grad_())
        return values[-1]

    def keep_heads(module: nn.Linear, arguments: tuple[Tensor]) -> Tensor:
        outputs.append(arguments[0])
        # The projection's result is not needed, but its input must have the expected width.
        return call.x.new_zeros(call.x.shape[0], module.in_features)

    dropout, projection = call.layer.get_submodule("dropout"), call.layer.get_submodule("output")
    values_hook, heads_hook = (
        dropout.register_forward_hook(one_channel),
        projection.register_forward_pre_hook(keep_heads),
    )
    # Detached, so that the graph holds only the path of the values, not queries, keys and positions.
    frozen = {name: parameter.detach() for name, parameter in call.layer.named_parameters()}
    with values_hook, heads_hook, torch.enable_grad(), full_precision(call.x.device):
        vectors = [] if call.vectors is None else [call.vectors]
        functional_call(call.layer, frozen, (call.x, call.geometry, call.prepared, *vectors))
        (out,) = outputs
        (value,) = values
        assert out.shape[1] == value.shape[1], "one number for every head of the values"
        cotangent = torch.zeros_like(out)
        cotangent[atom] = 1.0
        (row,) = torch.autograd.grad(out, value, cotangent)
    return row.squeeze(2).transpose(0, 1)
