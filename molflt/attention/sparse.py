"""Products along a sparse pattern: the neighbour list, or the assignment of atoms to a mesh.

There are two products. Each is the derivative of the other, so both can be differentiated any number of times, and
neither forms a row of values for every entry of the pattern:

    weighted_sum:     out_i = Σ_e w_e x_col(e)      e in row i      (sparse times dense)
    scalar_products:  s_e = a_row(e) · b_col(e)                     (dense times dense, sampled)

All heads form one pattern with the rows of one head after those of another. A neighbour list is its own transpose up
to the order of entries, so that the derivative of a gather is a gather, too.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional

from molflt.attention.places import Kept


class SparsePattern:
    """Sparse pattern: the columns of each row, row after row.

    Args:
        row_starts: (n_rows + 1,) integers, ascending, from 0 to the number of entries.
        columns: (n_entries,) integers.
        n_columns: number of columns.
        reverse: (n_entries,) of a symmetric pattern, the entry (j, i) of every entry (i, j); None: not known.
    """

    def __init__(self, row_starts: Tensor, columns: Tensor, n_columns: int, reverse: Tensor | None = None) -> None:
        # int32 takes half the memory, and the products below read it fastest.
        small = len(columns) < 2**31 and n_columns < 2**31
        index = torch.int32 if small else torch.int64
        self.row_starts = row_starts if row_starts.dtype == index else row_starts.to(index)
        self.columns = columns if columns.dtype == index else columns.to(index)
        self.n_columns = n_columns
        self.reverse = None if reverse is None else reverse.to(index)
        self._origin: tuple[SparsePattern, Tensor] | None = None
        self._stacked: dict[tuple[int, bool], SparsePattern] = {}
        self._masks: dict[torch.dtype, Tensor] = {}

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.row_starts) - 1

    @property
    def n_entries(self) -> int:
        """Number of entries."""
        return len(self.columns)

    @Kept
    def rows(self) -> Tensor:
        """(n_entries,) the row of every entry."""
        index = torch.arange(self.n_rows, dtype=self.columns.dtype, device=self.columns.device)
        return index.repeat_interleave(self.row_starts.diff(), output_size=self.n_entries)

    @Kept
    def numbered(self) -> Tensor:
        """(n_entries,) 0, 1, 2, ..."""
        return torch.arange(self.n_entries, dtype=self.columns.dtype, device=self.columns.device)

    @Kept
    def transposed(self) -> tuple[SparsePattern, Tensor]:
        """Transposed pattern, and (n_entries,) the entries of this one in its order."""
        if self.reverse is not None:
            return self, self.reverse
        if self._origin is not None:
            origin, order = self._origin
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), dtype=order.dtype, device=order.device)
            return origin, back
        if self.columns.is_cpu and not torch.compiler.is_compiling():
            # A counting sort, which takes less time and memory than PyTorch's.
            columns = self.columns.numpy()
            entries = np.arange(self.n_entries, dtype=columns.dtype)
            shape = self.n_rows, self.n_columns
            counted = csr_array((entries, columns, self.row_starts.numpy()), shape=shape).tocsc()
            starts, rows, order = (torch.from_numpy(x) for x in (counted.indptr, counted.indices, counted.data))
        else:
            ordered, order = torch.sort(self.columns, stable=True)
            numbers = torch.arange(self.n_columns + 1, dtype=ordered.dtype, device=ordered.device)
            starts, rows = torch.searchsorted(ordered, numbers), self.rows.index_select(0, order)
            order = order.to(ordered.dtype)
        turned = SparsePattern(starts, rows, self.n_rows)
        turned._origin = (self, order)
        return turned, order

    def stacked(self, n: int, shared: bool = False) -> SparsePattern:
        """The pattern ``n`` times, along the diagonal of a larger one or with the columns shared; made once."""
        if n == 1:
            return self
        if (n, shared) not in self._stacked:
            copies = torch.arange(n, dtype=self.columns.dtype, device=self.columns.device)[:, None]
            width = 0 if shared else self.n_columns
            columns = (self.columns + width * copies).flatten()
            starts = (self.row_starts[:-1] + self.n_entries * copies).flatten()
            starts = torch.cat([starts, n * self.row_starts[-1:]])
            n_columns = self.n_columns if shared else n * self.n_columns
            self._stacked[n, shared] = SparsePattern(starts, columns, n_columns)
        return self._stacked[n, shared]

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Zeros at the entries, as a sparse matrix; made once."""
        if dtype not in self._masks:
            shape = self.n_rows, self.n_columns
            zeros = torch.zeros(self.n_entries, dtype=dtype, device=self.columns.device)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
                self._masks[dtype] = torch.sparse_csr_tensor(
                    self.row_starts, self.columns, zeros, shape, check_invariants=False
                )
        return self._masks[dtype]

    def parts(self, n_entries: int) -> Iterator[tuple[slice, slice, SparsePattern]]:
        """Split into runs of rows with about ``n_entries`` entries.

        Each comes as its rows, their entries, and a pattern of its own.
        """
        if self.n_entries <= n_entries:
            yield slice(0, self.n_rows), slice(0, self.n_entries), self
            return
        limits = torch.tensor(list(range(n_entries, self.n_entries, n_entries)), device=self.row_starts.device)
        inner = torch.searchsorted(self.row_starts, limits.to(self.row_starts.dtype), right=True) - 1
        cuts = sorted({0, *inner.tolist(), self.n_rows})
        for first, last in itertools.pairwise(cuts):
            begin, end = int(self.row_starts[first]), int(self.row_starts[last])
            starts = self.row_starts[first : last + 1] - begin
            yield (
                slice(first, last),
                slice(begin, end),
                SparsePattern(starts, self.columns[begin:end], self.n_columns),
            )


