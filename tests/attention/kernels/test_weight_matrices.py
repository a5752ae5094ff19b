"""The laws of the matrices of random features."""

import itertools
import math

import pytest
import torch

from molflt.attention.kernels.build import DRAWN_MATRICES
from molflt.attention.weight_matrices.fastfood import FastFood
from molflt.attention.weight_matrices.hadamard import hadamard, power_of_two
from molflt.attention.weight_matrices.moment_matching import moment_matching
from molflt.attention.weight_matrices.orthogonal import orthogonal
from molflt.attention.weight_matrices.quasi_monte_carlo import quasi_monte_carlo
from molflt.attention.weight_matrices.sparse_grid import sparse_grid
from molflt.attention.weight_matrices.sphere import sphere
from molflt.attention.weight_matrices.structured_orthogonal import structured_orthogonal
from molflt.errors import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b.to(a), rtol=0, atol=atol)


@pytest.mark.parametrize("name", DRAWN_MATRICES)
@pytest.mark.parametrize(("m", "c"), [(20, 8), (7, 3), (13, 12), (64, 1)])
def test_shape_and_seed(name, m, c):
    draw = DRAWN_MATRICES[name]
    omega = draw(m, c, generator(1))
    assert omega.dtype == torch.float64
    assert omega.shape[1] == c
    assert len(omega) == m if name != "sgq" else len(omega) % (2 * c + 1) == 0
    assert torch.equal(omega, draw(m, c, generator(1)))
    if c > 1 and (name != "sgq" or len(omega) > 2 * c + 1):
        assert not torch.equal(omega, draw(m, c, generator(2)))


def test_orthogonal_blocks_with_gaussian_lengths():
    omega = orthogonal(20, 8, generator())
    for block in (omega[:8], omega[8:16], omega[16:]):
        unit = block / block.norm(dim=1, keepdim=True)
        close(unit @ unit.T, torch.eye(len(block)))
    squares = torch.cat([orthogonal(64, 8, generator(seed)) for seed in range(100)]).square().sum(dim=1)
    # χ²_8: mean 8, variance 16.
    assert abs(float(squares.mean()) - 8) < 4.5 * math.sqrt(16 / 6400)
    assert abs(float(squares.var()) - 16) < 2


@pytest.mark.parametrize("c", [4, 8])
def test_structured_rows_are_orthogonal_and_of_one_length(c):
    omega = structured_orthogonal(2 * c, c, generator())
    for block in (omega[:c], omega[c:]):
        close(block @ block.T, c * torch.eye(c))
    # Three Hadamard matrices and signs make entries that are multiples of 1/p.
    close(omega * c, (omega * c).round())


def test_structured_rows_of_a_width_that_is_no_power_of_two():
    full = structured_orthogonal(8, 8, generator())
    close(structured_orthogonal(8, 5, generator()), full[:, :5])


def test_hadamard():
    assert [power_of_two(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
    close(hadamard(8) @ hadamard(8).T, torch.eye(8))
    close(hadamard(8), hadamard(8).T)


def test_sphere_has_one_radius_and_no_direction():
    omega = sphere(4000, 6, generator())
    close(omega.norm(dim=1), math.sqrt(6) * torch.ones(4000, dtype=torch.float64))
    close(omega.T @ omega / 4000, torch.eye(6), atol=0.12)


def test_sobol_points_are_rows():
    """A power of two of points has one in every interval of every coordinate; transposed, they would not."""
    n, c = 64, 6
    omega = quasi_monte_carlo(n, c, generator())
    assert omega.shape == (n, c)
    places = (torch.special.ndtr(omega) * n).floor()
    for j in range(c):
        assert sorted(places[:, j].tolist()) == list(range(n))
    transposed = torch.special.ndtr(quasi_monte_carlo(c, n, generator()).T)
    assert sorted((transposed[:, 0] * n).floor().tolist()) != list(range(n))


def test_matched_moments_are_exact():
    omega = moment_matching(40, 7, generator())
    close(omega.mean(dim=0), torch.zeros(7))
    close(omega.T @ omega / 40, torch.eye(7))
    # Power: the points it starts from have neither.
    plain = quasi_monte_carlo(40, 7, generator())
    assert float((plain.T @ plain / 40 - torch.eye(7)).abs().max()) > 1e-3


def test_moments_of_too_few_rows_are_refused():
    with pytest.raises(InputError, match="set n_features to 16 or more"):
        moment_matching(8, 8, generator())


@pytest.mark.parametrize("m", [9, 40])
def test_sparse_grids_are_of_third_degree(m):
    """All monomials up to degree three have their Gaussian moments; the fourth does not."""
    c = 4
    omega = sparse_grid(m, c, generator())
    assert len(omega) == (2 * c + 1) * round(m / (2 * c + 1))
    for degree in (1, 2, 3):
        for axes in itertools.combinations_with_replacement(range(c), degree):
            moment = float(omega[:, list(axes)].prod(dim=1).mean())
            assert moment == pytest.approx(1.0 if degree == 2 and axes[0] == axes[1] else 0.0, abs=1e-12)
    assert abs(float((omega[:, 0] ** 4).mean()) - 3) > 0.1


def test_fastfood_starts_with_gaussian_rows():
    rows = torch.stack([FastFood(12, 6, generator(seed))().detach().double() for seed in range(3000)])
    error = 4.5 / math.sqrt(3000)
    for row in (0, 5, 11):
        mine = rows[:, row]
        close(mine.mean(dim=0), torch.zeros(6), atol=error)
        close(mine.T @ mine / 3000, torch.eye(6), atol=1.5 * error)
        assert float((mine**4).mean()) == pytest.approx(3, abs=0.3)


def test_fastfood_is_its_product_of_matrices():
    """S H G Π H B with H of ±1, divided by √p, block by block."""
    food = FastFood(10, 8, generator(4)).double()
    h = hadamard(8) * math.sqrt(8)
    blocks = []
    for b in range(2):
        permutation = torch.eye(8, dtype=torch.float64)[food.permutation[b]]
        outer, inner, signs = (torch.diag(t[b]) for t in (food.outer, food.inner, food.input))
        blocks.append(outer @ h @ inner @ permutation @ h @ signs / math.sqrt(8))
    close(food(), torch.cat(blocks)[:10], atol=1e-5)
