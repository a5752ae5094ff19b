"""Sparse products against dense matrices, and their derivatives of any order."""

import pytest
import torch

from molflt.attention import sparse
from molflt.attention.sparse import SparsePattern, scalar_products, sum_of_entries, to_entries, weighted_sum

HEADS, ROWS, COLUMNS, CHANNELS = 2, 7, 5, 3


def pattern(n_entries=30, seed=0):
    """Entries at random, several for one pair of row and column, and rows without any."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, ROWS - 1, (n_entries,), generator=generator).sort().values
    columns = torch.randint(0, COLUMNS, (n_entries,), generator=generator)
    return SparsePattern(torch.searchsorted(rows, torch.arange(ROWS + 1)), columns, COLUMNS)


def random(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def dense(where, weights):
    """(heads, rows, columns): entries of one place added."""
    out = torch.zeros(len(weights), where.n_rows, where.n_columns, dtype=weights.dtype)
    for e, (i, j) in enumerate(zip(where.rows.tolist(), where.columns.tolist(), strict=True)):
        out[:, i, j] += weights[:, e]
    return out


@pytest.mark.parametrize("n_entries", [30, 1, 0, 60])
def test_products_are_those_of_dense_matrices(n_entries):
    where = pattern(n_entries)
    w, x, a = random(HEADS, n_entries), random(HEADS, COLUMNS, CHANNELS), random(HEADS, ROWS, CHANNELS, seed=2)
    torch.testing.assert_close(weighted_sum(where, w, x), dense(where, w.detach()) @ x)
    torch.testing.assert_close(weighted_sum(where, w, x[0]), dense(where, w.detach()) @ x[0])
    expected = (a @ x.transpose(1, 2))[:, where.rows.long(), where.columns.long()]
    torch.testing.assert_close(scalar_products(where, a, x), expected)


def test_the_way_without_mkl_gives_the_same(monkeypatch):
    where, x, a = pattern(), random(HEADS, COLUMNS, CHANNELS), random(HEADS, ROWS, CHANNELS, seed=2)
    expected = scalar_products(where, a, x)
    monkeypatch.setattr(sparse, "_SAMPLED_DTYPES", ())
    monkeypatch.setattr(sparse, "_ENTRIES_AT_ONCE", 7)
    torch.testing.assert_close(scalar_products(where, a, x), expected)


def test_transposed_twice_is_the_pattern():
    where = pattern()
    turned, order = where.transposed
    torch.testing.assert_close(dense(turned, random(1, 30)[:, order]), dense(where, random(1, 30)).transpose(1, 2))
    again, back = turned.transposed
    assert again is where
    assert torch.equal(order[back], torch.arange(30))


@pytest.mark.parametrize(("n_entries", "n_parts"), [(30, 3), (1, 1), (0, 1)])
def test_parts_make_up_the_whole(n_entries, n_parts):
    where, w, x = pattern(n_entries), random(HEADS, n_entries), random(HEADS, COLUMNS, CHANNELS)
    parts = list(where.parts(8))
    assert len(parts) >= n_parts
    found = [weighted_sum(few, w[:, entries], x) for _, entries, few in parts]
    torch.testing.assert_close(torch.cat(found, dim=1), weighted_sum(where, w, x))
    assert [row for rows, _, _ in parts for row in range(rows.start, rows.stop)] == list(range(ROWS))


def test_first_and_second_derivatives():
    where = pattern()
    w, x, a = random(HEADS, 30), random(HEADS, COLUMNS, CHANNELS), random(HEADS, ROWS, CHANNELS, seed=2)
    entries, rows = random(30, CHANNELS), random(ROWS, CHANNELS)
    for function, arguments in (
        (lambda w, x: weighted_sum(where, w, x), (w, x)),
        (lambda w, x: weighted_sum(where, w, x), (w, random(COLUMNS, CHANNELS))),
        (lambda a, x: scalar_products(where, a, x), (a, x)),
        (lambda e: sum_of_entries(where, e) ** 2, (entries,)),
        (lambda r: to_entries(where, r) ** 2, (rows,)),
    ):
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments)
