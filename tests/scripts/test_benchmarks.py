"""Scripts that measure: each runs with ``--quick``, peers are what they are said to be, steps wait for nothing."""

import itertools
import os
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.calculator import Calculator
from ase.io import write
from torch_geometric.nn.models import dimenet

from molflt.data.batch import collate as batch_of
from molflt.data.neighbours import attach_neighbours
from molflt.data.oc20.lmdb import LmdbDataset
from scripts import results
from scripts.benchmarks import (
    accuracy,
    accuracy_data,
    acetylacetone,
    additivity,
    adsorb_guesses,
    batched_relaxation,
    clusters,
    compare_attention,
    density,
    domain,
    estimator,
    few_geometries,
    fg_splits,
    fine_tuning,
    force_step,
    gpu,
    invariance,
    layer_worker,
    loader,
    md_drift,
    models,
    operators,
    pilots,
    relaxation,
    speed,
    structures,
)
from scripts.benchmarks.graph_models import DimeNetEnergy, SchNetEnergy, triplets
from scripts.benchmarks.layer_peers import DenseWithBias
from scripts.benchmarks.layers import DIM, MolfltLayer
from scripts.benchmarks.operators import count, dynamics_step, energy_step
from scripts.benchmarks.peers import build, collate, n_parameters, plain

QUICK = {
    accuracy: ["--data", "atoms", "--rows", "flt", "flt, muon", "SchNet", "--mean"],
    acetylacetone: [],
    additivity: ["pretrained:qm7-small"],
    adsorb_guesses: ["pretrained:fg"],
    batched_relaxation: [],
    clusters: [],
    compare_attention: [],
    density: ["pretrained:organic"],
    domain: [],
    estimator: [],
    few_geometries: [],
    fine_tuning: [],
    force_step: ["{folder}/water.extxyz"],
    invariance: [],
    loader: [],
    md_drift: ["pretrained:acac", "{folder}/water.extxyz"],
    operators: [],
    pilots: ["far-dipoles"],
    relaxation: [],
    speed: [],
}
"""Arguments of each script besides ``--quick``."""


@pytest.mark.slow
@pytest.mark.skipif("MOLFLT_DATA" not in os.environ, reason="MOLFLT_DATA is not set")
@pytest.mark.parametrize("script", QUICK, ids=lambda script: script.__name__.rpartition(".")[2])
def test_every_script_runs_quickly(script, call, tmp_path, capsys):
    """Twice where it writes a CSV: what is there is not measured again."""
    write(tmp_path / "water.extxyz", [molecule("H2O")] * 5)
    arguments = ["--quick", *(text.format(folder=tmp_path) for text in QUICK[script])]
    source = Path(script.__file__).read_text(encoding="utf-8")
    arguments += ["--out", tmp_path / "out"] if 'parser(__doc__, "' in source else []
    arguments += ["--results", tmp_path / "kept.csv"] if "options.results" in source else []
    call(script.main, *arguments)
    found = results.read(tmp_path / "kept.csv")
    assert capsys.readouterr().out or found
    assert all(row.get("status", "done") in ("done", "not available") for row in found), found
    if found and script not in (loader, domain, estimator):
        call(script.main, *arguments)
        assert results.read(tmp_path / "kept.csv") == found


class Gas(Calculator):
    """Atoms that know nothing of each other: at a time step of 1.5 fs they only fly apart."""

    implemented_properties = ("energy", "forces", "stress")

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        self.results = {"energy": 0.0, "forces": np.zeros((len(atoms), 3)), "stress": np.zeros(6)}


def test_a_density_goes_on_where_it_stopped(tmp_path):
    """A gas at a thousand times its density at 1 bar expands; 8 waters in 29.9 Å³ each begin at 1.000 g/cm³."""
    first = density.run(Gas(), tmp_path, 200, 8, 5)
    assert first[0] == pytest.approx(18.015 / 0.60221408 / 29.9, rel=1e-6)
    assert len(first) == 11
    more = density.run(Gas(), tmp_path, 400, 8, 5)
    assert len(more) == 21
    np.testing.assert_allclose(more[:11], first, rtol=1e-5)
    assert more[-1] < more[10] < more[0]
    assert len(density.run(Gas(), tmp_path, 400, 8, 5)) == 21
    assert density.mean_and_error(np.repeat([1.0, 2.0, 3.0, 4.0, 5.0], 7)) == pytest.approx((3, 0.5**0.5))


