"""The benchmark of attention layers: its peers compute what they should, its points survive what goes wrong."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import bench_attention as bench  # noqa: E402
from benchmarks import isolated, measuring, structures  # noqa: E402
from benchmarks.layers import DIM, MECHANISMS, MolfltLayer  # noqa: E402
from benchmarks.peers import DenseWithBias, PyGPerformer  # noqa: E402
from benchmarks.report_attention import Point, write_report  # noqa: E402
from benchmarks.results import Results, break_even, duration, exponent, size  # noqa: E402


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"from benchmarks import measuring\n{code}"]


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
    found = structures.slabs(3000)
    sizes = np.array([len(data.positions) for data in found])
    assert abs(sizes.sum() - 3000) < 250
    assert sizes.min() >= structures.OC20_SMALLEST - 2
    assert sizes.max() <= structures.OC20_LARGEST + 2
    assert abs(sizes.mean() - structures.OC20_MEAN) < 15
    assert all(bool((data.tags == 2).any()) and bool(data.pbc.all()) for data in found)


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
def test_dense_peer_does_not_mix_structures():
    layer = DenseWithBias()
    pair = [structures.cube(20), structures.cube(31, seed=1)]
    x = torch.randn(51, DIM)
    both, one = (bench.batch_for(part, layer) for part in (pair, pair[:1]))
    together = layer(x, layer.prepare(both))[:20]
    torch.testing.assert_close(together, layer(x[:20], layer.prepare(one)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_pyg_performer_runs_on_a_batch():
    layer = PyGPerformer()
    batch = bench.batch_for([structures.cube(20), structures.cube(31, seed=1)], layer)
    assert layer(torch.randn(51, DIM), layer.prepare(batch)).shape == (51, DIM)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_runs_and_is_differentiated_as_in_one_piece(name):
    """With the gradient cut at the prepared tensors, input and weights get what they get without the cut."""
    torch.manual_seed(0)
    layer = MolfltLayer(name).eval()
    batch = bench.batch_for([structures.ball(12)], layer)
    calls = bench.Calls(layer, batch, train=True)
    calls.first()
    for _ in range(2):
        calls.layer()
    if name.startswith("ra"):
        return  # draws anew in every call
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
    assert calls.on_demand == [("features",)]
    assert calls.prepared.features.is_leaf
    for _ in range(2):
        calls.layer()


def test_a_measurement_that_needs_too_much_does_not_fit():
    code = (
        "import torch\n"
        "def measure():\n"
        "    measuring.limit_memory(0.2)\n"
        "    return {'sum': float(torch.ones(2**28).sum())}\n"
        "measuring.answer(measure)"
    )
    assert isolated.run_isolated(python(code), 1, 120)["status"] == measuring.DOES_NOT_FIT


def test_a_process_that_dies_or_hangs_is_a_result():
    killed = isolated.run_isolated(python("import os; os.kill(os.getpid(), 9)"), 1, 120)
    assert killed["status"] == measuring.DOES_NOT_FIT
    assert (
        isolated.run_isolated([sys.executable, "-c", "import time; time.sleep(60)"], 1, 1)["status"]
        == isolated.TOO_SLOW
    )
    failed = isolated.run_isolated(python("measuring.answer(lambda: {'x': 1 / 0})"), 1, 120)
    assert failed["status"] == measuring.FAILED
    assert "division" in failed["note"]


def test_peak_memory_counts_what_is_freed_again():
    n_bytes = 2**27
    growth = measuring.peak_growth(lambda: float(torch.ones(n_bytes // 4).sum()), torch.device("cpu"))
    assert 0.9 * n_bytes < growth.peak < 1.5 * n_bytes
    assert growth.kept < 0.2 * n_bytes


def test_exponent_and_break_even():
    sizes = [1000, 2000, 4000]
    assert exponent(sizes, [n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes[:1], [1.0]) is None
    # c n against n²: equal at n = c
    assert break_even(sizes, [1500 * n for n in sizes], [n**2 for n in sizes]) == pytest.approx(1500)
    assert break_even(sizes, sizes, [2 * n for n in sizes]) == 1000
    assert break_even(sizes, [2 * n for n in sizes], sizes) is None


def test_numbers_for_people():
    assert [duration(x) for x in (2.5, 0.0123, 4.56e-5)] == ["2.5 s", "12.3 ms", "45.6 µs"]
    assert [size(x) for x in (2**20, 3 * 2**30)] == ["1 MiB", "3 GiB"]


def test_results_are_kept_and_not_mixed(tmp_path):
    path = tmp_path / "attention.json"
    Results(path, {"threads": 1}).add("periodic|64|molflt|forward", {"status": "done"})
    assert len(Results(path, {"threads": 1}).rounds("periodic|64|molflt|forward")) == 1
    with pytest.raises(SystemExit, match="other conditions"):
        Results(path, {"threads": 2})


def test_report_has_the_numbers_against_the_targets(tmp_path):
    results = Results(tmp_path / "attention.json", {"threads": 1})
    for n in (2048, 8192, 16384):
        for name, seconds in (
            ("molflt", 4096e-6 * n),
            ("sdpa+bias", 1e-6 * n**2),
            ("molflt, no far field", 2048e-6 * n),
        ):
            found = {
                "status": "done",
                "layer_seconds": [seconds] * 3,
                "prepare_seconds": [1.0],
                "total_bytes": 1e6 * n,
            }
            results.add(Point("periodic", n, name, "forward").name, found)
    results.add(Point("periodic", 16384, "flt", "forward").name, {"status": "does not fit", "note": ""})
    text = write_report(results, tmp_path)
    for expected in ("| 1.00 |", "4,096 atoms", "4.00 times as long", "+100 % at 2,048"):
        assert expected in text
    table = (tmp_path / "attention.md").read_text()
    assert "does not fit" in table
    assert (tmp_path / "attention.png").stat().st_size > 0


@pytest.mark.slow
def test_command_line(tmp_path):
    command = [sys.executable, str(SCRIPTS / "bench_attention.py"), "--out", str(tmp_path), "--sizes", "64"]
    command += ["--kinds", "periodic", "--mechanisms", "molflt", "sdpa+bias", "--repeats", "2", "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    points = json.loads((tmp_path / "attention.json").read_text())["points"]
    assert len(points) == 4
    assert all(rounds[0]["status"] == "done" for rounds in points.values())
