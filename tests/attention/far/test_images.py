"""Pieces of a structure that are far apart."""

import numpy as np
import pytest

from molflt.attention.far import images


def test_pieces_have_indices_that_every_scipy_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy 1.11 finds no piece where the indices have 64 bits, and the far field were nothing."""
    dtypes = []
    found = images.connected_components
    monkeypatch.setattr(
        images,
        "connected_components",
        lambda graph, **options: dtypes.extend((graph.row.dtype, graph.col.dtype)) or found(graph, **options),
    )
    positions = np.array([[0.0, 0, 0], [100, 0, 0], [1, 0, 0], [11, 0, 0]])
    pieces = images.far_apart(images.Structure(positions, np.zeros((3, 3)), np.zeros(3, dtype=bool)), 10.0)
    assert [piece.tolist() for piece in pieces] == [[0, 2, 3], [1]]
    assert dtypes == [np.int32, np.int32]
