"""Small networks to train: the tasks of an optimiser of single parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]
"""A batch of every task: inputs (tasks, examples, inputs) and classes (tasks, examples)."""


@dataclass(frozen=True)
class Shape:
    """One hidden layer.

    Attributes:
        inputs: numbers of an example.
        width: of the hidden layer.
        classes: outputs.
        relu: or else tanh.
    """

    inputs: int
    width: int
    classes: int
    relu: bool

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Parameters of weights and biases of either layer, which stand in one vector in this order."""
        return self.inputs * self.width, self.width, self.width * self.classes, self.classes

    def start(self, tasks: int, generator: torch.Generator) -> Tensor:
        """Random parameters, (tasks, parameters), of a standard deviation of one over the root of the fan-in."""
        fans = (self.inputs, self.inputs, self.width, self.width)
        parts = [
            torch.randn(tasks, n, generator=generator) / fan**0.5 for n, fan in zip(self.sizes, fans, strict=True)
        ]
        parts[1].zero_()
        parts[3].zero_()
        return torch.cat(parts, dim=-1)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Parameters (..., tasks, p) and inputs (tasks, examples, inputs) → (..., tasks, examples, classes)."""
        w1, b1, w2, b2 = theta.split(self.sizes, dim=-1)
        hidden = x @ w1.unflatten(-1, (self.inputs, self.width)) + b1[..., None, :]
        hidden = functional.relu(hidden) if self.relu else torch.tanh(hidden)
        return hidden @ w2.unflatten(-1, (self.width, self.classes)) + b2[..., None, :]

    def loss_and_gradient(self, theta: Tensor, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy (..., tasks) and its gradient, as the parameters; neither is differentiable."""
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            log_share = functional.log_softmax(self.logits(leaf, x), dim=-1)
            wanted = classes.expand(log_share.shape[:-1])[..., None]
            loss = -log_share.gather(-1, wanted).mean(dim=(-1, -2))
            (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        return loss.detach(), gradient


def training_tasks(tasks: int, generator: torch.Generator, examples: int = 32) -> tuple[Shape, Draw]:
    """Classifications to meta-train on: classes of two Gaussian blobs each, at random places, of random scales.

    Every batch is drawn anew, so that there is no training set to learn by heart.

    Args:
        tasks: how many, of one shape: 4 to 8 inputs, 6 to 12 hidden units, 3 or 4 classes.
        generator: of everything random.
        examples: in a batch.
    """

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    shape = Shape(integer(4, 8), integer(6, 12), integer(3, 4), bool(integer(0, 1)))
    centres = 1.2 * torch.randn(tasks, 2 * shape.classes, shape.inputs, generator=generator)
    scale = torch.exp(0.7 * torch.randn(tasks, 1, shape.inputs, generator=generator))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        blob = torch.randint(2 * shape.classes, (tasks, examples), generator=random)
        x = centres.take_along_dim(blob[..., None], dim=1)
        return scale * (x + torch.randn(x.shape, generator=random)), blob % shape.classes

    return shape, draw


def images(pixels: Tensor, digits: Tensor, tasks: int, examples: int = 64) -> Draw:
    """Batches of a data set, (n, inputs) and (n,), drawn with replacement for each of the runs side by side."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(digits), (tasks, examples), generator=random)
        return pixels[chosen], digits[chosen]

    return draw
