"""Forces and stress: derivatives of the energy with respect to positions and strain."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from molflt.attention.smooth import reciprocal_vectors
from molflt.model.energy import EnergyModel, ModelOutput


@dataclass
class Derivatives:
    """Output of the model for a batch, with derivatives.

    Attributes:
        output: energies and the rest.
        forces: (n_atoms, 3) eV/Å, float64: F_i = −∂E/∂r_i.
        stress: (n_structures, 3, 3) eV/Å³, float64: σ = (1/V) ∂E/∂ε for the homogeneous strain
            r → r(1 + ε), cell → cell(1 + ε), symmetric, positive under tension as in ASE. Zero where nothing is
            periodic. None if it was not requested.
    """

    output: ModelOutput
    forces: Tensor
    stress: Tensor | None


def derivatives(model: EnergyModel, batch: Any, stress: bool = False, create_graph: bool = False) -> Derivatives:
    """Return energies, forces and optionally stress of a batch with a neighbour list.

    Args:
        model: on the device of the batch.
        batch: see :meth:`EnergyModel.forward`; it is not changed.
        stress: whether to differentiate with respect to strain as well.
        create_graph: whether a loss on the derivatives is to be differentiated in turn.
    """
    # The fused kernels of dense attention have a first derivative only.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH) if create_graph else nullcontext():
        positions = batch.positions.detach().requires_grad_()
        moved = copy.copy(batch)
        moved.positions = positions
        wanted = [positions]
        if stress:
            strain = batch.cell.new_zeros(batch.cell.shape).requires_grad_()
            symmetric = (strain + strain.transpose(1, 2)) / 2
            moved.positions = positions + torch.einsum("ik,ikl->il", positions, symmetric[batch.batch])
            moved.cell = batch.cell + batch.cell @ symmetric
            wanted.append(strain)
        output = model(moved)
        gradients = torch.autograd.grad(output.energy.sum(), wanted, create_graph=create_graph)
    if not stress:
        return Derivatives(output, -gradients[0], None)
    # A structure that is not periodic may still have a cell, but it has no stress.
    volume = reciprocal_vectors(batch.cell)[1].abs()
    periodic = batch.pbc.any(dim=1) & (volume > 0)
    per_volume = torch.where(periodic, 1 / torch.where(periodic, volume, 1.0), 0.0)
    return Derivatives(output, -gradients[0], gradients[1] * per_volume[:, None, None])
