"""The benchmark of attention layers: its peers compute what they should, its points survive what goes wrong."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch

from scripts import results
from scripts.benchmarks import attention as bench
from scripts.benchmarks import measuring, structures
from scripts.benchmarks.attention_report import break_even, exponent, write_report
from scripts.benchmarks.layer_peers import DenseWithBias, PyGPerformer
from scripts.benchmarks.layers import DIM, MECHANISMS, MolfltLayer
from scripts.benchmarks.measuring import duration, run_isolated, size

QUICK = ("molflt, moments", "flt", "flt-concat", "lara-rpe", "softmax", "ra")
"""A mechanism of each kind."""


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


@pytest.mark.parametrize("peer", [DenseWithBias, PyGPerformer])
@torch.no_grad()
def test_peers_do_not_mix_structures(peer):
    layer = peer().eval()
    pair = [structures.cube(20), structures.cube(31, seed=1)]
    x = torch.randn(51, DIM)
    both, one = (bench.batch_for(part, layer) for part in (pair, pair[:1]))
    together = layer(x, layer.prepare(both))
    assert together.shape == (51, DIM)
    if peer is DenseWithBias:
        # torch_geometric's masks values and not keys, as docs/benchmarks/README.md says.
        torch.testing.assert_close(together[:20], layer(x[:20], layer.prepare(one)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MECHANISMS]
)
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
    assert 0.9 * n_bytes < growth.peak < 1.5 * n_bytes
    assert growth.kept < 0.2 * n_bytes


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


def test_report_has_the_numbers_against_the_targets(tmp_path):
    known, rows = results.provenance({"threads": 1}), []
    for n in (2048, 8192, 16384):
        for name, seconds in (
            ("molflt", 4096e-6 * n),
            ("sdpa+bias", 1e-6 * n**2),
            ("molflt, no far field", 2048e-6 * n),
        ):
            found = {"kind": "periodic", "atoms": n, "mechanism": name, "direction": "forward", "status": "done"}
            found |= {"layer_seconds": [seconds] * 3, "prepare_seconds": [1.0], "total_bytes": 1e6 * n}
            rows.append({**found, **known})
    rows.append({**rows[0], "atoms": 16384, "mechanism": "flt", "status": "does not fit"})
    results.write(tmp_path / "attention.csv", rows, (*bench.COLUMNS, *results.PROVENANCE), 6)
    text = write_report(results.read(tmp_path / "attention.csv"), tmp_path)
    for expected in ("| 1.00 |", "4,096 atoms", "4.00 times as long", "+100 % at 2,048"):
        assert expected in text
    table = (tmp_path / "attention.md").read_text(encoding="utf-8")
    assert "does not fit" in table
    assert (tmp_path / "attention.png").stat().st_size > 0


def test_more_atoms_are_not_tried_where_fewer_did_not_fit():
    row = {"kind": "periodic", "atoms": "64", "mechanism": "ra", "direction": "train", "status": "does not fit"}
    point = bench.Point.of(row)
    assert bench.reason_to_leave_out([row], point._replace(size=128)) == "does not fit at 64 atoms"
    for other in (point, point._replace(size=128, direction="forward"), point._replace(size=128, mechanism="lara")):
        assert not bench.reason_to_leave_out([row], other)


@pytest.mark.slow
def test_command_line(tmp_path):
    command = [sys.executable, "-m", "scripts.benchmarks.attention", "--out", str(tmp_path), "--sizes", "64"]
    command += ["--kinds", "periodic", "--mechanisms", "molflt", "sdpa+bias", "--repeats", "2", "--threads", "1"]
    for _ in range(2):
        done = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = results.read(tmp_path / "attention.csv")
        assert [row["status"] for row in rows] == ["done"] * 4
