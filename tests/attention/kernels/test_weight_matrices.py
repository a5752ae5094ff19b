"""The law of the rows of each weight matrix, and matrices as modules: drawn, saved, redrawn, learned."""

import itertools
import math

import pytest
import torch
from scipy.linalg import hadamard

from molflt.attention.build import build_kernel
from molflt.attention.kernels.random_features import DrawnMatrix, haar, orthogonal, redraw
from molflt.attention.kernels.spectraformer import (
    DRAWN_MATRICES,
    FastFood,
    iid,
    moment_matching,
    power_of_two,
    quasi_monte_carlo,
    sparse_grid,
    sphere,
    structured_orthogonal,
)
from molflt.errors import InputError
from tests.attention.kernels.checks import draws, fastfood, generator, rows_are_gaussian


def off_diagonal(block):
    """Largest cosine between two rows."""
    unit = torch.nn.functional.normalize(block, dim=1)
    return float((unit @ unit.T - torch.eye(len(block))).abs().max())


@pytest.mark.parametrize("name", DRAWN_MATRICES)
def test_shapes_and_seeds(name):
    draw = DRAWN_MATRICES[name]
    for m, c in ((21, 5), (24, 8), (13, 3), (20, 1), (7, 6)):
        omega = draw(m, c, generator(3))
        assert omega.dtype == torch.float64
        assert omega.shape == (len(omega), c)
        assert name == "sgq" or len(omega) == m
        assert bool(torch.isfinite(omega).all())
        random = generator(3)
        assert torch.equal(omega, draw(m, c, random))
        if len(omega) > 2 * c + 1 and c > 1:
            # The next draw is another, and so is that of another seed.
            assert not torch.equal(omega, draw(m, c, random))
            assert not torch.equal(omega, draw(m, c, generator(4)))
    with torch.device("meta"):
        matrix = DrawnMatrix(draw, 22, 5, generator())
    assert torch.equal(matrix(), draw(22, 5, generator()).float())


@pytest.mark.parametrize("draw", [iid, orthogonal, quasi_monte_carlo, fastfood])
def test_a_row_is_gaussian(draw):
    rows_are_gaussian(draw)
    if draw is orthogonal:
        # Lengths within a block are independent of each other: those of one Gaussian matrix's own rows are not used.
        correlation = torch.corrcoef(draws(draw, 1500, 4, 4).norm(dim=2).T) - torch.eye(4)
        assert float(correlation.abs().max()) < 4.5 / math.sqrt(1500)


@pytest.mark.parametrize(("m", "c"), [(8, 4), (13, 5), (3, 6), (1, 1)])
def test_orthogonal_within_blocks_and_only_there(m, c):
    omega = orthogonal(m, c, generator())
    assert omega.shape == (m, c)
    assert max(off_diagonal(omega[start : start + c]) for start in range(0, m, c)) < 1e-10
    assert m <= c or off_diagonal(omega) > 1e-3


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


@pytest.mark.parametrize("draw", [structured_orthogonal, sphere])
def test_rows_of_one_length_have_the_second_moments_of_gaussian_ones(draw):
    count, c, random = 1500, 4, generator(1)
    mine = torch.stack([draw(9, c, random)[0] for _ in range(count)])
    torch.testing.assert_close(mine.norm(dim=1), torch.full((count,), math.sqrt(c), dtype=torch.float64))
    assert float(mine.mean(dim=0).abs().max()) < 4.5 / math.sqrt(count)
    assert float((mine.T @ mine / count - torch.eye(c)).abs().max()) < math.sqrt(2) * 4.5 / math.sqrt(count)
    # E u_i⁴ = 3/(c(c + 2)) on the unit sphere, c² times that here; for S H D H D H D near it.
    assert float((mine**4).mean()) == pytest.approx(3 * c / (c + 2), abs=0.4)


@pytest.mark.parametrize(("m", "c", "p"), [(24, 8, 8), (20, 5, 8), (8, 7, 8), (7, 3, 4), (17, 9, 16), (3, 1, 1)])
def test_structured_rows_are_orthogonal_blocks_of_the_next_power_of_two(m, c, p):
    assert power_of_two(c) == p
    omega, full = structured_orthogonal(m, c, generator()), structured_orthogonal(m, p, generator())
    torch.testing.assert_close(omega, full[:, :c])
    blocks = [full[start : start + p] for start in range(0, m, p)]
    assert max(map(off_diagonal, blocks)) < 1e-10
    torch.testing.assert_close(full.norm(dim=1), torch.full((m,), math.sqrt(p), dtype=torch.float64))
    for a, b in itertools.combinations([block for block in blocks if len(block) == p > 1], 2):
        assert not torch.allclose(a, b)


def stratified(omega):
    """Return True if each coordinate has one row in each of as many intervals of equal probability."""
    n = len(omega)
    cells = (torch.special.ndtr(omega) * n).floor().long().clamp(0, n - 1)
    return all(len(set(column)) == n for column in cells.T.tolist())


