"""The law of the rows of each weight matrix: lengths, directions, moments."""

import itertools
import math

import pytest
import torch
from scipy.stats import chi, kstest, norm

from molflt.attention.kernels.random_features import haar, orthogonal
from molflt.errors import InputError
from molflt.literature.weight_matrices import (
    DRAWN_MATRICES,
    FastFood,
    iid,
    moment_matching,
    quasi_monte_carlo,
    sparse_grid,
    sphere,
    structured_orthogonal,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fastfood(m: int, c: int, random: torch.Generator) -> torch.Tensor:
    return FastFood(m, c, random)().detach().double()


def blocks_of(omega: torch.Tensor, size: int) -> list[torch.Tensor]:
    return [omega[start : start + size] for start in range(0, len(omega), size)]


def off_diagonal(block: torch.Tensor) -> float:
    """Largest cosine between two rows."""
    unit = torch.nn.functional.normalize(block, dim=1)
    return float((unit @ unit.T - torch.eye(len(block))).abs().max())


@pytest.mark.parametrize("draw", [iid, orthogonal, quasi_monte_carlo, fastfood])
@pytest.mark.parametrize("c", [3, 4])
def test_a_row_is_gaussian(draw, c):
    """Mean, covariance, fourth moments and the law of the lengths of two rows over many draws."""
    count, m, random = 1500, 2 * c + 1, generator(1)
    matrices = torch.stack([draw(m, c, random) for _ in range(count)])
    error = 4.5 / math.sqrt(count)
    for row in (0, m - 1):
        mine = matrices[:, row]
        assert float(mine.mean(dim=0).abs().max()) < error
        assert float((mine.T @ mine / count - torch.eye(c)).abs().max()) < math.sqrt(2) * error
        assert float(((mine**4).mean(dim=0) - 3).abs().max()) < math.sqrt(96) * error
        assert kstest(mine.norm(dim=1).numpy(), chi(c).cdf).pvalue > 1e-3
        assert kstest(mine[:, 0].numpy(), norm.cdf).pvalue > 1e-3


@pytest.mark.parametrize("draw", [structured_orthogonal, sphere])
def test_rows_of_one_length_are_not_gaussian(draw):
    """Power of the test above; their second moments are right all the same."""
    count, c, random = 1500, 4, generator(1)
    mine = torch.stack([draw(9, c, random)[0] for _ in range(count)])
    assert float((mine.T @ mine / count - torch.eye(c)).abs().max()) < math.sqrt(2) * 4.5 / math.sqrt(count)
    assert kstest(mine.norm(dim=1).numpy(), chi(c).cdf).pvalue < 1e-9
    assert abs(float((mine**4).mean()) - 3) > 0.5


@pytest.mark.parametrize(("m", "c"), [(8, 4), (11, 4), (13, 5), (3, 6), (1, 1)])
def test_orthogonal_within_blocks_and_only_there(m, c):
    omega = orthogonal(m, c, generator())
    assert omega.shape == (m, c)
    assert max(off_diagonal(block) for block in blocks_of(omega, c)) < 1e-10
    # Power: independent rows are not, nor are rows of different blocks.
    if c > 1:
        assert off_diagonal(iid(max(m, 2), c, generator())) > 1e-3
    if m > c:
        assert off_diagonal(omega) > 1e-3


def test_lengths_do_not_follow_directions():
    """Lengths within a block are independent of each other: those of one Gaussian matrix's own rows are not used."""
    lengths = orthogonal(4 * 2000, 4, generator()).norm(dim=1).reshape(2000, 4)
    correlation = torch.corrcoef(lengths.T) - torch.eye(4)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(2000)


def test_haar_matrices_have_no_preferred_sign():
    """QR alone leaves the diagonal of R positive, and the first entry of Q of one sign more often."""
    random = generator()
    matrices = torch.stack([haar(3, random) for _ in range(2000)])
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand_as(matrices))
    assert float(matrices.mean(dim=0).abs().max()) < 4.5 / math.sqrt(3 * 2000)
    # E tr Q = 0 and E tr² = 1 on O(3).
    traces = matrices.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(float(traces.mean())) < 4.5 / math.sqrt(2000)
    assert abs(float(traces.square().mean()) - 1) < 0.2
    plain = torch.linalg.qr(torch.randn(2000, 3, 3, generator=random, dtype=torch.float64))[0]
    assert float(plain.mean(dim=0).abs().max()) > 0.2


