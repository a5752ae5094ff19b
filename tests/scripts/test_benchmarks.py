"""The scripts that measure: each runs with ``--quick``, and peers and made-up data are what they are said to be."""

import argparse
import itertools
import os
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.io import write
from filelock import FileLock
from scipy.integrate import quad
from torch_geometric.data import Batch
from torch_geometric.nn.models import dimenet

from molflt.data.ase import from_atoms
from molflt.data.batch import collate as batch_of
from molflt.data.neighbours import attach_neighbours
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.oc20.unpickle import load_record
from molflt.data.open import open_dataset
from molflt.data.record import RECORD_KEYS, to_data
from molflt.model.energy_model import EnergyModel
from scripts import results
from scripts.benchmarks import (
    accuracy,
    accuracy_data,
    accuracy_peers,
    accuracy_selection,
    acetylacetone,
    additivity,
    adsorb_guesses,
    batched_relaxation,
    clusters,
    compare_attention,
    domain,
    estimator,
    fg_splits,
    fine_tuning,
    force_step,
    invariance,
    layer_worker,
    loader,
    md_drift,
    measuring,
    models,
    operators,
    pilots,
    speed,
    structures,
)
from scripts.benchmarks.accuracy_rows import VARIANTS, WithoutLocalRPE, run_config, turn
from scripts.benchmarks.graph_models import DimeNetEnergy, SchNetEnergy, triplets
from scripts.benchmarks.layer_peers import DenseWithBias
from scripts.benchmarks.layers import DIM, ROWS, MolfltLayer
from scripts.benchmarks.peers import build, collate, n_parameters, plain

