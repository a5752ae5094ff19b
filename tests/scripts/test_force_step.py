"""The benchmark of a training step with forces: it differentiates what depends on positions, images included."""

import torch

from scripts.benchmarks import models as bench
from scripts.benchmarks import structures
from scripts.benchmarks.force_step import SIZES, energies
from scripts.benchmarks.model_worker import build


def test_edges_follow_the_atoms_across_the_border_of_the_cell():
    """SchNet sees nothing but edge vectors: they are those of the batch, and a shift of all atoms changes nothing."""
    torch.manual_seed(0)
    batch = bench.plain_batch([structures.cube(8)], 4.0, False)
    assert batch.cell_offsets.any()
    model = build("schnet", SIZES["schnet"]).eval()
    positions = batch.positions.detach().requires_grad_()
    energy = energies(model, batch, positions)
    torch.testing.assert_close(energy, model(model.prepare(batch)))
    (gradient,) = torch.autograd.grad(energy.sum(), positions)
    assert gradient.abs().max() > 1e-4
    assert gradient.sum(dim=0).abs().max() < 1e-4 * gradient.abs().max() * len(positions)