def weighted_sum(pattern: SparsePattern, weights: Tensor, values: Tensor) -> Tensor:
    """Σ_e w_e x_col(e) over the entries e of every row.

    Args:
        pattern: a pattern of n_entries entries.
        weights: (n_heads, n_entries).
        values: (n_heads, n_columns, n_channels), or (n_columns, n_channels), the same for all heads.

    Returns:
        (n_heads, n_rows, n_channels).
    """
    if values.dim() == 2:
        together = weighted_sum(pattern.stacked(len(weights), shared=True), weights.reshape(1, -1), values[None])
        return together.view(len(weights), pattern.n_rows, -1)
    _stack(pattern, len(weights))
    result: Tensor = _WeightedSum.apply(pattern, weights, values)
    return result


def scalar_products(pattern: SparsePattern, left: Tensor, right: Tensor) -> Tensor:
    """a_row(e) · b_col(e) for every entry e.

    Args:
        pattern: a pattern of n_entries entries.
        left: (n_heads, n_rows, n_channels).
        right: (n_heads, n_columns, n_channels).

    Returns:
        (n_heads, n_entries).
    """
    _stack(pattern, len(left))
    result: Tensor = _ScalarProducts.apply(pattern, left, right)
    return result


def _stack(pattern: SparsePattern, n_heads: int = 1) -> None:
    """Make in advance what a pattern keeps: a compiled step cannot keep it from functions below."""
    if torch.compiler.is_compiling():
        stacked = pattern.stacked(n_heads)
        _ = stacked.numbered, stacked.rows, stacked.transposed


def sum_of_entries(pattern: SparsePattern, entries: Tensor) -> Tensor:
    """The sum of the entries of every row: (n_entries, c) → (n_rows, c)."""
    _stack(pattern)
    result: Tensor = _SumOfEntries.apply(pattern, entries, False)
    return result


def to_entries(pattern: SparsePattern, rows: Tensor) -> Tensor:
    """The row of every entry: (n_rows, c) → (n_entries, c)."""
    _stack(pattern)
    result: Tensor = _ToEntries.apply(pattern, rows, False)
    return result


def of_columns(pattern: SparsePattern, columns: Tensor) -> Tensor:
    """The column of every entry: (n_columns, c) → (n_entries, c)."""
    _stack(pattern)
    result: Tensor = _ToEntries.apply(pattern, columns, True)
    return result