@pytest.mark.parametrize("c", [1, 2, 8, 16])
def test_structured_rows_have_one_length_and_are_orthogonal(c):
    omega = structured_orthogonal(3 * c, c, generator())
    torch.testing.assert_close(omega.norm(dim=1), torch.full((3 * c,), math.sqrt(c), dtype=torch.float64))
    assert max(off_diagonal(block) for block in blocks_of(omega, c)) < 1e-10


@pytest.mark.parametrize(("m", "c", "p"), [(20, 5, 8), (8, 7, 8), (7, 3, 4), (17, 9, 16)])
def test_structured_rows_of_other_widths_are_those_of_the_next_power_of_two(m, c, p):
    omega, full = structured_orthogonal(m, c, generator()), structured_orthogonal(m, p, generator())
    assert omega.shape == (m, c)
    torch.testing.assert_close(omega, full[:, :c])
    torch.testing.assert_close(full.norm(dim=1), torch.full((m,), math.sqrt(p), dtype=torch.float64))
    # Columns of every full block are orthogonal and as long as those of a Gaussian matrix on average.
    if m >= p:
        torch.testing.assert_close(omega[:p].T @ omega[:p], p * torch.eye(c, dtype=torch.float64))


def test_structured_blocks_differ():
    omega = structured_orthogonal(24, 8, generator())
    for a, b in itertools.combinations(blocks_of(omega, 8), 2):
        assert not torch.allclose(a, b)


def test_rows_on_the_sphere():
    omega = sphere(4000, 6, generator())
    torch.testing.assert_close(omega.norm(dim=1), torch.full((4000,), math.sqrt(6), dtype=torch.float64))
    assert float(omega.mean(dim=0).abs().max()) < 4.5 / math.sqrt(4000)
    # E u_i⁴ = 3/(c(c + 2)) on the unit sphere: 36 times that here.
    assert float((omega**4).mean()) == pytest.approx(36 * 3 / 48, abs=0.1)


def stratified(omega: torch.Tensor) -> bool:
    """Whether each coordinate has one row in each of as many intervals of equal probability."""
    n = len(omega)
    cells = (torch.special.ndtr(omega) * n).floor().long().clamp(0, n - 1)
    return all(len(set(column)) == n for column in cells.T.tolist())


@pytest.mark.parametrize("n", [16, 64])
def test_sobol_points_are_rows(n):
    for seed in range(5):
        assert stratified(quasi_monte_carlo(n, 5, generator(seed)))
        # Power: transposed, permuted within rows, or independent they are not.
        assert not stratified(quasi_monte_carlo(5, n, generator(seed)).T)
        assert not stratified(iid(n, 5, generator(seed)))


def test_any_number_of_sobol_points_is_nearly_stratified():
    """Φ of the rows has the mean ½ far better than independent ones."""
    n, c = 50, 6
    errors = [
        torch.stack([torch.special.ndtr(draw(n, c, generator(s))).mean(dim=0) - 0.5 for s in range(40)])
        .square()
        .mean()
        for draw in (quasi_monte_carlo, iid)
    ]
    assert float(errors[0]) < float(errors[1]) / 10


