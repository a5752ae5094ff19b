"""Learned optimisers: masks and running sums against closed forms, what they must not know, and their training."""

from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from torch.nn import functional

from scripts.literature.optimisers import evolution, history, landscapes, meta_training, networks, shipped
from scripts.literature.optimisers.memories import MEMORIES, build_memory
from scripts.literature.optimisers.population import OWN_VECTORS, Swarm, scalars, spread, step_of
from scripts.literature.optimisers.position_mask import PositionMask
from scripts.literature.sequence.prefix_sums import prefix_sums
from tests.attention.kernels.checks import generator


@pytest.mark.parametrize("dim", [2, 20])
def test_the_mask_is_an_estimate_of_its_closed_form(dim):
    errors = []
    for n_frequencies in (64, 4096):
        mask = PositionMask(n_heads=3, n_frequencies=n_frequencies).double()
        mask.weights.data = torch.randn(3, 4, generator=generator(), dtype=torch.float64)
        x = torch.randn(2, 6, dim, generator=generator(1), dtype=torch.float64) / dim**0.5
        epsilon = mask.draw(dim, generator(2)).double()
        found = mask(x, epsilon)
        squared = torch.cdist(x, x)[..., None] ** 2
        gaussians = torch.exp(-squared / (2 * torch.exp(2 * mask.log_widths)))
        exact = (gaussians @ mask.weights.T + mask.constant).movedim(-1, 1)
        errors.append(float((found - exact).detach().abs().mean()))
    assert errors[1] < 0.03 < errors[0]
    assert 4 < errors[0] / errors[1] < 16  # A root of 64 is 8.


@pytest.mark.parametrize("shape", [landscapes.quadratic, landscapes.rosenbrock, *landscapes.TESTING.values()])
def test_minima_lie_where_they_are_put(shape):
    functions = landscapes.placed(shape, 3, 4, 3.0, generator())
    at = functions.shift
    value, gradient = landscapes.value_and_gradient([functions], at)
    assert float((value / functions.factor).abs().max()) < 1e-5
    assert float((gradient / functions.factor[..., None]).abs().max()) < 1e-3
    around = at + 0.3 * torch.randn(3, 50, 4, generator=generator(1))
    assert float((functions(around) / functions.factor).min()) > 1e-3


def swarm(x, functions):
    begun = Swarm.begin(x, *landscapes.value_and_gradient([functions], x))
    step = -spread(x) * begun.gradients / begun.gradients.norm(dim=-1, keepdim=True)
    return begun.moved(step, *landscapes.value_and_gradient([functions], x + step), 0.1, ())


def test_it_knows_neither_place_turn_nor_unit():
    torch.set_default_dtype(torch.float64)
    try:
        dim, n = 5, 16
        functions = landscapes.placed(landscapes.rosenbrock, 2, dim, 3.0, generator())
        turn = landscapes.rotations(1, dim, generator(3))[0]
        move = torch.randn(dim, generator=generator(4))
        # f'(x turn + move) = 7 f(x).
        other = replace(functions, shift=functions.shift @ turn + move, transform=turn.T @ functions.transform)
        other.factor = 7 * functions.factor
        x = landscapes.start(2, n, dim, generator(1))
        here, there = swarm(x, functions), swarm(x @ turn + move, other)
        args = [(w, spread(w.x), w.best()) for w in (here, there)]
        seen = [scalars(*a) for a in args]
        torch.testing.assert_close(seen[0], seen[1])
        coefficients = torch.randn(2, n, len(OWN_VECTORS) + 4, generator=generator(5))
        coefficients[..., OWN_VECTORS.index("noise")] = 0
        weights = torch.rand(2, 2, n, n, generator=generator(6))
        steps = [step_of(*a, coefficients, weights, generator(7)) for a in args]
        torch.testing.assert_close(steps[0] @ turn, steps[1])
        # Power: against the axes a turned step is another one.
        assert not torch.allclose(steps[0], steps[1])
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", MEMORIES)
def test_variants_are_what_single_networks_are(name):
    models = [meta_training.build(name, seed) for seed in (0, 1)]
    own = [dict(model.named_parameters()) for model in models]
    variants = {key: torch.stack([one[key].detach() for one in own]) for key in own[0]}
    functions = landscapes.training_batch(2, 3, generator(1))
    x = landscapes.start(6, 16, 3, generator(2))
    # They share their random features, which are no parameters.
    models[1].load_state_dict(own[1] | dict(models[0].named_buffers()))
    together = meta_training.run(models[0], functions, x, 4, generator(3), variants)
    for k, model in enumerate(models):
        alone = meta_training.run(model, functions, x, 4, generator(3))
        torch.testing.assert_close(together[:, k], alone, rtol=1e-4, atol=1e-4)


def test_memories_are_of_one_size():
    sizes = [sum(p.numel() for p in build_memory(name, 16, 2, generator()).parameters()) for name in MEMORIES]
    assert max(sizes) < 1.1 * min(sizes)


def test_evolution_finds_a_minimum_by_ranks():
    model = torch.nn.Linear(3, 2)
    goal = torch.randn(2, 3, generator=generator())

    def tasks(random):
        scale = 10 ** torch.randn(5, generator=random)

        def utility(variants):
            distance = (variants["weight"] - goal).square().sum(dim=(1, 2))
            return evolution.ranks((distance[:, None] * scale)[None], (1.0,))

        return utility

    before = float((model.weight.detach() - goal).norm())
    for _ in evolution.evolve(model, tasks, 150, seed=0):
        pass
    assert float((model.weight.detach() - goal).norm()) < 0.2 * before