class _SumOfEntries(torch.autograd.Function):
    """Sum of the entries of every row or column.

    This and :class:`_ToEntries` are each other's derivative.
    """

    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, entries: Tensor, by_column: bool) -> Tensor:
        ctx.pattern, ctx.by_column = pattern, by_column
        order, starts = pattern.numbered, pattern.row_starts
        if by_column:
            turned, order = pattern.transposed
            starts = turned.row_starts
        # Adding rows at an index would be many times slower where rows are short.
        return functional.embedding_bag(
            order.to(starts.dtype), entries.contiguous(), starts, mode="sum", include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        return None, _ToEntries.apply(ctx.pattern, gradient, ctx.by_column), None


class _ToEntries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, values: Tensor, by_column: bool) -> Tensor:
        ctx.pattern, ctx.by_column = pattern, by_column
        return values.index_select(0, pattern.columns if by_column else pattern.rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        return None, _SumOfEntries.apply(ctx.pattern, gradient, ctx.by_column), None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, weights: Tensor, values: Tensor) -> Tensor:
        ctx.pattern = pattern
        # Values on a mesh are large, and only the derivative with respect to the weights needs them.
        ctx.save_for_backward(
            weights if ctx.needs_input_grad[2] else None, values if ctx.needs_input_grad[1] else None
        )
        return _by_heads(_sum_rows, pattern, weights, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        weights, values = ctx.saved_tensors
        to_weights = to_values = None
        if ctx.needs_input_grad[1]:
            to_weights = scalar_products(ctx.pattern, gradient, values)
        if ctx.needs_input_grad[2]:
            to_values = _weighted_sum_of_rows(ctx.pattern, weights, gradient)
        return None, to_weights, to_values


class _ScalarProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, left: Tensor, right: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(left, right)
        return _by_heads(_sample, pattern, left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        to_left = to_right = None
        if ctx.needs_input_grad[1]:
            to_left = weighted_sum(ctx.pattern, gradient, right)
        if ctx.needs_input_grad[2]:
            to_right = _weighted_sum_of_rows(ctx.pattern, gradient, left)
        return None, to_left, to_right


def _weighted_sum_of_rows(pattern: SparsePattern, weights: Tensor, rows: Tensor) -> Tensor:
    """Σ_e w_e x_row(e) over the entries e of every column.

    (n_heads, n_rows, c) → (n_heads, n_columns, c).
    """
    return weighted_sum(pattern.transposed[0], _Transposed.apply(pattern, weights), rows)


class _Transposed(torch.autograd.Function):
    """Weights in the order of the transposed pattern, whose transpose is the pattern again."""

    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, weights: Tensor) -> Tensor:
        ctx.turned, order = pattern.transposed
        return weights.index_select(1, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _Transposed.apply(ctx.turned, gradient)


def _by_heads(product: Any, pattern: SparsePattern, *of_heads: Tensor) -> Tensor:
    """Compute a product for all heads stacked, or for as many at a time as memory allows."""
    most = _ENTRIES_STACKED_ON_CUDA if of_heads[0].is_cuda else _ENTRIES_STACKED
    n_heads, step = len(of_heads[0]), max(1, most // max(1, pattern.n_entries))
    if torch.compiler.is_compiling():
        step = n_heads
    found = []
    for first in range(0, n_heads, step):
        some = [t[first : first + step] for t in of_heads]
        flat = [t.reshape(-1, *t.shape[2:]) for t in some]
        found.append(product(pattern.stacked(len(some[0])), *flat).unflatten(0, (len(some[0]), -1)))
    return found[0] if len(found) == 1 else torch.cat(found)


def _sum_rows(pattern: SparsePattern, weights: Tensor, values: Tensor) -> Tensor:
    """Sum weighted rows by an embedding bag, on every device without a row for every entry."""
    return functional.embedding_bag(
        pattern.columns,
        values.contiguous(),
        pattern.row_starts,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    )


def _sample(pattern: SparsePattern, left: Tensor, right: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        # It is fused into one kernel, which holds no rows.
        return (left.index_select(0, pattern.rows) * right.index_select(0, pattern.columns)).sum(dim=-1)
    # These kernels refuse more entries than a full matrix has, which images in a small cell can make.
    fits = pattern.n_entries <= pattern.n_rows * pattern.n_columns
    there = left.is_cuda or (left.is_cpu and torch.backends.mkl.is_available())
    if fits and there and left.dtype in _SAMPLED_DTYPES:
        mask = pattern.mask(left.dtype)
        return torch.sparse.sampled_addmm(mask, left.contiguous(), right.contiguous().t(), beta=0.0).values()
    rows, found = pattern.rows, []
    for row, column in zip(rows.split(_ENTRIES_AT_ONCE), pattern.columns.split(_ENTRIES_AT_ONCE), strict=True):
        found.append((left.index_select(0, row) * right.index_select(0, column)).sum(dim=-1))
    return torch.cat(found)


_SAMPLED_DTYPES = (torch.float32, torch.float64)

_ENTRIES_AT_ONCE = 1 << 20
"""Entries whose rows are held at once without such a kernel. It bounds memory and changes no result."""

_ENTRIES_STACKED, _ENTRIES_STACKED_ON_CUDA = 1 << 23, 1 << 26
"""Most entries of the heads that are stacked in one pattern."""