def plainly(found, cutoff=4.0):
    return [plain(attach_neighbours(data.clone(), cutoff), float(k)) for k, data in enumerate(found)]


DIMENET = {"num_blocks": 1, "basis_emb_size": 4, "num_spherical": 2, "num_radial": 3, "cutoff": 4.0}


@pytest.mark.parametrize("found", [[structures.ball(12), structures.ball(9, seed=1)], [structures.cube(8)]])
def test_batches_and_triplets_of_the_peers(found):
    """Batches are the collater's, and triplets those of a loop, in any order of the edges."""
    batch, expected = collate(plainly(found)), batch_of([attach_neighbours(data.clone(), 4.0) for data in found])
    for name in ("positions", "atomic_numbers", "batch", "cell", "edge_index", "cell_offsets"):
        torch.testing.assert_close(getattr(batch, name), expected[name], check_dtype=False)
    shifts = torch.einsum("ek,ekl->el", batch.cell_offsets.double(), batch.cell[batch.batch[batch.edge_index[0]]])
    vectors = batch.positions[batch.edge_index[0]] - batch.positions[batch.edge_index[1]] - shifts
    torch.testing.assert_close(batch.edge_vectors, vectors.float())
    edges = [(*map(int, e), tuple(map(int, s))) for e, s in zip(batch.edge_index.T, batch.cell_offsets, strict=True)]
    wanted = {
        (kj, ji)
        for (ji, (i, j, s)), (kj, (middle, k, t)) in itertools.product(enumerate(edges), repeat=2)
        if middle == j and not (k == i and all(a + b == 0 for a, b in zip(s, t, strict=True)))
    }
    order = torch.randperm(len(edges))
    kj, ji = triplets(batch.edge_index[:, order], batch.cell_offsets[order], len(batch.positions))
    pairs = list(zip(order[kj].tolist(), order[ji].tolist(), strict=True))
    assert len(pairs) == len(wanted)
    assert set(pairs) == wanted


