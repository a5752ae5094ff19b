"""LARA's landmarks for sequences."""

import pytest
import torch

from scripts.literature.sequence.segments import Segments


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_segments_are_contiguous_and_cover_everything(n):
    weights = Segments(3)(torch.zeros(1, 1, n, 4, dtype=torch.float64), None)
    member = weights > 0
    assert bool((member.sum(dim=0) == 1).all())
    assert bool((torch.diff(member.to(torch.int64).argmax(dim=0)) >= 0).all())
    full = member.any(dim=1)
    torch.testing.assert_close(weights.sum(dim=1)[full], torch.ones(int(full.sum()), dtype=torch.float64))
