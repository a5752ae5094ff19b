"""Dense softmax with a distance bias, at the widths of molflt's layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch
from torch_geometric.utils import to_dense_batch

from molflt.attention.near import GaussianDistanceBasis
from scripts.benchmarks.layers import CUTOFF, DIM, HEADS, N_RBF

_PAIRS_AT_ONCE = 1 << 20
"""Pairs times radial functions held while a bias is made; bounds what the preparation takes."""


class DenseWithBias(nn.Module):
    """Attention softmax(q·k/√d + b_h(|Δ_ij|, z_i, z_j)) v, whose bias is made once and kept.

    The bias is Graphormer's, linear in the radial basis, of the nearest image of every pair; without gradient, which
    is the peer's best case: learning it as well costs a tensor of its size more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(DIM, 3 * DIM)
        self.radial = GaussianDistanceBasis(N_RBF, 2 * CUTOFF)
        self.bias = nn.Linear(N_RBF, HEADS)
        self.output = nn.Linear(DIM, DIM)

    @torch.no_grad()
    def prepare(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Structures of the atoms; bias (n_structures, heads, n_max, n_max), −∞ without an atom."""
        n_structures, dtype = len(batch.cell), self.bias.weight.dtype
        n_max = int(torch.bincount(batch.batch).max())
        shape, device = (n_structures, HEADS, n_max, n_max), batch.batch.device
        bias = torch.full(shape, -torch.inf, dtype=dtype, device=device)
        for b in range(n_structures):
            mine = torch.nonzero(batch.batch == b).squeeze(1)
            r, z, n = batch.positions[mine], batch.atomic_numbers[mine], len(mine)
            # Periodic structures here have all three axes periodic.
            cell = batch.cell[b] if bool(batch.pbc[b].all()) else None
            step = max(1, _PAIRS_AT_ONCE // (n * N_RBF))
            for first in range(0, n, step):
                rows = slice(first, min(first + step, n))
                distances = _distances(r[rows], r, cell).to(dtype)
                z_i, z_j = torch.broadcast_tensors(z[rows, None], z[None, :])
                basis = self.radial(distances.flatten(), z_i.flatten(), z_j.flatten())
                bias[b, :, rows, :n] = self.bias(basis).view(*distances.shape, -1).permute(2, 0, 1)
            # A place without an atom is dropped below; it sees all of them only not to give NaN.
            bias[b, :, n:] = 0.0
        return batch.batch, bias

    def forward(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim)."""
        structure, bias = prepared
        padded, there = to_dense_batch(self.projection(x), structure)
        parts = padded.chunk(3, dim=-1)
        # (b, n, dim) → (b, heads, n, head_dim)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.output(attended.transpose(1, 2).flatten(2)[there])


def _distances(receivers: Tensor, senders: Tensor, cell: Tensor | None) -> Tensor:
    """(n, m) Å between every two; with a cell, to the image of least fractional coordinates."""
    vectors = receivers[:, None, :] - senders[None, :, :]
    if cell is not None:
        vectors = vectors - (vectors @ torch.linalg.inv(cell)).round() @ cell
    return vectors.norm(dim=-1)