def test_sobol_points_leave_other_random_numbers_alone():
    before = torch.get_rng_state()
    omega = quasi_monte_carlo(64, 3, generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert bool(torch.isfinite(omega).all())
    assert len(omega.unique(dim=0)) == 64


@pytest.mark.parametrize(("m", "c"), [(2, 1), (5, 4), (6, 5), (16, 8), (33, 32), (128, 64)])
def test_matched_moments(m, c):
    """Mean zero and covariance one to rounding, with as few rows as can have them."""
    omega = moment_matching(m, c, generator())
    assert omega.shape == (m, c)
    assert float(omega.mean(dim=0).abs().max()) < 1e-8
    assert float((omega.T @ omega / m - torch.eye(c)).abs().max()) < 1e-8
    rows = quasi_monte_carlo(m, c, generator())
    assert float((rows.T @ rows / m - torch.eye(c)).abs().max()) > 1e-3


def test_matching_is_an_affine_map_with_a_triangular_matrix_of_the_rows():
    omega, rows = moment_matching(20, 4, generator()), quasi_monte_carlo(20, 4, generator())
    rows = rows - rows.mean(dim=0)
    map_ = torch.linalg.lstsq(omega, rows).solution.T
    torch.testing.assert_close(omega @ map_.T, rows)
    torch.testing.assert_close(map_ @ map_.T, rows.T @ rows / 20)


@pytest.mark.parametrize(("m", "c"), [(4, 4), (1, 4), (16, 16)])
def test_too_few_rows_to_match_say_what_to_do(m, c):
    with pytest.raises(InputError, match=f"set n_features to {2 * c} or more, or take more heads") as caught:
        moment_matching(m, c, generator())
    assert f"({m})" in str(caught.value)
    assert f"({c})" in str(caught.value)
    moment_matching(2 * c, c, generator())


def monomials(c: int, degree: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations_with_replacement(range(c), degree))


def gaussian_moment(axes: tuple[int, ...], c: int) -> float:
    """E Π ω_a: per axis (k − 1)!! for an even power k, zero for an odd one."""
    powers = [axes.count(axis) for axis in range(c)]
    return 0.0 if any(k % 2 for k in powers) else float(math.prod(math.prod(range(k - 1, 0, -2)) for k in powers))


@pytest.mark.parametrize("c", [1, 2, 5, 8])
@pytest.mark.parametrize("copies", [1, 3])
def test_the_sparse_grid_integrates_polynomials_of_third_degree(c, copies):
    omega = sparse_grid(copies * (2 * c + 1), c, generator())
    assert len(omega) == copies * (2 * c + 1)

    def error(rows: torch.Tensor, degree: int) -> float:
        return max(
            abs(float(rows[:, list(axes)].prod(dim=1).mean()) - gaussian_moment(axes, c))
            for axes in monomials(c, degree)
        )

    for degree in (1, 2, 3):
        assert error(omega, degree) < 1e-10
    # Power: of third degree and no more, and the nodes of Gauss and Hermite would need unequal weights.
    assert error(omega, 4) > 0.1
    if c > 1:
        assert error(omega * math.sqrt(3 / (c + 0.5)), 2) > 0.1


def test_the_first_rule_of_a_sparse_grid_has_a_centre_and_the_axes():
    omega = sparse_grid(18, 4, generator())
    assert not bool(omega[0].any())
    assert not bool(omega[9].any())
    axes = omega[1:5] / omega[1, 0]
    torch.testing.assert_close(axes, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(omega[5:9], -omega[1:5])
    # The second is turned, and each is orthogonal.
    assert off_diagonal(omega[10:14]) < 1e-10
    assert int((omega[10:14].abs() > 1e-6).sum()) == 16


@pytest.mark.parametrize(("wanted", "rules"), [(1, 1), (9, 1), (13, 1), (14, 2), (64, 7)])
def test_the_number_of_rules_of_a_sparse_grid(wanted, rules):
    assert len(sparse_grid(wanted, 4, generator())) == 9 * rules


@pytest.mark.parametrize("name", DRAWN_MATRICES)
@pytest.mark.parametrize(("m", "c"), [(21, 5), (24, 8), (13, 3), (20, 1), (7, 6)])
def test_shapes_and_seeds(name, m, c):
    draw = DRAWN_MATRICES[name]
    omega = draw(m, c, generator(3))
    assert omega.dtype == torch.float64
    assert omega.shape[1] == c
    assert name == "sgq" or len(omega) == m
    assert bool(torch.isfinite(omega).all())
    assert torch.equal(omega, draw(m, c, generator(3)))
    random = generator(3)
    draw(m, c, random)
    if len(omega) > 2 * c + 1 and c > 1:
        # The next draw, and that of another seed, are others.
        assert not torch.equal(omega, draw(m, c, random))
        assert not torch.equal(omega, draw(m, c, generator(4)))
