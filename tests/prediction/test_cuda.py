"""A GPU computes the same as a CPU. Skipped where there is no GPU.

Energies, forces and gradients of every attention mechanism in double precision, on structures of every periodicity;
then what a user meets: shipped models, the calculator, a run and its resume, and the commands.
"""

import json

import numpy as np
import pytest
import torch
from ase.build import molecule

from molflt import MolFLTCalculator, load
from molflt.attention.registry import ATTENTIONS, attention_config
from molflt.training.run_dir import read_records
from tests.attention.layers import water
from tests.attention.structures import STRUCTURES
from tests.model.models import all_structures, batch_for, make_model
from tests.training.runs import Stop, go

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

# Of the kernels one for each way of drawing or learning frequencies.
NAMED = (
    "flt", "local", "performer", "softmax", "flt-concat", "ra", "ra-rpe", "lara", "lara-rpe", "elu",
    "trigrf-fastfood", "posrf-sgq", "oprf-mm", "saderf-qmc",
)  # fmt: skip
MODELS = {
    **{name: (ATTENTIONS[name], {}) for name in NAMED},
    "vectors": ({"vector_channels": 4}, {}),
    "mesh": ({"frequencies": "mesh", "vector_channels": 4}, {}),
    "charges": ({}, {"charges": 2}),
    "recycles": ({"moment_channels": 0}, {"n_recycles": 1}),
}
"""Keys of the attention, and of the model."""
MIXED = [STRUCTURES["slab"](), STRUCTURES["triclinic"](), water(20)]


def everything(model, batch):
    """Energies, their gradients with respect to positions, and gradients of both with respect to parameters."""
    batch.positions.requires_grad_()
    energy = model(batch).energy
    (slope,) = torch.autograd.grad(energy.sum(), batch.positions, create_graph=True)
    loss = energy.square().sum() + slope.square().sum()
    found = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    return [t.detach().cpu() for t in (energy, slope, *(g for g in found if g is not None))]


@pytest.mark.parametrize("name", list(MODELS))
def test_energies_forces_and_gradients_are_those_of_the_cpu(name):
    attention, sizes = MODELS[name]
    model = make_model(attention_config(**attention), **sizes)
    structures = [*all_structures(), water(20)]
    if "charges" in sizes:
        structures = [atoms for atoms in structures if atoms.pbc.sum() in (0, 3)]
    expected = everything(model, batch_for(model, structures))
    found = everything(model.to("cuda"), batch_for(model, structures).to("cuda"))
    assert len(found) == len(expected) > 10
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max()) < 1e-8 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", ["flt", "mesh", "vectors"])
def test_a_step_waits_for_nothing(name):
    attention, sizes = MODELS[name]
    model = make_model(attention_config(**attention), **sizes).to("cuda")
    batch = batch_for(model, MIXED)
    batch.layout = model.plan()(batch)
    batch = batch.to("cuda")
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            model(batch).energy.sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["flt", "mesh", "vectors"])
def test_deterministic_or_not(name):
    """The same numbers to rounding, and to the last bit where PyTorch is told to be deterministic."""
    attention, sizes = MODELS[name]
    model = make_model(attention_config(**attention), **sizes).to("cuda")
    found = []
    for deterministic in (True, True, False):
        torch.use_deterministic_algorithms(deterministic)
        try:
            found.append(everything(model, batch_for(model, MIXED).to("cuda")))
        finally:
            torch.use_deterministic_algorithms(False)
    for first, again, free in zip(*found, strict=True):
        assert torch.equal(first, again)
        assert float((first - free).abs().max()) < 1e-8 * max(1.0, float(first.abs().max()))


@pytest.mark.parametrize("name", ["qm7-small", "fg", "acac"])
def test_shipped_models_predict_the_same(name):
    structures = [molecule("CH3CH2OH"), molecule("C6H6"), molecule("H2O", vacuum=1.2).repeat(6)]
    energies = [load(f"pretrained:{name}", device=device).predict(structures) for device in ("cpu", "cuda")]
    np.testing.assert_allclose(*energies, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("stress", [False, True])
@pytest.mark.parametrize("atoms", [molecule("CH3CH2OH"), molecule("H2O", vacuum=1.2, pbc=True).repeat(3)])
def test_a_replayed_step_is_that_of_the_cpu(atoms, stress):
    """Along a path with small moves, during which the layout is kept, and large ones."""
    if stress and not atoms.pbc.any():
        pytest.skip("no stress")
    random, path, replayed = np.random.default_rng(0), [], []
    calculators = [MolFLTCalculator("pretrained:acac", device, "float64") for device in ("cpu", "cuda")]
    for step in range(8):
        atoms.positions += random.normal(0, 0.2 if step == 4 else 0.01, size=atoms.positions.shape)
        for calculator in calculators:
            calculator.calculate(atoms, ["forces", "stress"] if stress else ["forces"])
            path.append(np.concatenate([np.ravel(calculator.results[key]) for key in sorted(calculator.results)]))
        replayed.append(calculators[1]._replay._captured is not None)
    assert sum(replayed) >= 5
    np.testing.assert_allclose(path[1::2], path[::2], rtol=1e-8, atol=1e-8)


def test_a_run_learns_resumes_and_predicts_on_either(make_config, tiny_data, tmp_path, molflt):
    common = {"trainer.max_epochs": 3, "optimiser.name": "muon"}
    config = make_config(**common, **{"trainer.accelerator": "gpu"})
    go(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(config, tmp_path / "stopped", Stop(1, 1))
    go(config, tmp_path / "stopped", resume=True)
    go(make_config(**common), tmp_path / "cpu")
    whole, stopped, cpu = (
        [r["val/energy_mae"] for r in read_records(tmp_path / name)] for name in ("whole", "stopped", "cpu")
    )
    assert stopped == pytest.approx(whole, rel=1e-3)
    assert whole == pytest.approx(cpu, rel=0.02)
    path, data = tmp_path / "whole" / "best.safetensors", tiny_data / "val.lmdb"
    errors = []
    for device in ("cpu", "cuda"):
        result = molflt("evaluate", path, data, "--device", device, "--json")
        assert result.status == 0, result
        errors.append(json.loads(result.out)["energy_mae"])
    assert errors[1] == pytest.approx(errors[0], rel=1e-4)
    result = molflt("check-invariance", path, data, "--device", "cuda")
    assert result.status == 0, result
