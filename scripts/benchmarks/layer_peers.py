"""What molflt's layers are measured against: dense softmax with a distance bias, at the same widths."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch

from molflt.attention.near import GaussianDistanceBasis
from scripts.benchmarks.layers import CUTOFF, DIM, HEADS, N_RBF

_PAIRS_AT_ONCE = 1 << 20
"""Pairs times radial functions held while a bias is made; bounds what the preparation takes."""


@dataclass
class Layout:
    """Where the atoms of a batch stand in its padded form.

    Attributes:
        slot: (n_atoms,) in the flattened (n_structures · n_max).
        n_structures: structures.
        n_max: atoms of the largest.
        mask: (n_structures, n_max) bool, True where there is an atom.
    """

    slot: Tensor
    n_structures: int
    n_max: int
    mask: Tensor

    def pad(self, x: Tensor) -> Tensor:
        """(n_atoms, c) → (n_structures, n_max, c)."""
        if self.n_structures == 1:
            return x[None]
        flat = x.new_zeros(self.n_structures * self.n_max, x.shape[1])
        return flat.index_copy(0, self.slot, x).view(self.n_structures, self.n_max, -1)

    def pack(self, padded: Tensor) -> Tensor:
        """(n_structures, n_max, c) → (n_atoms, c)."""
        return padded[0] if self.n_structures == 1 else padded.flatten(0, 1)[self.slot]


def layout(batch: Batch) -> Layout:
    """Of the atoms of a batch, structure after structure."""
    sizes = torch.bincount(batch.batch, minlength=batch.cell.shape[0])
    n_max = int(sizes.max())
    first = torch.cumsum(sizes, 0) - sizes
    slot = batch.batch * n_max + torch.arange(len(batch.batch), device=sizes.device) - first[batch.batch]
    mask = torch.arange(n_max, device=sizes.device) < sizes[:, None]
    return Layout(slot, len(sizes), n_max, mask)


class DenseWithBias(nn.Module):
    """Projections, softmax(q·k/√d + b_h(|Δ_ij|, z_i, z_j)) v, output; the bias is made once and kept.

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
    def prepare(self, batch: Batch) -> tuple[Layout, Tensor]:
        """The bias, (n_structures, heads, n_max, n_max); −∞ towards places without an atom."""
        places = layout(batch)
        n_max, dtype = places.n_max, self.bias.weight.dtype
        bias = torch.full(
            (places.n_structures, HEADS, n_max, n_max), -torch.inf, dtype=dtype, device=places.slot.device
        )
        for b in range(places.n_structures):
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
        return places, bias

    def forward(self, x: Tensor, prepared: tuple[Layout, Tensor]) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim)."""
        places, bias = prepared
        parts = places.pad(self.projection(x)).chunk(3, dim=-1)
        # (b, n, dim) → (b, heads, n, head_dim)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.output(places.pack(attended.transpose(1, 2).flatten(2)))


def _distances(receivers: Tensor, senders: Tensor, cell: Tensor | None) -> Tensor:
    """(n, m) Å between every two; with a cell, to the image of least fractional coordinates."""
    vectors = receivers[:, None, :] - senders[None, :, :]
    if cell is not None:
        vectors = vectors - (vectors @ torch.linalg.inv(cell)).round() @ cell
    return vectors.norm(dim=-1)
