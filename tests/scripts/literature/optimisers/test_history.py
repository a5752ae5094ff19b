"""The optimiser with a causal history: its running sums against the package's, and what it is trained on."""

import pytest
import torch
from torch.nn import functional

from scripts.literature.optimisers import history, networks, shipped
from scripts.literature.sequence.prefix_sums import prefix_sums
from tests.attention.kernels.checks import generator


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
