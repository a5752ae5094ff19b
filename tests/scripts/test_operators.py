"""Steps dispatch no more operators than they may, whatever the number of structures."""

import pytest
import torch

from scripts.benchmarks.operators import count, dynamics_step, energy_step, force_step


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


@pytest.mark.parametrize(("make", "few", "many", "most"), [(energy_step, 2, 12, 830), (force_step, 2, 6, 2130)])
def test_a_training_step_dispatches_the_same_for_any_number_of_structures_and_waits_for_nothing(
    make, few, many, most
):
    small, large = count(make(few)), count(make(many))
    assert large.operators == small.operators
    assert small.operators.total() <= most
    assert not small.waits
    assert not large.waits


@pytest.mark.parametrize(("n_atoms", "most"), [(200, 660), (1000, 800)])
def test_a_step_of_dynamics_waits_for_nothing(n_atoms, most):
    """Of a crystal that is summed over waves, and of one on a mesh."""
    found = count(dynamics_step(n_atoms))
    assert found.operators.total() <= most
    assert not found.waits
