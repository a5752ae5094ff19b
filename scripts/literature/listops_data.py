"""ListOps as the Long Range Arena generates it (Nangia and Bowman 2018; Tay et al. 2021), at any length.

A sequence such as ``[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]`` has a digit as its value, here 5. As in the Arena's
lra_benchmarks/data/listops.py an argument is an operator with probability ¼ and a digit otherwise, the number of
arguments is uniform from 2 to the most there may be, the root is at depth 1, at the greatest depth there are digits
only, and whatever is too short or too long is drawn again. MED of an even number of arguments is the mean of the
middle two rounded down (the Arena: int(np.median(...))), SM the sum modulo 10. Unlike in the Arena both bounds on the
length are inclusive. Its files also have a parenthesis around every pair, which its tokeniser drops, so that the
tokens of a model are those counted here: operators with their bracket, digits, closing brackets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RULES: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2,
    "[SM": lambda values: sum(values) % 10,
}
"""Digits of operators, from the sorted values of their arguments."""
OPERATORS = tuple(RULES)
CLOSE = "]"
PADDING = "<pad>"
VOCABULARY = (PADDING, *(str(digit) for digit in range(10)), *OPERATORS, CLOSE)
"""The place of a token is its number. Padding is there for others: batches of this module have none."""
TOKEN = {name: number for number, name in enumerate(VOCABULARY)}
P_OPERATOR = 0.25
PATIENCE = 20_000
"""Trees in a row without a new sequence of the right length, after which there is taken to be none."""

Tree = int | tuple[str, list["Tree"]]
"""A digit, or an operator and its arguments."""


@dataclass(frozen=True)
class Example:
    """A sequence and its value.

    Args:
        tokens: numbers in VOCABULARY.
        answer: 0 to 9.
    """

    tokens: tuple[int, ...]
    answer: int


class TooLongError(Exception):
    """A tree has outgrown the longest sequence, and the rest of it need not be drawn."""


def uniforms(random: np.random.Generator) -> Iterator[float]:
    """Uniform numbers in [0, 1) without end; thirty times faster than one call of the generator for each."""
    while True:
        yield from random.random(1 << 14).tolist()


def draw_tree(random: Iterator[float], max_depth: int, max_args: int, max_length: int) -> Tree:
    """A tree with an operator at its root.

    The Arena draws the root like any other node and throws away a lone digit as too short, which is the same. Random
    numbers are uniform in [0, 1); for the bounds see :func:`examples`.

    Raises:
        TooLongError: it has more than ``max_length`` tokens.
    """
    left = max_length - 1

    def operator(depth: int) -> Tree:
        nonlocal left
        n_args = 2 + int((max_args - 1) * next(random))
        # Its own place is counted already: the closing bracket, and every argument as if it were a digit.
        left -= 1 + n_args
        if left < 0:
            raise TooLongError
        name = OPERATORS[int(len(OPERATORS) * next(random))]
        below = depth + 1
        p = P_OPERATOR if below < max_depth else 0.0
        return name, [operator(below) if next(random) < p else int(10 * next(random)) for _ in range(n_args)]

    return operator(1)


def value(tree: Tree) -> int:
    """The digit that a tree evaluates to."""
    if isinstance(tree, int):
        return tree
    name, arguments = tree
    return RULES[name](sorted(map(value, arguments)))


def tokens(tree: Tree) -> Iterator[int]:
    """Numbers in VOCABULARY, from left to right."""
    if isinstance(tree, int):
        yield TOKEN[str(tree)]
        return
    name, arguments = tree
    yield TOKEN[name]
    for argument in arguments:
        yield from tokens(argument)
    yield TOKEN[CLOSE]


def text(sequence: Sequence[int]) -> str:
    """Tokens as they are written."""
    return " ".join(VOCABULARY[number] for number in sequence)


def examples(
    count: int, seed: int, min_length: int, max_length: int, max_depth: int = 10, max_args: int = 10
) -> list[Example]:
    """Different sequences, the same ones for the same arguments; any part of the list is a fair sample of the whole.

    Args:
        count: how many.
        seed: of the draw.
        min_length: tokens of the shortest, at least 4, an operator with two arguments.
        max_length: tokens of the longest.
        max_depth: of a tree, the root being at 1; operators are nested up to ``max_depth`` − 1 times.
        max_args: of an operator.

    Raises:
        ValueError: the bounds leave nothing to draw, or hardly as many sequences as asked for.
    """
    if not (4 <= min_length <= max_length and max_depth >= 2 and max_args >= 2):
        raise ValueError(
            "ListOps needs 4 ≤ min_length ≤ max_length, max_depth ≥ 2 and max_args ≥ 2, got "
            f"{min_length}, {max_length}, {max_depth}, {max_args}"
        )
    random = uniforms(np.random.default_rng(seed))
    # A dictionary keeps the order in which sequences were drawn, and so the result the same everywhere.
    found: dict[tuple[int, ...], Example] = {}
    in_vain = 0
    while len(found) < count:
        in_vain += 1
        if in_vain > PATIENCE:
            raise ValueError(f"found only {len(found)} of {count} different sequences within these bounds")
        try:
            tree = draw_tree(random, max_depth, max_args, max_length)
        except TooLongError:
            continue
        sequence = tuple(tokens(tree))
        if len(sequence) >= min_length and sequence not in found:
            found[sequence] = Example(sequence, value(tree))
            in_vain = 0
    return list(found.values())


def by_length(data: Sequence[Example]) -> dict[int, tuple[Tensor, Tensor]]:
    """For each length its sequences, (n, length) int64, and their answers, (n,).

    The attention has no padding mask, so only sequences of exactly equal length share a batch.
    """
    groups: dict[int, list[Example]] = {}
    for example in data:
        groups.setdefault(len(example.tokens), []).append(example)
    return {
        length: (torch.tensor([e.tokens for e in mine]), torch.tensor([e.answer for e in mine]))
        for length, mine in sorted(groups.items())
    }


def epoch(
    groups: dict[int, tuple[Tensor, Tensor]], batch: int, random: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every sequence once, in batches of equal length in random order; what a length leaves over in a smaller one."""
    parts = [
        (length, part)
        for length, (_, answers) in groups.items()
        for part in torch.randperm(len(answers), generator=random).split(batch)
    ]
    for index in torch.randperm(len(parts), generator=random).tolist():
        length, part = parts[index]
        sequences, answers = groups[length]
        yield sequences[part], answers[part]


def commonest(train: Sequence[Example], test: Sequence[Example]) -> tuple[float, float]:
    """Accuracy on the test set of training's commonest digit, and of the commonest one for the first operator.

    The second is what a model gets without reading on: the least of many digits is a small one.
    """
    first = Counter(e.answer for e in train).most_common(1)[0][0]
    counts: dict[int, Counter[int]] = {}
    for e in train:
        counts.setdefault(e.tokens[0], Counter())[e.answer] += 1
    by_operator = {operator: count.most_common(1)[0][0] for operator, count in counts.items()}
    blind = float(np.mean([e.answer == first for e in test]))
    return blind, float(np.mean([e.answer == by_operator.get(e.tokens[0], first) for e in test]))