QUICK = {
    accuracy: ["--data", "atoms", "--rows", "flt", "SchNet"],
    accuracy_selection: ["--data", "atoms"],
    acetylacetone: [],
    additivity: ["pretrained:qm7-small"],
    adsorb_guesses: ["pretrained:fg"],
    batched_relaxation: [],
    clusters: [],
    compare_attention: [],
    domain: [],
    estimator: [],
    fine_tuning: [],
    force_step: ["{folder}/water.extxyz"],
    invariance: [],
    loader: [],
    md_drift: ["pretrained:acac", "{folder}/water.extxyz"],
    operators: [],
    pilots: ["far-dipoles"],
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
    small = sizes.pop("molflt small")
    matched = [n for name, n in sizes.items() if name.endswith("of small")]
    assert len(matched) == 2
    assert matched == pytest.approx([small] * 2, rel=0.03)


def test_forces_follow_the_atoms_across_the_border_of_the_cell():
    """SchNet sees nothing but edge vectors: they are those of the batch, and a shift of all atoms changes nothing."""
    torch.manual_seed(0)
    batch = collate(plainly([structures.cube(8)]))
    model = build("schnet", force_step.SIZES["schnet"]).eval()
    positions = batch.positions.detach().requires_grad_()
    energy = force_step.energies(model, batch, positions)
    torch.testing.assert_close(energy, model(model.prepare(batch)))
    (gradient,) = torch.autograd.grad(energy.sum(), positions)
    assert gradient.abs().max() > 1e-4
    assert gradient.sum(dim=0).abs().max() < 1e-4 * gradient.abs().max() * len(positions)


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


@pytest.mark.parametrize("name", ROWS)
def test_every_layer_is_differentiated_as_in_one_piece(name):
    """With the gradient cut at the prepared tensors, input and weights get what they get without the cut."""
    torch.manual_seed(0)
    layer = MolfltLayer(name).eval()
    batch = layer_worker.batch_for([structures.ball(12)], layer)
    calls = layer_worker.Calls(layer, batch, train=True)
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


def test_a_layer_that_fails_does_not_end_the_others(monkeypatch):
    prepare = DenseWithBias.prepare

    def greedy(self, batch):
        if len(batch.positions) > layer_worker.WARM_ATOMS:
            raise MemoryError
        return prepare(self, batch)

    monkeypatch.setattr(DenseWithBias, "prepare", greedy)
    spec = {"kind": "isolated", "size": 80, "rows": ["sdpa+bias", "flt, both"], "directions": ["forward"]}
    spec |= {"threads": 1, "device": "cpu", "repeats": 2, "gibibytes": 0.0}
    for limit, turns in ((60.0, 2), (1e-9, 1)):
        dense, ours = layer_worker.measure(layer_worker.Spec(**spec, seconds=limit))["rows"]
        assert (dense["status"], dense["layer_seconds"]) == (measuring.DOES_NOT_FIT, [])
        # Where the first turn takes longer than all may take, it is the one that counts.
        assert (ours["status"], len(ours["layer_seconds"])) == (measuring.DONE, turns)


@pytest.mark.slow
def test_a_process_that_wants_too_much_fails_dies_or_hangs_is_a_result():
    def run(code, limit=120):
        return measuring.run_isolated([sys.executable, "-c", code], 1, limit)

    answer = "from scripts.benchmarks import measuring as m; import torch\nm.answer(lambda: {})"
    greedy = "(m.limit_memory(0.2), {'sum': float(torch.ones(2**28).sum())})[1]"
    assert run(answer.format(greedy).replace("{}", greedy))["status"] == measuring.DOES_NOT_FIT
    failed = run(answer.replace("{}", "{'x': 1 / 0}"))
    assert failed["status"] == measuring.FAILED
    assert "division" in failed["note"]
    assert run("import os; os.kill(os.getpid(), 9)")["status"] == measuring.DOES_NOT_FIT
    assert run("import time; time.sleep(60)", 0.2)["status"] == measuring.TOO_SLOW


def test_peak_memory_counts_what_is_freed_again():
    n_bytes = 2**27
    growth = measuring.peak_growth(lambda: float(torch.ones(n_bytes // 4).sum()), torch.device("cpu"))
    assert 0.9 * n_bytes < growth < 1.5 * n_bytes


def test_structures_have_the_stated_density_and_sizes():
    cube, ball = structures.cube(100), structures.ball(100)
    assert 100 / float(torch.linalg.det(cube.cell[0])) == pytest.approx(structures.DENSITY)
    radius = float((ball.positions - ball.positions.mean(dim=0)).norm(dim=1).max())
    assert 100 / (4 / 3 * np.pi * radius**3) == pytest.approx(structures.DENSITY, rel=0.4)
    for data in (cube, ball):
        assert (torch.cdist(data.positions, data.positions) + 9 * torch.eye(100)).min() > 1.2
    sizes = [len(data.positions) for data in structures.large_slabs(48)]
    assert 70 < min(sizes) < 100
    assert 180 < max(sizes) < 215
    made = [to_data(record, "x") for record in loader.records(60)]
    assert 50 < np.mean([data.num_nodes for data in made]) < 110
    for record in loader.records(2):
        read = to_data(load_record(loader.official_pickle(record), "x", only=RECORD_KEYS), "x")
        for field in ("atomic_numbers", "tags", "fixed", "y_relaxed", "sid"):
            assert torch.equal(read[field], to_data(record, "x")[field])


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


@pytest.mark.parametrize("data", ["qm7", "atoms"])
def test_settings_are_chosen_on_what_is_trained_on(data, tmp_path, monkeypatch):
    """The division for selection is one of the first training set, without what is held out."""
    frames = [
        from_atoms(Atoms("H2", [[0, 0, 0], [0, 0, 0.7 + 0.01 * k]], info={"energy": k}), "x") for k in range(15)
    ]
    monkeypatch.setattr(accuracy_data, "read", lambda path, most: frames)
    monkeypatch.setenv("MOLFLT_DATA", str(tmp_path))

    def energies(path):
        return [float(structure.energy) for structure in open_dataset(path)]

    benchmark = accuracy_data.split(data, 0, tmp_path / "data")
    selection = accuracy_selection.selection_split(data, tmp_path)
    train, val = energies(selection.train), energies(selection.held_out["val"])
    assert sorted([*train, *val]) == sorted(energies(benchmark.train))
    assert len(train) == (len(train) + len(val)) * 4 // 5


@pytest.mark.slow
def test_divisions_of_the_fg_set_hold_out_what_they_say():
    everything = [*LmdbDataset(results.ROOT / "data/fg/train.lmdb"), *LmdbDataset(results.ROOT / "data/fg/val.lmdb")]
    counts = {name: sum(map(rule, everything)) for name, rule in fg_splits.RULES.items()}
    assert list(counts.values()) == [179, 173, 166, 436, 167, 234, 2062, 616, 612, 614, 600]
    names = sorted({data.molecule for data in everything})
    assert set(np.random.default_rng(0).permutation(names)[:20]) == set(fg_splits.MOLECULES)


def test_no_two_processes_take_the_same_run(tmp_path, monkeypatch):
    """A run is left alone while it is claimed, taken when it is not, not repeated, and all of it is in the CSV."""
    taken = []
    found = {"mae": {"val": 0.1, "test": 0.2}, "epochs": 1, "seconds": 90.0, "parameters": 1}
    monkeypatch.setattr(accuracy, "run_variant", lambda *arguments: taken.append(arguments[-1].name) or found)
    options = argparse.Namespace(out=tmp_path, results=tmp_path / "accuracy.csv", quick=False, threads=1)
    (tmp_path / "claims").mkdir()
    with FileLock(tmp_path / "claims" / "fg-flt-0-0"):
        accuracy.run_one("flt", "fg", 0, 0, options)
        assert not taken
    for seed in (0, 0, 1):
        accuracy.run_one("flt", "fg", seed, 0, options)
    assert len(taken) == 2
    rows = results.read(options.results)
    assert [(row["seed"], row["split"], row["mae"]) for row in rows] == [
        (seed, name, mae) for seed in "01" for name, mae in (("val", "0.1"), ("test", "0.2"))
    ]
    assert rows[0].keys() == results.read(accuracy.KEPT)[0].keys()


def test_peers_have_the_time_that_molflt_took_on_the_same_processor(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(results, "processor", lambda: "this")
    monkeypatch.setattr(accuracy, "train_peer", lambda *arguments: given.append(arguments[3]) or {})
    options = argparse.Namespace(out=tmp_path, results=tmp_path / "r.csv", threads=1, peers_python=None)
    flt = {"set": "qm7", "model": "flt", "split": "val", "minutes": 1, "machine": "this, 2 cores"}
    others = [flt | change for change in ({"machine": "that"}, {"model": "softmax"}, {"set": "fg"})]
    split = accuracy_data.split("fg", 0, tmp_path)
    results.write(options.results, others)
    assert accuracy.run_peer("SchNet", "qm7", split, 0, options)["status"] == "waiting"
    results.write(options.results, [*others, *(flt | {"minutes": n} for n in (1, 2, 9)), flt | {"split": "test"}])
    accuracy.run_peer("SchNet", "qm7", split, 0, options)
    assert given == [120.0]


@pytest.mark.slow
def test_a_peer_learns(tiny_data, tmp_path, monkeypatch):
    """SchNet on the tiny data, by a clock that ticks once a step: better than the mean, and judged in eV."""
    ticks = itertools.count()
    monkeypatch.setattr(accuracy_peers, "time", SimpleNamespace(process_time=lambda: float(next(ticks))))
    train = str(tiny_data / "train.lmdb")
    file, held_out, scale = accuracy_peers.plain_files(
        accuracy_data.Split(train, {"val": train}, "y_relaxed"), 4.0, tmp_path
    )
    sizes = {"hidden_channels": 16, "num_filters": 16, "num_interactions": 1, "num_gaussians": 10, "cutoff": 4.0}
    found = accuracy_peers.train(
        accuracy_peers.Spec("schnet", sizes, file, held_out, scale, 400.0, 1e-2, 0, 1, "cpu")
    )
    mean = scale * float(torch.cat([s["target"] for s in torch.load(held_out["val"])]).abs().mean())
    assert found["mae"]["val"] < 0.9 * mean
    assert found["steps"] == 399


def test_every_row_is_a_configuration(tmp_path):
    """Dense softmax has as many parameters as molflt; without local RPE no bias is learned."""
    for data in accuracy.MAIN:
        split = accuracy_data.split("fg", 0, tmp_path)
        counts = {
            name: EnergyModel(run_config(name, data, split, 0, 1).model, 0).n_parameters()
            for name in VARIANTS
            if data == "qm7" or name in ("flt", "softmax")
        }
        assert counts["softmax"] == pytest.approx(counts["flt"], rel=2e-3)
    module = torch.nn.ModuleDict({"model": EnergyModel(run_config("no local RPE", "qm7", split, 0, 1).model, 0)})
    WithoutLocalRPE().setup(None, module, "fit")
    biases = [p for name, p in module.named_parameters() if "local_rpe" in name]
    assert biases
    assert all(not p.requires_grad and not p.any() for p in biases)


def test_turning_keeps_distances_and_moves_everything():
    batch = Batch.from_data_list([structures.cube(8), structures.ball(12)])
    before, cell = batch.positions.clone(), batch.cell.clone()
    turn(batch, torch.Generator().manual_seed(0))
    distances = [torch.cdist(positions, positions) for positions in (before, batch.positions)]
    same = batch.batch[:, None] == batch.batch
    torch.testing.assert_close(distances[0][same], distances[1][same], rtol=1e-5, atol=1e-5)
    fractional = [p[:8] @ torch.linalg.inv(c[0]) for p, c in ((before, cell), (batch.positions, batch.cell))]
    torch.testing.assert_close(*fractional, rtol=1e-5, atol=1e-5)
    assert float((before - batch.positions).abs().max()) > 0.1


def test_energies_of_the_pilots():
    """Dipoles far apart by their leading term; smeared charges by the integral over their Fourier transform."""
    ions = pilots.two_dipoles(np.random.default_rng(3))
    first, second = ions.positions[0] - ions.positions[1], ions.positions[2] - ions.positions[3]
    r = ions.positions[2:].mean(axis=0) - ions.positions[:2].mean(axis=0)
    n = r / np.linalg.norm(r)
    leading = pilots.COULOMB / np.linalg.norm(r) ** 3 * (first @ second - 3 * (first @ n) * (second @ n))
    assert ions.energy == pytest.approx(leading, rel=0.35, abs=0.01)
    ions, expected = pilots.cluster(np.random.default_rng(0), 6), 0.0
    for i, j in itertools.combinations(range(6), 2):
        d = float(np.linalg.norm(ions.positions[i] - ions.positions[j]))
        integral = quad(lambda k, d=d: np.exp(-(k**2)) * np.sinc(k * d / np.pi), 0, 9)[0]
        expected += ions.charges[i] * ions.charges[j] * 2 / np.pi * integral
    assert ions.energy == pytest.approx(expected, rel=1e-9)
    assert ions.charges.sum() == 0


def test_only_a_far_field_tells_two_dipoles_apart(tmp_path):
    """Features of untrained encoders: all alike without one; with one, a ridge on them explains the energy."""
    path = tmp_path / "pairs.lmdb"
    random = np.random.default_rng(1)
    pilots.write_ions(path, (pilots.two_dipoles(random) for _ in range(300)), 300, "dipoles")
    data = open_dataset(path)

    def features(attention):
        chosen = pilots.config(path, path, attention, seed=0, epochs=1, max_atoms=100, lr=2e-3)
        torch.manual_seed(0)
        model = EnergyModel(chosen.model, 0).double().eval()
        batch = batch_of([attach_neighbours(one, model.config.neighbour_cutoff) for one in data])
        found = []
        model.encoder.register_forward_hook(lambda module, inputs, output: found.append(output))
        with torch.no_grad():
            model(batch)
        return found[0].view(len(data), 4, -1).mean(dim=1), batch.y_relaxed.double()

    def spread(x):
        return float((x - x.mean(dim=0)).square().mean().sqrt())

    assert spread(features({"mechanism": "local"})[0]) < 1e-7
    # Scaled by the atoms that there are, the far field is seen.
    assert spread(features({"isolated_atoms": 4.0})[0]) > 10 * spread(features({})[0])
    for attention in ({"isolated_atoms": 4.0}, {"mechanism": "softmax"}):
        x, y = ((z - z.mean(dim=0)) / z.std(dim=0) for z in features(attention))
        a = x[:150].T @ x[:150] + 1e-3 * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(a, x[:150].T @ y[:150])
        assert float((x[150:] @ weights - y[150:]).square().mean()) < 0.15
