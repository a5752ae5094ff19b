"""Muon against the singular value decomposition, torch's own, and AdamW for what is no matrix."""

import copy

import pytest
import torch

from molflt.training.muon import Muon, orthogonal_factor


@pytest.mark.parametrize("shape", [(3, 20, 50), (2, 50, 20), (1, 30, 30)])
def test_singular_vectors_stay_and_singular_values_become_nearly_one(shape):
    torch.manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64)
    u, values, vh = torch.linalg.svd(matrices, full_matrices=False)
    inside = u.mT @ orthogonal_factor(matrices) @ vh.mT
    found = torch.diagonal(inside, dim1=1, dim2=2)
    assert inside.allclose(torch.diag_embed(found), atol=1e-10)
    large = values > 0.02 * values[:, :1]
    assert bool(((found > 0.5) & (found < 1.3))[large].all())
    # One large direction among small ones moves no farther than they do: that is what the gradient itself lacks.
    stretched = u @ torch.diag_embed(values * torch.linspace(20, 1, values.shape[1], dtype=torch.float64)) @ vh
    assert float(torch.linalg.svdvals(orthogonal_factor(stretched)).max()) < 1.3
    assert not orthogonal_factor(torch.zeros(1, 3, 4)).any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon of its own")
def test_steps_are_those_of_torch():
    """Matrices against torch's Muon, which iterates in bfloat16; the rest against AdamW, exactly."""
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 24), (8, 24), (24, 8), (24,), (1, 24))]
    theirs = copy.deepcopy(ours)
    common = {"lr": 0.03, "weight_decay": 0.1}
    adam = {"betas": (0.9, 0.98), "eps": 1e-6}
    optimiser = Muon([{"params": ours[3:]}, {"params": ours[:3], "orthogonal": True}], **common, **adam)
    oracles = [
        torch.optim.Muon(theirs[:3], **common, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(theirs[3:], **common, **adam),
    ]
    start = [p.detach().clone() for p in ours]
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        for each in (optimiser, *oracles):
            each.step()
    for k, (a, b, before) in enumerate(zip(ours, theirs, start, strict=True)):
        moved = (b - before).detach().norm()
        assert float((a - b).detach().norm() / moved) < (0.02 if k < 3 else 1e-6)
