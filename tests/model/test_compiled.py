"""A compiled model gives what the model gives, for batches of every size."""

import copy
from functools import partial

import numpy as np
import pytest
import torch

from molflt.errors import InputError
from molflt.model import compiled
from molflt.model.derivatives import derivatives
from molflt.model.energy import EnergyModel
from molflt.training.config import preset_config
from scripts.benchmarks import structures


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "device"), [("aot_eager", "cpu"), ("inductor", "cpu"), ("inductor", "cuda")])
def test_compiled_is_eager(backend, device, monkeypatch):
    if backend == "inductor" and not compiled.can_compile():
        pytest.skip("no C compiler, or a space in the path of PyTorch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    # Tracing alone needs no C compiler.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.manual_seed(0)
    config = preset_config("small").model
    config.n_layers = 2
    eager = EnergyModel(config).train().to(device)
    fast, rng, lines = copy.deepcopy(eager), np.random.default_rng(0), []
    compiled.compile_model(fast, lines.append)
    assert "half a minute" in lines[0]
    before = compiled.n_compilations()
    for n in (3, 5):
        batch = structures.batch_for(eager, [structures.slab(20, rng) for _ in range(n)]).to(device)
        found, expected = [], []
        for model, values in ((fast, found), (eager, expected)):
            output = model(batch)
            (output.energy.square().mean() + output.displacement.square().mean()).backward()
            values += [output.energy.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        assert len(found) == len(expected) > 20
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
        forces, of_eager = derivatives(fast, batch).forces, derivatives(eager, batch).forces
        torch.testing.assert_close(forces, of_eager, rtol=1e-4, atol=1e-4 * float(of_eager.abs().max()))
    # Once for batches of every size; groups of structures may be one or two, and forces ask for another derivative.
    assert compiled.n_compilations() - before <= 4


@pytest.mark.parametrize("there", [True, False])
def test_what_is_compiled(there, monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: "/usr/bin/cc" if there else None)
    monkeypatch.setattr(torch, "__path__", ["/usr/lib/torch"])
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert not any(compiled.is_wanted(choice, cpu) for choice in ("off", "auto"))
    assert compiled.is_wanted("auto", gpu) == there
    if there:
        assert compiled.is_wanted("on", cpu)
    else:
        with pytest.raises(InputError, match="C compiler"):
            compiled.is_wanted("on", gpu)
    monkeypatch.setattr(torch, "__path__", ["/my lib/torch"])
    assert not compiled.can_compile()
