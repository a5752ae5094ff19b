"""Batches by an atom budget."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.data import _set_sampler_epoch
from torch.utils.data import DataLoader

from molflt.data.batch import AtomBudgetSampler, StructureCollater, collate
from molflt.data.neighbours import attach_neighbours
from molflt.errors import InputError

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=120)


def _batches(sampler, epoch=0):
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches


def _within_budget(batch, sizes, max_atoms):
    return len(batch) == 1 or len(batch) * max(sizes[k] for k in batch) <= max_atoms


@given(sizes=SIZES, max_atoms=st.integers(1, 150), n_ranks=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_training_batches(sizes, max_atoms, n_ranks):
    if len(sizes) < n_ranks:
        with pytest.raises(InputError, match="ranks"):
            AtomBudgetSampler(sizes, max_atoms, shuffle=True, seed=1, n_ranks=n_ranks)
        return
    samplers = [
        AtomBudgetSampler(sizes, max_atoms, shuffle=True, seed=1, rank=r, n_ranks=n_ranks) for r in range(n_ranks)
    ]
    lengths = set()
    for epoch in range(3):
        shares = [_batches(sampler, epoch) for sampler in samplers]
        lengths.update(len(share) for share in shares)
        batches = [batch for share in shares for batch in share]
        assert all(_within_budget(batch, sizes, max_atoms) for batch in batches)
        assert all(batches)
        seen = Counter(index for batch in batches for index in batch)
        assert max(seen.values()) == 1
        # structures are left out only where each is alone in its batch and the ranks do not come out even
        left_out = len(sizes) - len(seen)
        assert left_out < n_ranks
        assert left_out == 0 or all(len(batch) == 1 for batch in batches)
    # the same on every rank and in every epoch
    assert len(lengths) == 1
    assert lengths.pop() > 0


@given(sizes=SIZES, max_atoms=st.integers(1, 150), n_ranks=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_evaluation_batches(sizes, max_atoms, n_ranks):
    shares = [
        _batches(AtomBudgetSampler(sizes, max_atoms, shuffle=False, seed=1, rank=r, n_ranks=n_ranks))
        for r in range(n_ranks)
    ]
    # dealt out in turn: put together again they are the data set in its order
    whole = [
        shares[k % n_ranks][k // n_ranks]
        for k in range(sum(map(len, shares)))
        if k // n_ranks < len(shares[k % n_ranks])
    ]
    assert [index for batch in whole for index in batch] == list(range(len(sizes)))
    assert all(_within_budget(batch, sizes, max_atoms) for batch in whole)
    # and none is cut before it is full
    for batch, following in pairwise(whole):
        assert not _within_budget([*batch, following[0]], sizes, max_atoms)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_epochs_differ_and_seeds_repeat():
    sizes = np.random.default_rng(0).integers(10, 60, size=400)
    sampler = AtomBudgetSampler(sizes, 600, shuffle=True, seed=3)
    first, second = _batches(sampler, 0), _batches(sampler, 1)
    as_sets = [{frozenset(batch) for batch in batches} for batches in (first, second)]
    # new combinations, not the same batches in another order
    assert len(as_sets[0] & as_sets[1]) < 0.05 * len(first)
    assert _batches(sampler, 0) == first
    assert _batches(AtomBudgetSampler(sizes, 600, shuffle=True, seed=3), 0) == first
    assert _batches(AtomBudgetSampler(sizes, 600, shuffle=True, seed=4), 0) != first


def test_buckets_use_the_budget():
    sizes = np.random.default_rng(0).integers(4, 24, size=6000)
    sampler = AtomBudgetSampler(sizes, 500, shuffle=True, seed=0)
    fewest = sizes.sum() / 500
    assert len(sampler) < 1.15 * fewest
    # negative control: without buckets the padded budget wastes much more
    assert len(AtomBudgetSampler(sizes, 500, shuffle=False, seed=0)) > 1.5 * fewest


@pytest.mark.parametrize(
    ("sizes", "options"), [([], {}), ([3, 0], {}), ([3], {"max_atoms": 0}), ([3], {"rank": 1}), ([3], {"n_ranks": 0})]
)
def test_impossible_batches_are_refused(sizes, options):
    with pytest.raises(InputError):
        AtomBudgetSampler(sizes, **{"max_atoms": 10, "shuffle": False, "seed": 0, **options})


def test_lightning_finds_set_epoch():
    sampler = AtomBudgetSampler([1, 2, 3], 3, shuffle=True, seed=0)
    _set_sampler_epoch(DataLoader([1, 2, 3], batch_sampler=sampler), 5)
    assert sampler.epoch == 5


def test_edges_count_through_the_batch(make_structure):
    structures = [make_structure(seed, n) for seed, n in enumerate((3, 5, 4))]
    batch = StructureCollater(5.0)(structures)
    receiver, sender = batch.edge_index
    assert torch.equal(batch.batch[receiver], batch.batch[sender])
    shifts = torch.einsum("ec,ecx->ex", batch.cell_offsets.double(), batch.cell[batch.batch[receiver]])
    distances = (batch.positions[receiver] - batch.positions[sender] - shifts).norm(dim=-1)
    assert len(distances) > 50
    assert distances.max() < 5.0
    # the collater leaves the structures as they were
    assert "edge_index" not in structures[0]
    alone = [attach_neighbours(s, 5.0).edge_index + k for s, k in zip(structures, (0, 3, 8), strict=True)]
    assert torch.equal(batch.edge_index, torch.cat(alone, dim=1))
    assert (batch.cell.shape, batch.pbc.shape, batch.y_relaxed.shape) == ((3, 3, 3), (3, 3), (3,))
    assert batch.name == ["structure 0", "structure 1", "structure 2"]


@pytest.mark.parametrize("field", ["y_relaxed", "positions_relaxed"])
def test_a_label_of_some_structures_only_is_an_error(make_structure, field):
    structures = [make_structure(seed) for seed in range(3)]
    assert field in collate(structures)
    del structures[1][field]
    with pytest.raises(InputError, match=f"'{field}'.*structure 1"):
        collate(structures)
    with pytest.raises(InputError):
        collate([])


def test_text_of_some_structures_only_is_left_out(make_structure):
    structures = [make_structure(seed) for seed in range(2)]
    structures[1].adsorbate = "CO"
    assert "adsorbate" not in collate(structures)
    structures[0].adsorbate = "H"
    assert collate(structures).adsorbate == ["H", "CO"]
