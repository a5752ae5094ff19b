"""One row of every attention matrix, whatever the mechanism and in whatever order it is contracted.

With queries and keys held fixed, what a layer computes before its output projection is linear in the values, each
head and channel on its own:

    out_ihc = Σ_j A^h_ij v_jhc

so with one channel for values, whatever stands in it, the vector-Jacobian product of ``out`` with respect to them,
its cotangent one at atom i in every head, is row i of all A^h. That is exact, never forms a matrix of n² entries
where the layer does not, and needs to know of a mechanism only what all have in common: values pass through
``dropout`` as (n_atoms, n_heads, head_dim), and the heads, one after the other, enter ``output``. Where the far
field carries only some of the channels (``far_dim``), the matrix is that of these; the others have its near part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from molflt.attention.geometry import Geometry
from molflt.attention.mechanism import AttentionLayer
from molflt.model.encoder import full_precision
from molflt.model.energy_model import EnergyModel, ModelOutput


@dataclass
class LayerCall:
    """What one layer was called with.

    Attributes:
        layer: the attention.
        x: (n_atoms, dim), its input.
        geometry: of the batch.
        prepared: what it made of positions alone (see :meth:`AttentionLayer.prepare`).
        vectors: (n_atoms, 9, C), of a layer that has them.
    """

    layer: AttentionLayer[Any, Any]
    x: Tensor
    geometry: Geometry
    prepared: Any
    vectors: Tensor | None = None


def recorded_forward(model: EnergyModel, batch: Any) -> tuple[ModelOutput, list[LayerCall]]:
    """Evaluate a batch and keep the input of every attention layer, in the last pass where the stack is recycled."""
    calls: dict[int, LayerCall] = {}

    def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(module, AttentionLayer)
        calls[id(module)] = LayerCall(module, *arguments)

    layers = [module for module in model.encoder.modules() if isinstance(module, AttentionLayer)]
    with _hooks([layer.register_forward_pre_hook(record) for layer in layers]), torch.no_grad():
        output = model(batch)
    return output, [calls[id(layer)] for layer in layers]


def attention_row(call: LayerCall, atom: int) -> Tensor:
    """The weights with which one atom takes the values of all.

    Periodic images of an atom are summed, and the far field's weight is added to the near one's. Weights of
    mechanisms with a far field or with features of either sign may be negative.

    Args:
        call: of a layer in evaluation mode.
        atom: index in the batch of the atom that attends.

    Returns:
        (n_heads, n_atoms), dimensionless; zero for atoms of other structures.
    """
    values: list[Tensor] = []
    outputs: list[Tensor] = []

    def one_channel(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
        values.append(torch.zeros_like(output[..., :1]).requires_grad_())
        return values[-1]

    def keep_heads(module: nn.Linear, arguments: tuple[Tensor]) -> Tensor:
        outputs.append(arguments[0])
        # What the projection makes of it is not needed, but it must have the width that it expects.
        return call.x.new_zeros(call.x.shape[0], module.in_features)

    dropout, projection = call.layer.get_submodule("dropout"), call.layer.get_submodule("output")
    handles = [dropout.register_forward_hook(one_channel), projection.register_forward_pre_hook(keep_heads)]
    # Detached, so that the graph holds the way of the values and nothing of queries, keys and positions.
    frozen = {name: parameter.detach() for name, parameter in call.layer.named_parameters()}
    with _hooks(handles), torch.enable_grad(), full_precision(call.x.device):
        vectors = [] if call.vectors is None else [call.vectors]
        functional_call(call.layer, frozen, (call.x, call.geometry, call.prepared, *vectors))
        (out,) = outputs
        (value,) = values
        assert out.shape[1] == value.shape[1], "one number for every head of the values"
        cotangent = torch.zeros_like(out)
        cotangent[atom] = 1.0
        (row,) = torch.autograd.grad(out, value, cotangent)
    return row.squeeze(2).transpose(0, 1)


@contextmanager
def _hooks(handles: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
