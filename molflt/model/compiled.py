"""The model as one step fused by ``torch.compile``, for training on energies and inference."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import torch
import torch.fx.experimental._config

from molflt.errors import InputError
from molflt.model.energy import EnergyModel
from molflt.vocabulary import Compile


def can_compile() -> bool:
    """True if there is a C compiler, and no space in PyTorch's path, where its calls of the linker would break."""
    compilers = (os.environ.get("CC", "cc"), "gcc", "clang")
    return " " not in torch.__path__[0] and any(shutil.which(name) for name in compilers)


def is_wanted(choice: Compile, device: torch.device) -> bool:
    """Return whether to compile for work long enough to be worth the half minute.

    Raises:
        InputError: compilation is requested, and :func:`can_compile` is false.
    """
    if choice == "on" and not can_compile():
        raise InputError(
            "compile=on: torch.compile needs a C compiler (install gcc), and a PyTorch whose path has no space "
            f"({torch.__path__[0]}); or set off"
        )
    return choice == "on" or (choice == "auto" and device.type == "cuda" and can_compile())


def compile_model(model: EnergyModel, say: Callable[[str], None]) -> None:
    """Make a model compute by a compiled step from now on.

    Batches of every size share it, except those with structures on a mesh.
    """
    say("compiling the model: the first step takes half a minute or more")
    # Sizes that happen to be equal in the first batch need not be so in the next.
    torch.fx.experimental._config.use_duck_shape = False
    # All floats are constants of the model; as symbols they fail where a second layer meets that of the first.
    torch._dynamo.config.specialize_float = True
    model.compiled = torch.compile(EnergyModel.evaluate, dynamic=True)


def n_compilations() -> int:
    """Count the graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
