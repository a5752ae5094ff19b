"""The benchmark of speed: its peer computes what it should, its points survive what goes wrong, its tables add up."""

import functools
import json
import sys
import time
from itertools import product

import numpy as np
import pytest
import torch

from molflt.attention.far import mesh_operator
from scripts import results
from scripts.benchmarks import layer_worker as bench
from scripts.benchmarks import measuring, profile_layer, speed, speed_report, structures
from scripts.benchmarks.layer_peers import DenseWithBias
from scripts.benchmarks.layers import DIM, ROWS, MolfltLayer
from scripts.benchmarks.measuring import duration, run_isolated, size
from scripts.benchmarks.speed_report import break_even, exponent


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"from scripts.benchmarks import measuring\n{code}"]


def test_structures_have_the_stated_density_and_sizes():
    cube, ball = structures.cube(100), structures.ball(100)
    assert len(cube.positions) == len(ball.positions) == 100
    assert 100 / float(torch.linalg.det(cube.cell[0])) == pytest.approx(structures.DENSITY)
    radius = float((ball.positions - ball.positions.mean(dim=0)).norm(dim=1).max())
    assert 100 / (4 / 3 * np.pi * radius**3) == pytest.approx(structures.DENSITY, rel=0.4)
    for data in (cube, ball):
        distances = torch.cdist(data.positions, data.positions) + 9 * torch.eye(100)
        assert distances.min() > 1.2


def test_slabs_are_of_the_sizes_of_oc20():
    found = structures.large_slabs(48)
    assert all(bool((data.tags == 2).any()) and bool(data.pbc.all()) for data in found)
    sizes = [len(data.positions) for data in found]
    assert len(sizes) == 48
    assert 70 < min(sizes) < 100
    assert 180 < max(sizes) < 215


