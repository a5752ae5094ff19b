"""The benchmark of whole models: graph peers on given neighbour lists compute what they compute on their own."""

import pytest
import torch
from torch_geometric.nn.models import dimenet

from scripts.benchmarks import models as bench
from scripts.benchmarks import structures
from scripts.benchmarks.graph_models import DimeNetEnergy, SchNetEnergy, triplets
from scripts.benchmarks.model_worker import Spec, Step, build, matched, measure, n_parameters, with_width
from scripts.benchmarks.plain import PlainBatch

DIMENET = {"num_blocks": 1, "basis_emb_size": 4, "num_spherical": 2, "num_radial": 3, "cutoff": 4.0}


@pytest.fixture
def isolated_batch():
    return bench.plain_batch([structures.ball(12), structures.ball(9, seed=1)], 4.0, False)


@pytest.fixture
def periodic_batch():
    return bench.plain_batch([structures.cube(8)], 4.0, False)


def brute_force(batch):
    edges = [
        (int(i), int(j), tuple(map(int, s))) for (i, j), s in zip(batch.edge_index.T, batch.cell_offsets, strict=True)
    ]
    found = set()
    for ji, (i, j, s) in enumerate(edges):
        for kj, (middle, k, t) in enumerate(edges):
            same_place = k == i and all(a + b == 0 for a, b in zip(s, t, strict=True))
            if middle == j and not same_place:
                found.add((kj, ji))
    return found


@pytest.mark.parametrize("which", ["isolated_batch", "periodic_batch"])
def test_triplets_are_those_of_a_loop(which, request):
    batch = request.getfixturevalue(which)
    kj, ji = triplets(batch.edge_index, batch.cell_offsets, len(batch.positions))
    pairs = list(zip(kj.tolist(), ji.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == brute_force(batch)
    # in any order of the edges
    order = torch.randperm(batch.edge_index.shape[1])
    kj, ji = triplets(batch.edge_index[:, order], batch.cell_offsets[order], len(batch.positions))
    assert set(zip(order[kj].tolist(), order[ji].tolist(), strict=True)) == set(pairs)


@torch.no_grad()
def test_dimenet_equals_torch_geometrics_own_forward(isolated_batch, monkeypatch):
    sizes = with_width("dimenet++", DIMENET, 16) | {"output_initializer": "glorot_orthogonal"}
    model = DimeNetEnergy(**sizes).eval()
    inputs = model.prepare(isolated_batch)

    def graph(positions, r, batch, max_num_neighbors):
        return isolated_batch.edge_index.flip(0)

    def as_torch_geometric(edge_index, num_nodes):
        (j, i), kj, ji = edge_index, inputs["kj"], inputs["ji"]
        return i, j, i[ji], j[ji], j[kj], kj, ji

    monkeypatch.setattr(dimenet, "radius_graph", graph)
    monkeypatch.setattr(dimenet, "triplets", as_torch_geometric)
    expected = model.model(inputs["z"], isolated_batch.positions.float(), isolated_batch.batch).squeeze(-1)
    assert expected.abs().min() > 0
    torch.testing.assert_close(model(inputs), expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_schnet_sees_periodic_images(periodic_batch):
    model = SchNetEnergy(hidden_channels=8, num_filters=8, num_interactions=1, num_gaussians=8, cutoff=4.0).eval()
    before = model(model.prepare(periodic_batch))
    data = structures.cube(8)
    data.positions[0] += data.cell[0, 0]
    moved = bench.plain_batch([data], 4.0, False)
    torch.testing.assert_close(model(model.prepare(moved)), before, rtol=1e-4, atol=1e-6)


def test_matched_width():
    assert matched(250_000, lambda width: 4 * width**2) == 248
    target = 5000
    width = matched(target, lambda w: n_parameters(build("dimenet++", with_width("dimenet++", DIMENET, w))))
    count = [
        n_parameters(build("dimenet++", with_width("dimenet++", DIMENET, w))) for w in (width - 4, width, width + 4)
    ]
    assert abs(count[1] - target) <= min(abs(count[0] - target), abs(count[2] - target))


def test_a_measurement_of_every_family_that_is_here(tmp_path, isolated_batch):
    """In both directions, with the width that was asked for."""
    path, threads = tmp_path / "batch.pt", torch.get_num_threads()
    isolated_batch.save(path)
    torch.testing.assert_close(PlainBatch.load(path).positions, isolated_batch.positions)
    how = {"repeats": 2, "seconds": 10.0, "gibibytes": 0.0, "threads": threads, "device": "cpu"}
    rows = {row.family: row for row in bench.rows()}
    assert rows.keys() == {"molflt", "schnet", "dimenet++", "painn"}
    tiny = {"preset": "tiny", "attention": "flt"}
    for family, sizes, direction in (
        ("molflt", tiny, "forward"),
        ("molflt", tiny, "train"),
        ("schnet", None, "train"),
    ):
        row = {"family": family, "sizes": sizes or rows[family].sizes, "match": None if sizes else 20_000}
        found = measure(Spec(**row, direction=direction, batch=str(path), warm=str(path), **how))
        assert len(found["seconds"]) == 2
    assert found["parameters"] == pytest.approx(20_000, rel=0.1)


def test_a_training_step_changes_the_weights(isolated_batch):
    model = build("molflt", {"preset": "tiny", "attention": "flt"})
    before = [p.detach().clone() for p in model.parameters()]
    Step(model, isolated_batch, torch.optim.Adam(model.parameters(), lr=1e-2))()
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(changed) > len(changed) / 2
