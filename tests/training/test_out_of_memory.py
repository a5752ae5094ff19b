"""Batches that do not fit into memory: what to change is said."""

import numpy as np
import pytest
import torch

from molflt.errors import InputError, out_of_memory
from molflt.model.energy_model import EnergyModel
from tests.training.runs import go


def _gpu():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


# More than an address space holds: the errors are the allocators' own.
FAIL = {"gpu": _gpu, "numpy": lambda: np.empty(1 << 50), "cpu": lambda: torch.empty(1 << 50)}


@pytest.mark.parametrize("kind", FAIL)
def test_how_allocators_say_it(kind):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        FAIL[kind]()
    assert out_of_memory(caught.value)
    assert not out_of_memory(ValueError("out of memory"))


class Full(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(ctx, value, fail):
        ctx.fail = fail
        return value.clone()

    @staticmethod
    def backward(ctx, *gradients):
        ctx.fail()


def room_for(n, monkeypatch, where="forward", kind="gpu"):
    """From now on, a model runs out of memory with more than so many structures."""
    forward = EnergyModel.forward

    def limited(self, batch):
        too_large = batch.num_graphs > n and self.training == (where != "validation")
        if too_large and where != "backward":
            FAIL[kind]()
        output = forward(self, batch)
        if too_large:
            output.energy = Full.apply(output.energy, FAIL[kind])
        return output

    monkeypatch.setattr(EnergyModel, "forward", limited)


@pytest.mark.parametrize(
    ("where", "kind"), [("forward", "numpy"), ("forward", "cpu"), ("backward", "gpu"), ("validation", "gpu")]
)
def test_the_key_to_lower_is_named(where, kind, make_config, tmp_path, monkeypatch):
    room_for(1, monkeypatch, where, kind)
    message = r"out of memory with a batch of \d+ structures \(\d+ atoms\); lower data.max_atoms, which is 60"
    with pytest.raises(InputError, match=message):
        go(make_config(**{"data.max_atoms": 60}), tmp_path / "run")


def test_one_structure_too_large_is_named(make_config, tmp_path, monkeypatch):
    room_for(0, monkeypatch)
    with pytest.raises(InputError, match=r"set0-\d\d: out of memory with this structure alone \(\d+ atoms\)"):
        go(make_config(**{"data.max_atoms": 1}), tmp_path / "run")