def test_sobol_points_are_rows_and_stratified():
    before = torch.get_rng_state()
    for n, seed in itertools.product((16, 64), range(5)):
        omega = quasi_monte_carlo(n, 5, generator(seed))
        assert stratified(omega)
        assert len(omega.unique(dim=0)) == n
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("m", "c"), [(2, 1), (5, 4), (20, 4), (33, 32), (128, 64)])
def test_matched_moments(m, c):
    """Mean zero and covariance one to rounding, by an affine map of the rows with a triangular matrix."""
    omega, rows = moment_matching(m, c, generator()), quasi_monte_carlo(m, c, generator())
    assert omega.shape == (m, c)
    assert float(omega.mean(dim=0).abs().max()) < 1e-8
    assert float((omega.T @ omega / m - torch.eye(c)).abs().max()) < 1e-8
    assert float((rows.T @ rows / m - torch.eye(c)).abs().max()) > 1e-3
    rows = rows - rows.mean(dim=0)
    matrix = torch.linalg.lstsq(omega, rows).solution.T
    torch.testing.assert_close(omega @ matrix.T, rows)
    torch.testing.assert_close(matrix, matrix.tril(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("m", "c"), [(4, 4), (1, 4)])
def test_too_few_rows_to_match_say_what_to_do(m, c):
    with pytest.raises(InputError, match=rf"\({m}\).*\({c}\); set n_features to {2 * c} or more, or take more heads"):
        moment_matching(m, c, generator())
    moment_matching(2 * c, c, generator())


def gaussian_moment(axes, c):
    """E Π ω_a: per axis (k − 1)!! for an even power k, zero for an odd one."""
    powers = [axes.count(axis) for axis in range(c)]
    return 0.0 if any(k % 2 for k in powers) else float(math.prod(math.prod(range(k - 1, 0, -2)) for k in powers))


@pytest.mark.parametrize("c", [1, 2, 5])
@pytest.mark.parametrize("copies", [1, 3])
def test_the_sparse_grid_integrates_polynomials_of_third_degree(c, copies):
    omega = sparse_grid(copies * (2 * c + 1), c, generator())
    assert len(omega) == copies * (2 * c + 1)

    def error(rows, degree):
        monomials = itertools.combinations_with_replacement(range(c), degree)
        return max(abs(float(rows[:, list(a)].prod(dim=1).mean()) - gaussian_moment(a, c)) for a in monomials)

    for degree in (1, 2, 3):
        assert error(omega, degree) < 1e-10
    # As many rules as come nearest to the number asked for.
    assert [len(sparse_grid(m, 4, generator())) // 9 for m in (1, 9, 13, 14, 64)] == [1, 1, 1, 2, 7]


@pytest.mark.parametrize(("m", "c", "p"), [(8, 4, 4), (22, 5, 8), (3, 7, 8), (6, 1, 1)])
def test_fastfood_is_its_product(m, c, p):
    """S H G Π H B/√p with H of ±1, block below block."""
    food = FastFood(m, c, generator(2)).double()
    assert food.shape == (m, c)
    h, found = torch.from_numpy(hadamard(p)).double(), []
    for b in range(math.ceil(m / p)):
        pi = torch.zeros(p, p, dtype=torch.float64)
        pi[torch.arange(p), food.permutation[b]] = 1
        s, g, signs = (torch.diag(x[b].detach()) for x in (food.outer, food.inner, food.input))
        found.append(s @ h @ g @ pi @ h @ signs / math.sqrt(p))
    torch.testing.assert_close(food().detach(), torch.cat(found)[:m, :c], rtol=1e-6, atol=1e-6)


def test_fastfood_is_saved_with_its_permutation_and_is_not_redrawn():
    saved, other = FastFood(22, 5, generator()), FastFood(22, 5, generator(1))
    state = {key: value.clone() for key, value in saved.state_dict().items()}
    assert set(state) == {"outer", "inner", "input", "permutation"}
    other.load_state_dict(state)
    assert torch.equal(saved(), other())
    names = ("posrf-orf", "trigrf-qmc", "oprf-fastfood", "relu")
    model = torch.nn.ModuleList([build_kernel(name, 5, 2, 22, 3, generator()) for name in names])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    redraw(model, generator(5))
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"0.weights.omega", "1.weights.omega"}


def test_drawn_matrices_are_redrawn_in_place():
    matrix = DrawnMatrix(orthogonal, 9, 5, generator())
    first = matrix().clone()
    held = matrix.state_dict()["omega"]
    matrix.redraw(generator(8))
    # In place: an optimiser or a graph that holds the buffer sees the new one.
    assert matrix().data_ptr() == held.data_ptr()
    assert torch.equal(matrix(), DrawnMatrix(orthogonal, 9, 5, generator(8))())
    assert not torch.equal(matrix(), first)
    matrix = matrix.double()
    matrix.redraw(generator(8))
    # All the digits of double precision.
    assert not torch.equal(matrix().float().double(), matrix())
