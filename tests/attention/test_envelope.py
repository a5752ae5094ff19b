import pytest
import torch

from molflt.attention.smooth import envelope, taper


def derivatives(function, x: float, order: int) -> list[float]:
    point = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = function(point)
    found = [value.item()]
    for _ in range(order):
        (value,) = torch.autograd.grad(value, point, create_graph=True)
        found.append(value.item())
    return found


def test_envelope_ends_with_value_slope_and_curvature_zero():
    below = derivatives(lambda d: envelope(d, 5.0), 5.0 - 1e-7, 2)
    assert below == pytest.approx([0.0, 0.0, 0.0], abs=1e-4)
    assert derivatives(lambda d: envelope(d, 5.0), 5.0 + 1e-7, 2) == [0.0, 0.0, 0.0]
    # the third derivative does jump: the envelope ends no smoother than it says
    assert abs(derivatives(lambda d: envelope(d, 5.0), 5.0 - 1e-7, 3)[3]) > 1e-2


def test_envelope_starts_at_one_and_falls_monotonically():
    d = torch.linspace(0, 5, 200, dtype=torch.float64)
    values = envelope(d, 5.0)
    assert float(values[0]) == 1.0
    assert bool((values.diff() <= 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cutoff", [0.3, 1.0, 4.7, 6.0, 100.0])
def test_envelope_is_zero_from_the_cutoff_on(dtype, cutoff):
    d = cutoff * torch.linspace(1, 7, 100, dtype=dtype)
    d[0] = cutoff
    assert not bool(envelope(d, cutoff).any())


@pytest.mark.parametrize("edge", [1.0, 2.0])
def test_taper_has_two_continuous_derivatives_at_either_end(edge):
    inside = derivatives(lambda x: taper(x, 1.0, 2.0), 1.5, 2)
    assert inside[0] == pytest.approx(0.5)
    a = derivatives(lambda x: taper(x, 1.0, 2.0), edge - 1e-9, 2)
    b = derivatives(lambda x: taper(x, 1.0, 2.0), edge + 1e-9, 2)
    assert a == pytest.approx(b, abs=1e-6)
