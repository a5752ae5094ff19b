"""Batches that do not fit into memory: the same gradient from their parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.errors import InputError
from molflt.memory import out_of_memory
from molflt.model.energy_model import EnergyModel
from molflt.training.config import TrainConfig
from molflt.training.run import train
from molflt.training.run_directory import read_records

MakeConfig = Callable[..., TrainConfig]


def _gpu() -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


# More than an address space holds: the errors are the allocators' own.
FAIL: dict[str, Callable[[], Any]] = {
    "gpu": _gpu,
    "numpy": lambda: np.empty(1 << 50),
    "cpu": lambda: torch.empty(1 << 50),
}


def quiet(line: str) -> None:
    pass


class Gradients(Callback):
    """Keeps the gradients of every step."""

    def __init__(self) -> None:
        self.found: list[list[torch.Tensor]] = []

    def on_before_optimizer_step(self, trainer: lightning.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.found.append([p.grad.clone() for p in pl_module.model.parameters() if p.grad is not None])


class Marker(torch.autograd.Function):
    """Raises in the backward pass, and is seen to live as long as the graph does."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, fail: Callable[[], Any], alive: list[Any]) -> torch.Tensor:
        ctx.held = torch.zeros(1)
        alive.append(weakref.ref(ctx.held))
        ctx.fail = fail
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.fail()


def room_for(
    n: int, monkeypatch: pytest.MonkeyPatch, where: str = "forward", kind: str = "gpu", only_training: bool = True
) -> list[Any]:
    """From now on a model runs out of memory with more than so many structures; gives markers of dead graphs."""
    forward = EnergyModel.forward
    alive: list[Any] = []

    def limited(self: EnergyModel, batch: Any) -> Any:
        assert not any(reference() is not None for reference in alive), "the graph that did not fit is still there"
        too_large = batch.num_graphs > n and (self.training or not only_training)
        if too_large and where == "forward":
            FAIL[kind]()
        output = forward(self, batch)
        if too_large:
            output.energy = Marker.apply(output.energy, FAIL[kind], alive)
        return output

    monkeypatch.setattr(EnergyModel, "forward", limited)
    return alive


@pytest.mark.parametrize(
    ("where", "kind", "forces"),
    [
        ("forward", "gpu", False),
        ("forward", "numpy", False),
        ("forward", "cpu", True),
        ("backward", "gpu", False),
        ("backward", "cpu", False),
    ],
)
def test_the_same_gradient(
    where: str, kind: str, forces: bool, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"trainer.max_epochs": 1, "trainer.precision": "64-true", "data.max_atoms": 60}
    if forces:
        # The structures have no forces of their own; any number will do.
        changes |= {"data.target": "energy", "loss.force_weight": 3.0, "loss.energy_per": "atom"}
        changes |= {f"data.{name}": _with_forces(make_config, tmp_path) for name in ("train", "val")}
    config = make_config(**changes)
    whole, parts, lines = Gradients(), Gradients(), list[str]()
    train(config, tmp_path / "whole", say=quiet, callbacks=[whole])
    alive = room_for(1, monkeypatch, where, kind)
    train(config, tmp_path / "parts", say=lines.append, callbacks=[parts])
    assert len(parts.found) == len(whole.found) > 2
    for some, others in zip(parts.found, whole.found, strict=True):
        for mine, theirs in zip(some, others, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert sum("out of memory" in line for line in lines) == 1
    (record,), (expected,) = read_records(tmp_path / "parts"), read_records(tmp_path / "whole")
    assert record == pytest.approx(expected, rel=1e-6)
    assert bool(alive) == (where == "backward")


def _with_forces(make_config: MakeConfig, folder: Path) -> str:
    import ase.io

    from molflt.data.ase_io import to_atoms
    from molflt.data.sources import open_dataset

    frames = []
    dataset = open_dataset(make_config().data.train)
    for k in range(len(dataset)):
        data = dataset[k]
        data.forces = torch.sin(data.positions + k)
        frames.append(to_atoms(data))
    path = folder / "forces.extxyz"
    ase.io.write(path, frames)
    return str(path)


def test_one_structure_too_large_is_named(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("forward", "backward"):
        room_for(0, monkeypatch, where)
        with pytest.raises(InputError, match=r"set0-\d\d: out of memory with this structure alone \(\d+ atoms\)"):
            train(make_config(), tmp_path / where, say=quiet)
        monkeypatch.undo()


def test_validation_in_parts(
    make_config: MakeConfig, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validating(self: EnergyModel, batch: Any) -> Any:
        if batch.num_graphs > 1 and not torch.is_grad_enabled():
            raise MemoryError
        return forward(self, batch)

    forward = EnergyModel.forward
    monkeypatch.setattr(EnergyModel, "forward", validating)
    train(make_config(), tmp_path / "run", say=quiet)
    for mine, expected in zip(read_records(tmp_path / "run"), read_records(tiny_run), strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)


def test_other_errors_are_not_taken_for_it(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: EnergyModel, batch: Any) -> Any:
        raise RuntimeError("shapes cannot be multiplied")

    assert not out_of_memory(ValueError("out of memory"))
    monkeypatch.setattr(EnergyModel, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        train(make_config(), tmp_path / "run", say=quiet)