@torch.no_grad()
def test_graph_peers_are_torch_geometrics(monkeypatch):
    """DimeNet++ computes its own forward pass; SchNet sees periodic images."""
    batch = collate(plainly([structures.ball(12), structures.ball(9, seed=1)]))
    sizes = models.with_width("dimenet++", DIMENET, 16) | {"output_initializer": "glorot_orthogonal"}
    model = DimeNetEnergy(**sizes).eval()
    inputs = model.prepare(batch)

    def own_triplets(edge_index, num_nodes):
        (j, i), kj, ji = edge_index, inputs["kj"], inputs["ji"]
        return i, j, i[ji], j[ji], j[kj], kj, ji

    monkeypatch.setattr(dimenet, "radius_graph", lambda *_, **__: batch.edge_index.flip(0))
    monkeypatch.setattr(dimenet, "triplets", own_triplets)
    expected = model.model(inputs["z"], batch.positions.float(), batch.batch).squeeze(-1)
    assert expected.abs().min() > 0
    torch.testing.assert_close(model(inputs), expected, rtol=1e-4, atol=1e-6)
    model = SchNetEnergy(hidden_channels=8, num_filters=8, num_interactions=1, num_gaussians=8, cutoff=4.0).eval()
    data = structures.cube(8)
    before = model(model.prepare(collate(plainly([data]))))
    data.positions[0] += data.cell[0, 0]
    torch.testing.assert_close(model(model.prepare(collate(plainly([data])))), before, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_peers_have_as_many_parameters_as_small():
    sizes = {name: n_parameters(build(*how)) for name, how in models.rows().items() if how[0] != "painn"}
    matched = [n for name, n in sizes.items() if name.endswith("of small")]
    assert len(matched) == 2
    assert matched == pytest.approx([sizes["molflt small"]] * 2, rel=0.03)


@torch.no_grad()
def test_dense_peer_equals_molflts_softmax_on_isolated_structures():
    ours, theirs = MolfltLayer("softmax").double(), DenseWithBias().double()
    theirs.projection.load_state_dict(ours.layer.projection.state_dict())
    theirs.output.load_state_dict(ours.layer.output.state_dict())
    theirs.bias.load_state_dict(ours.layer.local_rpe.bias.state_dict())
    theirs.radial.load_state_dict(ours.positions.radial.state_dict())
    batch = layer_worker.batch_for([structures.ball(20), structures.ball(31, seed=1)], ours)
    x = torch.randn(51, DIM, dtype=torch.float64)
    expected = ours(x, ours.prepare(batch))
    torch.testing.assert_close(theirs(x, theirs.prepare(batch)), expected, rtol=1e-9, atol=1e-12)


def test_the_table_of_estimators():
    """The documentation's column r = 16 comes out again, and every step in it is an improvement."""
    published = results.read(results.DOCS / "figures" / "estimator.csv")
    medians = {name: float(np.median(values)) for name, values in estimator.errors(16, range(30)).items()}
    assert medians == pytest.approx(
        {r["estimator"]: float(r["median"]) for r in published if r["r"] == "16"}, rel=1e-3
    )
    assert all(a > b for a, b in pairwise(medians.values()))


def test_folds_are_those_of_scikit_learn():
    seed = accuracy_data.MATBENCH_SEED
    kfold = pytest.importorskip("sklearn.model_selection").KFold(5, shuffle=True, random_state=seed)
    for n in (18_928, 23):
        for fold, expected in enumerate(kfold.split(np.arange(n))):
            for found, part in zip(accuracy_data.divide(n, fold, 5), expected, strict=True):
                np.testing.assert_array_equal(found, part)
    first, second = accuracy_data.divide(6000, 0, 1)
    assert len(first) == accuracy_data.QM7_TRAIN
    assert sorted([*first, *second]) == list(range(6000))


@pytest.mark.slow
def test_divisions_of_the_fg_set_hold_out_what_they_say():
    everything = [*LmdbDataset(results.ROOT / "data/fg/train.lmdb"), *LmdbDataset(results.ROOT / "data/fg/val.lmdb")]
    counts = {name: sum(map(rule, everything)) for name, rule in fg_splits.RULES.items()}
    pairs = {pair: counts.pop(pair) for pair in fg_splits.PAIRS}
    assert list(counts.values()) == [179, 173, 166, 436, 167, 234, 2062, 2271, 616, 612, 614, 600]
    assert pairs == {
        pair: len(everything) - sum(counts[f"slice{number}"] for number in slices)
        for pair, slices in fg_splits.PAIRS.items()
    }
    names = sorted({data.molecule for data in everything})
    assert set(np.random.default_rng(0).permutation(names)[:20]) == set(fg_splits.MOLECULES)


def test_views_are_free_and_every_wait_is_seen():
    x = torch.arange(6.0)

    def step():
        y = (x.view(2, 3).transpose(0, 1)[:2] * 2).detach()
        assert y.sum() > 0
        return y[y > 1], x.tolist(), torch.linalg.inv(torch.eye(3)), x.nonzero(), torch.tensor([1.0, 2.0])

    found = count(step)
    assert found.operators["mul"] == 1
    assert "view" not in found.operators
    assert found.waits == {
        "_local_scalar_dense": 1,
        "index": 1,
        "tolist": 1,
        "_linalg_check_errors": 1,
        "nonzero": 1,
        "tensor": 1,
    }


@pytest.mark.parametrize(
    ("make", "few", "many", "most"), [(energy_step, 2, 12, 840), (operators.force_step, 2, 6, 2130)]
)
def test_a_training_step_dispatches_the_same_for_any_number_of_structures_and_waits_for_nothing(
    make, few, many, most
):
    small, large = count(make(few)), count(make(many))
    assert large.operators == small.operators
    assert small.operators.total() <= most
    assert not small.waits
    assert not large.waits


@pytest.mark.parametrize(("n_atoms", "most"), [(200, 660), (1000, 800)])
def test_a_step_of_dynamics_waits_for_nothing(n_atoms, most):
    found = count(dynamics_step(n_atoms))
    assert found.operators.total() <= most
    assert not found.waits


def test_every_row_is_measured_on_a_cpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--quick"])
    gpu.main()
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert header.startswith("| CPU ")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {"eager", "eager, deterministic", "SchNet", "molflt train", "small"} <= {how for _, how, _ in rows}
    for name, how, found in rows:
        # PaiNN is in the peers' environment only.
        if how != "PaiNN":
            assert float(found) > 0, (name, how, found)


def test_without_time_there_are_no_numbers(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--quick", "--seconds", "-1"])
    gpu.main()
    assert all("no time was left" in line for line in capsys.readouterr().out.splitlines()[2:])


@pytest.mark.skipif("not __import__('torch').cuda.is_available()")
def test_every_row_is_measured_on_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--quick"])
    gpu.main()
    assert "error" not in capsys.readouterr().out.lower()
