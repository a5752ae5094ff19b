"""Steps dispatch no more operators than they may, whatever the number of structures."""

import torch

from scripts.benchmarks.operators import count


def test_views_are_free_and_every_wait_is_seen():
    x = torch.arange(6.0)

    def step():
        y = (x.view(2, 3).transpose(0, 1)[:2] * 2).detach()
        assert y.sum() > 0
        return y[y > 1], x.tolist(), torch.linalg.inv(torch.eye(3)), x.nonzero(), torch.tensor([1.0, 2.0])

    found = count(step)
    assert found.operators["mul"] == 1
    assert "view" not in found.operators
    assert found.waits == {
        "_local_scalar_dense": 1,
        "index": 1,
        "tolist": 1,
        "_linalg_check_errors": 1,
        "nonzero": 1,
        "tensor": 1,
    }