@torch.no_grad()
def test_dense_peer_equals_molflts_softmax_on_isolated_structures():
    ours, theirs = MolfltLayer("softmax").double(), DenseWithBias().double()
    theirs.projection.load_state_dict(ours.layer.projection.state_dict())
    theirs.output.load_state_dict(ours.layer.output.state_dict())
    theirs.bias.load_state_dict(ours.layer.local_rpe.bias.state_dict())
    theirs.radial.load_state_dict(ours.positions.radial.state_dict())
    batch = bench.batch_for([structures.ball(20), structures.ball(31, seed=1)], ours)
    x = torch.randn(51, DIM, dtype=torch.float64)
    expected = ours(x, ours.prepare(batch))
    torch.testing.assert_close(theirs(x, theirs.prepare(batch)), expected, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_the_peer_does_not_mix_structures():
    layer = DenseWithBias().eval()
    pair = [structures.cube(20), structures.cube(31, seed=1)]
    x = torch.randn(51, DIM)
    both, one = (bench.batch_for(part, layer) for part in (pair, pair[:1]))
    together = layer(x, layer.prepare(both))
    assert together.shape == (51, DIM)
    torch.testing.assert_close(together[:20], layer(x[:20], layer.prepare(one)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ROWS)
def test_every_layer_runs_and_is_differentiated_as_in_one_piece(name):
    """With the gradient cut at the prepared tensors, input and weights get what they get without the cut."""
    torch.manual_seed(0)
    layer = MolfltLayer(name).eval()
    batch = bench.batch_for([structures.ball(12)], layer)
    calls = bench.Calls(layer, batch, train=True)
    calls.first()
    for _ in range(2):
        calls.prepare()
        calls.layer()
    seen = {}
    for cut in (True, False):
        context = calls.prepared if cut else layer.prepare(batch)
        x = calls.x.detach().clone().requires_grad_()
        weights = list(layer.layer.parameters())
        gradients = torch.autograd.grad(layer(x, context).square().sum(), [x, *weights], allow_unused=True)
        seen[cut] = [g for g in gradients if g is not None]
    torch.testing.assert_close(seen[True], seen[False])


def test_what_is_made_on_demand_is_preparation():
    """A layer is differentiated again and again although it caches, with its graph, what the first one asked for."""

    class Shared:
        def __init__(self, weight):
            self.weight = weight
            self.itself = [self]

        @functools.cached_property
        def features(self):
            return self.weight.exp()

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(DIM))

        def prepare(self, batch):
            return Shared(self.weight)

        def forward(self, x, shared):
            return x * shared.features

    calls = bench.Calls(Layer(), bench.batch_for([structures.cube(4)], Layer()), train=True)
    calls.first()
    calls.prepare()
    assert calls.on_demand == [("features",)]
    assert calls.prepared.features.is_leaf
    for _ in range(2):
        calls.layer()


@pytest.mark.slow
def test_a_process_that_wants_too_much_fails_dies_or_hangs_is_a_result():
    greedy = (
        "import torch\n"
        "def measure():\n"
        "    measuring.limit_memory(0.2)\n"
        "    return {'sum': float(torch.ones(2**28).sum())}\n"
        "measuring.answer(measure)"
    )
    assert run_isolated(python(greedy), 1, 120)["status"] == measuring.DOES_NOT_FIT
    failed = run_isolated(python("measuring.answer(lambda: {'x': 1 / 0})"), 1, 120)
    assert failed["status"] == measuring.FAILED
    assert "division" in failed["note"]
    plain = [sys.executable, "-c"]
    assert run_isolated([*plain, "import os; os.kill(os.getpid(), 9)"], 1, 120)["status"] == measuring.DOES_NOT_FIT
    assert run_isolated([*plain, "import time; time.sleep(60)"], 1, 0.2)["status"] == measuring.TOO_SLOW


def test_peak_memory_counts_what_is_freed_again():
    n_bytes = 2**27
    growth = measuring.peak_growth(lambda: float(torch.ones(n_bytes // 4).sum()), torch.device("cpu"))
    assert 0.9 * n_bytes < growth < 1.5 * n_bytes


def test_numbers_of_the_report():
    sizes = [1000, 2000, 4000]
    assert exponent(sizes, [n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes[:1], [1.0]) is None
    # c n against n²: equal at n = c
    assert break_even(sizes, [1500 * n for n in sizes], [n**2 for n in sizes]) == pytest.approx(1500)
    assert break_even(sizes, sizes, [2 * n for n in sizes]) == 1000
    assert break_even(sizes, [2 * n for n in sizes], sizes) is None
    assert [duration(x) for x in (2.5, 0.0123, 4.56e-5)] == ["2.5 s", "12.3 ms", "45.6 µs"]
    assert [size(x) for x in (2**20, 3 * 2**30)] == ["1 MiB", "3 GiB"]


def test_the_tables_have_the_numbers_against_the_targets(tmp_path, monkeypatch):
    """Layers that take 1 ms an atom and half of it to prepare, and dense ones with n²/4 µs and as much again."""
    rows = []
    for kind, n in product(("isolated", "periodic"), (1024, 4096, 16384, 1_000_000)):
        for name, seconds, prepared in (
            ("flt, both", 1e-3 * n, 0.5e-3 * n),
            ("sdpa+bias", 0.25e-6 * n**2, 0.25e-6 * n**2),
        ):
            row = {"part": "layer", "kind": kind, "size": n, "row": name, "direction": "forward", "threads": 1}
            row |= {"status": "done", "layer_seconds": [seconds] * 3, "prepare_seconds": [prepared] * 3}
            rows.append(
                {**row, "peak_bytes": 2.0**34, "making_bytes": 3.0 * 2**33, **results.provenance({"threads": 1})}
            )
    for name, seconds in (("molflt small", 2.0), ("PaiNN", 3.0)):
        row = {"part": "md", "kind": "periodic", "size": 9, "row": name, "direction": "forces", "threads": 2}
        row |= {"status": "done", "layer_seconds": [seconds], "peak_bytes": 2.0**31}
        rows.append({**row, **results.provenance({"threads": 1})})
    dense = [row for row in rows if row["row"] == "sdpa+bias"]
    assert rows.pop(rows.index(dense[2]))["size"] == 16384
    dense[-1]["status"] = dense[3]["status"] = "does not fit"
    monkeypatch.setattr(speed_report, "PATH", tmp_path / "speed.csv")
    assert "| not measured | not measured |" in speed_report.table("targets")
    results.write(speed_report.PATH, rows, (*speed.COLUMNS, *results.PROVENANCE), 6)
    text = speed_report.table("targets")
    whole, alone = (1.5e-3 * 16384 / (0.5e-6 * 16384**2), 1e-3 * 16384 / (0.25e-6 * 16384**2))
    for expected in (
        "exponent | ≤ 1.15 | not measured | 1.00 (1,024 to 1,000,000) |",
        "peak memory | ≤ 20 GiB | not measured | 24 GiB |",
        "forward, with its preparation | ≤ 1,000 atoms | not measured | 3,000 |",
        "forward, layer alone | ≤ 1,000 atoms | not measured | 4,000 |",
        f"with its preparation | ≥ 5, going for 10 | not measured | {1 / whole:.1f} (extrapolated from 4,096) |",
        f"as long, layer alone | ≥ 10 | not measured | {1 / alone:.1f} |",
    ):
        assert expected in text, expected
    assert "| one step of molecular dynamics | 9 | PaiNN | 3 s | 1.50 | 2 GiB |" in speed_report.table("models")
    assert "| 1.02 s (1.02 s to 1.02 s) |" in speed_report.table("times", "isolated", "forward")


def in_this_process(command, threads, limit):
    """What a process of its own would answer."""
    module, *arguments = command[command.index("-m") + 1 :]
    if module.endswith("layer_worker"):
        return {"status": "done", "load_before": 0.0, **bench.measure(bench.Spec(**json.loads(arguments[0])))}
    rows = profile_layer.profile("isolated", int(arguments[arguments.index("--atoms") + 1]), "flt, both", 1)
    return {"status": "done", "load_before": 0.0, "rows": rows}


@pytest.mark.slow
def test_quick(tmp_path, monkeypatch, call):
    """Every layer and the profile, restarted half-way: what is there is not measured again."""
    asked = []
    monkeypatch.setattr(measuring, "limit_memory", lambda gibibytes: None)
    monkeypatch.setattr(speed, "run_isolated", lambda *a: asked.append(a) or in_this_process(*a))
    for parts, n in ((["profile"], 1), (["layer", "profile"], 4), (["layer", "profile"], 4)):
        call(speed.main, "--quick", "--out", tmp_path, "--parts", *parts)
        assert len(asked) == n
    rows = results.read(tmp_path / "speed.csv")
    assert len(rows) == 3 * 3 * 2
    assert {row["status"] for row in rows} == {"done"}
    assert {row["kind"] for row in rows} == {"oc20", "isolated"}
    stages = {row["stage"]: float(row["ms"]) for row in results.read(tmp_path / "speed_profile.csv")}
    assert min(stages[name] for name in ("neighbour list", "geometry", "f̂ on pairs", "projections")) > 0
    assert stages["mesh: waves"] == 0
    monkeypatch.setattr(speed_report, "PATH", tmp_path / "speed.csv")
    assert "| method | pairs |" in speed_report.table("profile")
    assert "seconds = 1" in speed_report.table("machine")
    with pytest.raises(SystemExit):
        call(speed.main, "--quick")


def test_a_layer_that_fails_does_not_end_the_others(monkeypatch):
    prepare = DenseWithBias.prepare

    def greedy(self, batch):
        if len(batch.positions) > bench.WARM_ATOMS:
            raise MemoryError
        return prepare(self, batch)

    monkeypatch.setattr(DenseWithBias, "prepare", greedy)
    spec = {
        "kind": "isolated",
        "size": 80,
        "rows": ["sdpa+bias", "flt, both"],
        "directions": ["forward"],
        "threads": 1,
    }
    spec |= {"device": "cpu", "repeats": 2, "gibibytes": 0.0}
    for limit, turns in ((60.0, 2), (1e-9, 1)):
        dense, ours = bench.measure(bench.Spec(**spec, seconds=limit))["rows"]
        assert (dense["status"], dense["layer_seconds"]) == (measuring.DOES_NOT_FIT, [])
        assert ours["status"] == measuring.DONE
        # Where the first turn takes longer than all may take, it is the one that counts.
        assert len(ours["layer_seconds"]) == len(ours["prepare_seconds"]) == turns


def test_a_profile_tells_the_stages_of_the_mesh_apart(monkeypatch):
    """Stages add up to the whole, and the functions are themselves again afterwards."""
    before = mesh_operator.weighted_sum
    monkeypatch.setitem(ROWS, "mesh", {"frequencies": "mesh"})
    start = time.perf_counter()
    seen = {row["stage"]: row["ms"] for row in profile_layer.profile("isolated", 60, "mesh", 1)}
    assert mesh_operator.weighted_sum is before
    for stage in (
        "mesh: grid",
        "mesh: spread",
        "mesh: waves",
        "mesh: filters",
        "mesh: read off",
        "layout",
    ):
        assert seen[stage] > 0, stage
    assert sum(seen.values()) < 1e3 * (time.perf_counter() - start)
    with profile_layer.watched() as watch, watch.stage("outer"):
        time.sleep(0.02)
        with watch.stage("inner"):
            time.sleep(0.04)
    assert watch.seconds["inner"] >= 0.04
    assert watch.seconds["outer"] >= 0.02
