"""Weight matrices as modules: redrawing, files, dtypes, and FastFood's product."""

import math

import pytest
import torch
from scipy.linalg import hadamard as scipy_hadamard

from molflt.attention.kernels.random_features import DrawnMatrix, WeightMatrix, redraw
from molflt.errors import InputError
from molflt.literature.kernels import COMPONENT_FUNCTIONS, build_kernel
from molflt.literature.weight_matrices import DRAWN_MATRICES, FastFood, hadamard, power_of_two, signs

M, C = 22, 5
MATRICES = (*DRAWN_MATRICES, "fastfood")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def matrix_of(name: str, seed: int = 0, m: int = M, c: int = C) -> WeightMatrix:
    if name == "fastfood":
        return FastFood(m, c, generator(seed))
    return DrawnMatrix(DRAWN_MATRICES[name], m, c, generator(seed))


@pytest.mark.parametrize("name", MATRICES)
def test_shape_is_that_of_the_matrix(name):
    for m, c in ((M, C), (16, 8), (9, 3), (40, 1)):
        matrix = matrix_of(name, m=m, c=c)
        assert tuple(matrix().shape) == tuple(matrix.shape)
        assert matrix.shape[1] == c
        assert name == "sgq" or matrix.shape[0] == m


@pytest.mark.parametrize("name", MATRICES)
def test_the_same_seed_is_the_same_matrix_and_calls_do_not_change_it(name):
    matrix = matrix_of(name)
    first = matrix().detach().clone()
    assert torch.equal(matrix(), first)
    assert torch.equal(matrix_of(name)(), first)
    assert not torch.equal(matrix_of(name, seed=1)(), first)


@pytest.mark.parametrize("name", MATRICES)
def test_redrawing_changes_what_is_drawn_and_not_what_is_learned(name):
    matrix = matrix_of(name)
    held = dict(matrix.state_dict())
    first = {key: value.clone() for key, value in held.items()}
    matrix.redraw(generator(8))
    assert (name == "fastfood") == all(torch.equal(held[key], first[key]) for key in first)
    # In place: an optimiser or a graph that holds the buffer sees the new one.
    assert all(matrix.state_dict()[key].data_ptr() == held[key].data_ptr() for key in held)
    if name != "fastfood":
        assert torch.equal(matrix(), matrix_of(name, seed=8)())


@pytest.mark.parametrize("name", MATRICES)
def test_redrawing_keeps_dtype_and_shape(name):
    matrix = matrix_of(name).double()
    before = matrix().shape
    matrix.redraw(generator(8))
    assert matrix().dtype == torch.float64
    assert matrix().shape == before
    if name not in ("fastfood", "sorf", "sgq"):
        # All the digits of double precision, and not those of the first draw's.
        assert not torch.equal(matrix().float().double(), matrix())


def test_redraw_finds_every_kernel_of_a_model():
    names = ("posrf-orf", "trigrf-qmc", "oprf-fastfood", "relu")
    random = generator()
    model = torch.nn.ModuleList([build_kernel(name, C, 2, M, 3, random) for name in names])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    redraw(model, generator(5))
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"0.weights.omega", "1.weights.omega"}


@pytest.mark.parametrize("name", MATRICES)
def test_state_dict_round_trip(name):
    saved, other = matrix_of(name), matrix_of(name, seed=1)
    assert not torch.equal(saved(), other())
    other.load_state_dict({key: value.clone() for key, value in saved.state_dict().items()})
    assert torch.equal(saved(), other())


def test_the_permutation_of_fastfood_is_part_of_the_file():
    """Power of the round trip: the diagonals alone do not make the matrix."""
    saved, other = matrix_of("fastfood"), matrix_of("fastfood", seed=1)
    assert set(saved.state_dict()) == {"outer", "inner", "input", "permutation"}
    part = {key: value for key, value in saved.state_dict().items() if key != "permutation"}
    missing = other.load_state_dict(part, strict=False)
    assert missing.missing_keys == ["permutation"]
    assert not torch.allclose(saved(), other())


