"""ListOps: every sequence within its bounds, and its answer that of an evaluator which reads the text."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.literature import listops_data as listops


def evaluate(text):
    """The value of a written sequence, by a stack of open brackets; the median as the Arena has it."""
    rules = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(np.median(values)),
        "[SM": lambda values: int(np.sum(values) % 10),
    }
    stack = [("", [])]
    for token in text.split():
        if token == "]":
            name, values = stack.pop()
            stack[-1][1].append(rules[name](values))
        elif token in rules:
            stack.append((token, []))
        else:
            stack[-1][1].append(int(token))
    ((_, [answer]),) = stack
    return answer


def shape(text):
    """Operators open at once at most, and the numbers of arguments."""
    open_, deepest, counts = [0], 0, set()
    for token in text.split():
        if token == "]":
            counts.add(open_.pop())
            continue
        open_[-1] += 1
        if token in listops.OPERATORS:
            open_.append(0)
            deepest = max(deepest, len(open_) - 1)
    return deepest, counts


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    min_length=st.integers(4, 24),
    room=st.integers(12, 60),
    max_depth=st.integers(3, 10),
    max_args=st.integers(6, 10),
)
def test_answers_and_bounds(seed, min_length, room, max_depth, max_args):
    max_length = min_length + room
    found = listops.examples(40, seed, min_length, max_length, max_depth, max_args)
    assert len({example.tokens for example in found}) == 40
    for example in found:
        text = listops.text(example.tokens)
        assert example.answer == evaluate(text)
        assert min_length <= len(example.tokens) <= max_length
        deepest, counts = shape(text)
        # Digits only at max_depth, so that operators are open in one level less.
        assert deepest <= max_depth - 1
        assert 2 <= min(counts) <= max(counts) <= max_args
        assert listops.TOKEN[listops.PADDING] not in example.tokens


def test_published_examples():
    """Nangia and Bowman 2018, and Tay et al. 2021."""
    for tree, text, answer in (
        (("[MAX", [2, 9, ("[MIN", [4, 7]), 0]), "[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        (
            ("[MAX", [4, 3, ("[MIN", [2, 3]), 1, 0, ("[MED", [1, 5, 8, 9, 2])]),
            "[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]",
            5,
        ),
    ):
        assert listops.text(list(listops.tokens(tree))) == text
        assert listops.value(tree) == evaluate(text) == answer


def test_bounds_are_reached():
    """A length and a depth that are never met would pass the bounds as well."""
    found = listops.examples(400, 0, 4, 12, 4, 3)
    texts = [listops.text(example.tokens) for example in found]
    assert {len(example.tokens) for example in found} >= {5, 12}
    assert max(shape(text)[0] for text in texts) == 3
    assert set().union(*(shape(text)[1] for text in texts)) == {2, 3}
    assert {token for text in texts for token in text.split()} == set(listops.VOCABULARY[1:])


def test_operators_are_as_frequent_as_in_the_arena():
    random = listops.uniforms(np.random.default_rng(0))
    arguments, names = Counter(), Counter()
    for _ in range(4000):
        # Depth 3 and room for all there can be, so that nothing is thrown away.
        name, below = listops.draw_tree(random, 3, 10, 200)
        names[name] += 1
        arguments.update("digit" if isinstance(argument, int) else "operator" for argument in below)
    share = arguments["operator"] / arguments.total()
    # Five standard deviations of the mean of some 24,000 draws.
    assert share == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / arguments.total()) ** 0.5)
    assert arguments.total() / 4000 == pytest.approx(6, abs=0.25)
    assert all(count == pytest.approx(1000, abs=140) for count in names.values())


def test_same_seed_same_sequences():
    first = listops.examples(50, 3, 10, 40)
    assert listops.examples(50, 3, 10, 40) == first
    # A longer list begins with the shorter one: a size of the test set does not change the training set.
    assert listops.examples(80, 3, 10, 40)[:50] == first
    assert listops.examples(50, 4, 10, 40) != first


def test_epoch_has_every_sequence_once_in_batches_of_equal_length():
    data = listops.examples(300, 0, 8, 20)
    groups = listops.by_length(data)
    orders = []
    for seed in (0, 1):
        seen = []
        for sequences, answers in listops.epoch(groups, 16, torch.Generator().manual_seed(seed)):
            assert sequences.shape[0] == len(answers) <= 16
            seen += [
                listops.Example(tuple(row), int(answer))
                for row, answer in zip(sequences.tolist(), answers, strict=True)
            ]
        assert sorted(seen, key=lambda e: e.tokens) == sorted(data, key=lambda e: e.tokens)
        orders.append(seen)
    assert orders[0] != orders[1]


def test_accuracy_of_the_commonest_digit():
    minimum, maximum = listops.TOKEN["[MIN"], listops.TOKEN["[MAX"]
    train = [listops.Example((minimum,), 0)] * 3 + [listops.Example((maximum,), 9)] * 2
    test = [listops.Example((minimum,), 0), listops.Example((maximum,), 9), listops.Example((maximum,), 8)]
    blind, by_operator = listops.commonest(train, test)
    assert blind == pytest.approx(1 / 3)
    assert by_operator == pytest.approx(2 / 3)
    # An operator that training has not: the commonest digit of all.
    assert listops.commonest(train, [listops.Example((listops.TOKEN["[SM"],), 0)]) == (1.0, 1.0)