def test_ranks_know_no_scale_and_a_failure_is_the_worst():
    curves = torch.tensor([[[3.0, 30.0], [2.0, 20.0], [torch.nan, 10.0]]])
    assert evolution.ranks(curves, (1.0,)).tolist() == [-0.25, 0.25, 0.0]


def test_the_shipped_weights_optimise_what_they_never_saw():
    path = shipped.FOLDER / "population.safetensors"
    assert path.stat().st_size < 200_000
    with safe_open(path, "pt") as file:
        names = {key.partition("/")[0] for key in file.keys()}  # noqa: SIM118
    assert {f"{name}-0" for name in MEMORIES} <= names
    functions = landscapes.test_batch("Ackley", 8, 10, 99)
    x = landscapes.start(8, 16, 10, generator(1))
    for name in MEMORIES:
        model = meta_training.build(name)
        untrained = meta_training.run(model, [functions], x, 50, generator(2))[-1] / functions.factor[:, 0]
        shipped.load({f"{name}-0": model}, path)
        trained = meta_training.run(model, [functions], x, 50, generator(2))[-1] / functions.factor[:, 0]
        assert float(trained.median()) < 1e-3 < 0.03 < float(untrained.median())
    with pytest.raises(RuntimeError, match="Missing key"):
        shipped.load({"flt-99": meta_training.build("flt")}, path)


@pytest.mark.parametrize("name", ["flt", "no-rpe"])
def test_running_sums_are_the_causal_sums(name):
    model, steps, n = history.HistoryOptimiser(name).double(), 70, 3
    hidden = torch.randn(steps, n, 12, generator=generator(), dtype=torch.float64)
    query, key, normaliser = (t.double() for t in history.position_features(model.rpe, {}, steps))
    past, found = model.begin((n,)).double(), []
    for t in range(steps):
        read, past = model.remember(hidden[t], past, (query[t], key[t], normaliser[t]))
        found.append(read)
    value, gate = model.content(hidden).split([8, 4], dim=-1)
    of_query, of_key = (2 * torch.sigmoid(gate)).unflatten(-1, (2, 2)).unbind(-2)
    value = (value.unflatten(-1, (2, 4)) * of_key[..., None]).permute(1, 2, 0, 3)
    sums = prefix_sums(query.transpose(0, 1), key.transpose(0, 1), value, chunk=16)
    expected = sums / normaliser.transpose(0, 1)[..., None] * of_query.permute(1, 2, 0)[..., None]
    torch.testing.assert_close(torch.stack(found), expected.permute(2, 0, 1, 3).flatten(-2))


def test_the_mask_over_steps_is_that_of_the_rpe():
    model = history.HistoryOptimiser("flt").double()
    query, key, normaliser = history.position_features(model.rpe, {}, 50)
    pairs = torch.einsum("thf,shf->hts", query, key)
    torch.testing.assert_close(pairs[:, 30, 10], pairs[:, 20, 0])
    torch.testing.assert_close(normaliser[40], pairs[:, 40, :41].square().sum(-1).sqrt() + 1e-3 * pairs[:, 0, 0])


def test_loss_and_gradient_are_those_of_a_network():
    shape = networks.Shape(5, 4, 3, relu=True)
    theta = shape.start(2, generator())
    x, classes = torch.randn(2, 7, 5, generator=generator(1)), torch.randint(3, (2, 7), generator=generator(2))
    loss, gradient = shape.loss_and_gradient(theta, x, classes)
    assert theta.shape == gradient.shape == (2, sum(shape.sizes))
    mine = theta[1].clone().requires_grad_()
    w1, b1, w2, b2 = mine.split(shape.sizes)
    hidden = torch.relu(x[1] @ w1.view(5, 4) + b1)
    expected = functional.cross_entropy(hidden @ w2.view(4, 3) + b2, classes[1])
    torch.testing.assert_close(loss[1], expected.detach())
    torch.testing.assert_close(gradient[1], torch.autograd.grad(expected, mine)[0])


def test_adam_is_that_of_torch():
    shape, draw = networks.training_tasks(1, generator())
    theta = shape.start(1, generator(1))
    _, found = history.adam(shape, draw, theta, 5, generator(2), torch.tensor([0.01, 0.1]))
    parameter, random = theta.clone().requires_grad_(), generator(2)
    optimiser = torch.optim.Adam([parameter], lr=0.1)
    for _ in range(5):
        _, parameter.grad = shape.loss_and_gradient(parameter, *draw(random))
        optimiser.step()
    torch.testing.assert_close(found[1], parameter.detach())


@pytest.mark.parametrize("name", history.HISTORIES)
def test_the_shipped_weights_train_a_network(name):
    path = shipped.FOLDER / "history.safetensors"
    assert path.stat().st_size < 200_000
    shape, draw = networks.training_tasks(8, generator(7))
    theta, model = shape.start(8, generator(1)), history.HistoryOptimiser(name)
    before, _ = history.run(model, shape, draw, theta, 60, generator(2))
    shipped.load({f"{name}-0": model}, path)
    after, _ = history.run(model, shape, draw, theta, 60, generator(2))
    assert float(after[-10:].mean()) < 0.93 * float(before[-10:].mean())