@pytest.mark.parametrize("name", MATRICES)
def test_what_is_learned(name):
    matrix = matrix_of(name)
    learned = {key for key, _ in matrix.named_parameters()}
    assert learned == ({"outer", "inner", "input"} if name == "fastfood" else set())
    if name == "fastfood":
        matrix().square().sum().backward()
        assert all(bool(torch.isfinite(p.grad).all() and p.grad.any()) for p in matrix.parameters())


@pytest.mark.parametrize(("m", "c", "p"), [(8, 4, 4), (22, 5, 8), (3, 7, 8), (6, 1, 1)])
def test_fastfood_is_its_product(m, c, p):
    """S H G Π H B/√p, with scipy's Hadamard matrices of ±1, block below block."""
    food = FastFood(m, c, generator(2)).double()
    h = torch.from_numpy(scipy_hadamard(p)).double()
    found = []
    for b in range(math.ceil(m / p)):
        pi = torch.zeros(p, p, dtype=torch.float64)
        pi[torch.arange(p), food.permutation[b]] = 1
        s, g, signs_ = (torch.diag(x[b].detach()) for x in (food.outer, food.inner, food.input))
        found.append(s @ h @ g @ pi @ h @ signs_ / math.sqrt(p))
    torch.testing.assert_close(food().detach(), torch.cat(found)[:m, :c], rtol=1e-6, atol=1e-6)


def test_the_start_of_fastfood():
    """B of ±1, Π a permutation, and rows of the lengths that S gives them: s_i = S_ii |G|."""
    food = FastFood(24, 8, generator(2)).double()
    with torch.no_grad():
        assert bool((food.input.abs() == 1).all())
        assert bool((food.permutation.sort(dim=1).values == torch.arange(8)).all())
        lengths = (food.outer * food.inner.norm(dim=1, keepdim=True)).flatten()
        torch.testing.assert_close(food().norm(dim=1), lengths, rtol=1e-6, atol=1e-6)
        # Blocks are drawn one by one.
        for tensor in (food.outer, food.inner, food.input, food.permutation):
            assert not torch.equal(tensor[0], tensor[1])
        # Power: without the permutation, or without G's norm, it is another.
        food.permutation.copy_(torch.arange(8).expand(3, 8))
        moved = food().clone()
        food.inner.mul_(2)
        torch.testing.assert_close(food(), 2 * moved)


def test_hadamard_matrices():
    for n in (1, 2, 4, 32):
        assert torch.equal((hadamard(n) * math.sqrt(n)).round().long(), torch.from_numpy(scipy_hadamard(n)).long())
        torch.testing.assert_close(hadamard(n) @ hadamard(n), torch.eye(n, dtype=torch.float64))
    assert [power_of_two(n) for n in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]


def test_signs():
    found = signs((100, 100), generator())
    assert set(found.flatten().tolist()) == {-1.0, 1.0}
    assert abs(float(found.mean())) < 0.045


@pytest.mark.parametrize("name", DRAWN_MATRICES)
def test_built_on_the_meta_device_the_matrix_still_holds_numbers(name):
    """Files are loaded into models that are built there."""
    with torch.device("meta"):
        matrix = matrix_of(name)
    assert torch.equal(matrix(), matrix_of(name)())


@pytest.mark.parametrize("component", COMPONENT_FUNCTIONS)
@pytest.mark.parametrize("matrix", MATRICES)
def test_every_name_builds(component, matrix):
    kernel = build_kernel(f"{component}-{matrix}", C, 2, M, 3, generator())
    assert kernel.component is COMPONENT_FUNCTIONS[component]
    assert torch.equal(kernel.weights(), matrix_of(matrix)())


@pytest.mark.parametrize(
    "name", ["posrf", "posrf-", "-orf", "posrf-orf-orf", "PosRF-ORF", "gauss-iid", "posrf_orf", ""]
)
def test_a_wrong_name_says_which_there_are(name):
    with pytest.raises(InputError, match="such as posrf-orf") as caught:
        build_kernel(name, C, 2, M, 3, generator())
    assert all(word in str(caught.value) for word in (*COMPONENT_FUNCTIONS, *MATRICES, "elu", "relu", "lara"))
