"""What the vocabulary's check refuses, each by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from molflt import vocabulary
from molflt.data.open import structures_of
from molflt.errors import InputError

Change = Callable[[dict[str, Any]], object]


def _water():
    return {
        "atomic_numbers": torch.tensor([8, 1, 1]),
        "positions": torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64),
        "cell": torch.zeros((1, 3, 3), dtype=torch.float64),
        "pbc": torch.zeros((1, 3), dtype=torch.bool),
        "tags": torch.tensor([2, 2, 2]),
        "fixed": torch.zeros(3, dtype=torch.bool),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("positions"), "field 'positions' is missing"),
        (lambda f: f.pop("atomic_numbers"), "field 'atomic_numbers' is missing"),
        (lambda f: f.update(atomic_numbers=torch.zeros(0, dtype=torch.int64)), "the structure has no atoms"),
        (lambda f: f.update(colour=torch.zeros(3)), "unknown field 'colour'; known: "),
        (lambda f: f.update(positions=f["positions"][:2]), r"'positions' has shape \(2, 3\), expected \(3, 3\)"),
        (lambda f: f.update(positions=f["positions"].float()), "'positions' has dtype torch.float32"),
        (lambda f: f["positions"].fill_(float("nan")), "'positions' holds NaN or infinity"),
        (lambda f: f["cell"].fill_(float("inf")), "'cell' holds NaN or infinity"),
        (lambda f: f["atomic_numbers"].fill_(0), "found 0: a ghost or dummy atom"),
        (lambda f: f["atomic_numbers"].fill_(119), "must lie between 1 and 118, found 119 to 119"),
        (lambda f: f["atomic_numbers"].fill_(-1), "must lie between 1 and 118"),
        (lambda f: f["tags"].fill_(3), "'tags' must lie between 0 and 2, found 3 to 3"),
        (lambda f: f["tags"].fill_(-1), "'tags' must lie between 0 and 2"),
    ],
)
def test_refused(change, message):
    fields = _water()
    change(fields)
    with pytest.raises(InputError, match=f"^here: .*{message}"):
        vocabulary.check(fields, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("atomic_numbers"), "field 'atomic_numbers' is missing"),
        (lambda f: f.update(positions=[[0.0, 0.0, 0.0]]), "'positions' is list, expected a tensor"),
    ],
)
def test_what_users_hand_over_is_checked(change, message):
    fields = _water()
    change(fields)
    with pytest.raises(InputError, match=f"mine: .*{message}"):
        structures_of(Data(**fields), "mine")
