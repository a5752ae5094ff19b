"""The generator of the bundled data, on a handful of systems, and the bundled data itself."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import combinations, product

import numpy as np
import pytest
import typer
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from typer.testing import CliRunner

from molflt.data.lmdb_dataset import LmdbDataset
from scripts.results import ROOT
from scripts.tools.adsorption import make as script
from scripts.tools.adsorption import systems
from scripts.tools.adsorption.emt import VectorisedEMT

FACETS = systems.FACETS
BUNDLED = ROOT / "data" / "adsorption"
COUNTS = {"train": 2000, "val": 300, "test": 300, "val_ood_metal": 150, "val_ood_adsorbate": 150}
FEW = ["--train", "3", "--val", "1", "--test", "0", "--val-ood-metal", "1", "--val-ood-adsorbate", "1"]
FEW_SPLITS = ("train", "val", "val_ood_metal", "val_ood_adsorbate")

app = typer.Typer()
app.command()(script.main)


def run(out, *options):
    return CliRunner().invoke(app, ["--out", str(out), *FEW, *options])


def tensors(data):
    return {key: data[key].numpy() for key in data.keys() if hasattr(data[key], "numpy")}  # noqa: SIM118


def same(first, second):
    """Whether two folders hold the same records."""
    for split in FEW_SPLITS:
        a, b = LmdbDataset(first / f"{split}.lmdb"), LmdbDataset(second / f"{split}.lmdb")
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert x.name == y.name
            assert tensors(x).keys() == tensors(y).keys()
            for key, value in tensors(x).items():
                np.testing.assert_array_equal(value, tensors(y)[key])


def emt(numbers, positions, cell=None):
    pbc = cell is not None
    return Atoms(numbers, positions, cell=cell, pbc=pbc, calculator=EMT()).get_potential_energy()


def check_energies(data):
    """Recompute both labels of a record with ASE's EMT from what is stored, and the gas phase from scratch."""
    z, tags = data.atomic_numbers.numpy(), data.tags.numpy()
    cell, start, end = data.cell.numpy()[0], data.positions.numpy(), data.positions_relaxed.numpy()
    gas = systems.gas(data.adsorbate)[0]
    assert sorted(gas.numbers) == sorted(z[tags == 2])
    e_gas = emt(gas.numbers, gas.positions)
    e_slab = emt(z[tags < 2], start[tags < 2], cell)
    e_init, e_relaxed = emt(z, start, cell), emt(z, end, cell)
    # stored lengths are float32, so that a minimum image found by the reader may differ by one rounding
    assert e_init - e_slab - e_gas == pytest.approx(float(data.y_init), abs=1e-5)
    assert e_relaxed - e_slab - e_gas == pytest.approx(float(data.y_relaxed), abs=1e-5)
    assert float(data.y_relaxed) <= float(data.y_init) + 1e-3


def check_structure(data):
    tags, fixed = data.tags.numpy(), data.fixed.numpy()
    z, start, end = data.atomic_numbers.numpy(), data.positions.numpy(), data.positions_relaxed.numpy()
    assert set(tags) == {0, 1, 2}
    assert not fixed[tags > 0].any()
    assert fixed.any()
    np.testing.assert_array_equal(end[fixed], start[fixed])
    assert set(z[tags == 2]) <= {1, 6, 7, 8}
    assert set(z[tags < 2]).isdisjoint({1, 6, 7, 8})
    assert start[tags == 1, 2].min() > start[fixed, 2].max()
    height = data.cell.numpy()[0, 2, 2]
    for positions in (start, end):
        # from the highest atom to the bottom of the next image
        assert height - np.ptp(positions[:, 2]) > 11.0


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    out = tmp_path_factory.mktemp("adsorption")
    result = run(out, "--workers", "1")
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.slow
def test_result_does_not_depend_on_the_number_of_workers(few, tmp_path):
    result = run(tmp_path, "--workers", "2")
    assert result.exit_code == 0, result.output
    same(few, tmp_path)


def test_killed_run_continues(few, tmp_path, monkeypatch):
    """The same records, and nothing computed twice."""
    command = [sys.executable, "-m", "scripts.tools.adsorption.make", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, *FEW, "--workers", "1"], env=environment, stderr=subprocess.DEVNULL)
    partial = tmp_path / script.PARTIAL
    limit = time.monotonic() + 60
    while time.monotonic() < limit and (not partial.exists() or partial.read_bytes().count(b"\n") < 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "train.lmdb").exists()
    finished = [json.loads(line) for line in partial.read_bytes().splitlines(keepends=True)[1:] if line[-1] == 10]
    assert len(finished) >= 2
    # a line that the kill cut short is computed again
    with partial.open("ab") as handle:
        handle.write(b'{"split": "train", "ind')
    recomputed = []

    def compute(seed, split, index):
        recomputed.append((split, index))
        return systems.compute(seed, split, index)

    monkeypatch.setattr(script, "compute", compute)
    assert run(tmp_path, "--workers", "1").exit_code == 0
    assert not {(result["split"], result["index"]) for result in finished} & set(recomputed)
    same(few, tmp_path)
    assert not partial.exists()


def test_partial_results_of_another_seed_are_refused(few, tmp_path):
    script.read_partial(tmp_path / script.PARTIAL, {"seed": 1})
    result = run(tmp_path, "--workers", "1", "--seed", "2")
    assert result.exit_code != 0
    assert "other settings" in result.output
    assert "already" in run(few, "--workers", "1").output


def test_near_duplicates_go_from_train_first():
    def result(name, y_init):
        return {"name": name, "y_init": y_init}

    results = {
        ("train", 0): result("a", 0.500),
        ("train", 1): result("b", 0.5),
        ("train", 2): {"rejected": "dissociated"},
        ("val", 0): result("a", 0.501),
    }
    chosen, missing, rejected = script.select(results, {"train": 2, "val": 1})
    assert [index for index, _ in chosen["val"]] == [0]
    assert [index for index, _ in chosen["train"]] == [1]
    assert missing == [("train", 3)]
    assert rejected == {"duplicate": 1, "dissociated": 1}


def test_tags_and_constraints_of_ideal_slabs(monkeypatch):
    for facet, seed in product(FACETS, range(3)):
        monkeypatch.setattr(systems, "FACETS", {facet: FACETS[facet]})
        slab, label = systems.build_slab(np.random.default_rng(seed), "train")
        size = [int(n) for n in label.split(")")[1].split("x")]
        n, layers = len(slab), size[2]
        assert n == np.prod(size)
        fixed = slab.constraints[0].index
        assert len(fixed) == (layers + 1) // 2 * size[0] * size[1]
        assert set(fixed).isdisjoint(np.flatnonzero(slab.get_tags() == 1))
        exposed = {"111": 1, "100": 1, "110": 2, "211": 1}[facet] * size[0] * size[1]
        assert exposed <= (slab.get_tags() == 1).sum() <= 2 * size[0] * size[1]
        assert systems.relax(slab) is None


def test_placed_adsorbates_touch_the_slab_without_overlap():
    for index, adsorbate in enumerate((*systems.ADSORBATES, systems.HELD_OUT_ADSORBATE)):
        rng = np.random.default_rng(index)
        slab, _ = systems.build_slab(rng, "train")
        both = slab + systems.place(slab, adsorbate, rng)
        n = len(slab)
        radii = systems.covalent_radii[both.numbers]
        ratio = both.get_all_distances(mic=True)[n:, :n] / (radii[n:, None] + radii[None, :n])
        low, high = systems.HEIGHT_SCALE
        assert low - 1e-6 < ratio.min() < high + 1e-6


def test_broken_adsorbates_are_recognised():
    atoms = systems.gas("CO2")[0]
    assert not systems.dissociated("CO2", atoms.positions)
    for scale in (0.6, 1.9):
        assert systems.dissociated("CO2", atoms.positions * scale)
    assert len(systems.bonds("CH3")[0]) == 3
    assert len(systems.bonds("H")[0]) == 0


def test_lattice_constants_are_those_of_emt():
    for metal, constant in systems.LATTICE_CONSTANTS.items():
        below, here, above = (emt_of_bulk(metal, constant + change) for change in (-2e-3, 0, 2e-3))
        assert here < min(below, above)


def emt_of_bulk(metal, constant):
    atoms = bulk(metal, "fcc", a=constant)
    atoms.calc = EMT()
    return atoms.get_potential_energy()


def test_vectorised_emt_is_ase_emt():
    structures = [Atoms("O"), molecule("CH3OH"), bulk("Cu", cubic=True), Atoms("CuH", [(0, 0, 0), (0, 0, 30)])]
    slab, _ = systems.build_slab(np.random.default_rng(3), "train")
    structures.append(slab + systems.place(slab, "CO2", np.random.default_rng(3)))
    for atoms in structures:
        atoms.set_constraint()
        atoms.rattle(0.1, seed=1)
        reference, ours = atoms.copy(), atoms.copy()
        reference.calc, ours.calc = EMT(), VectorisedEMT()
        for _ in range(2):
            assert ours.get_potential_energy() == pytest.approx(reference.get_potential_energy(), abs=1e-10)
            np.testing.assert_allclose(ours.get_forces(), reference.get_forces(), atol=1e-10)
            # the second time round the calculator has a state to compare with
            ours.positions[0] += 0.1
            reference.positions[0] += 0.1


@pytest.fixture(scope="module")
def bundled():
    return {split: list(LmdbDataset(BUNDLED / f"{split}.lmdb")) for split in COUNTS}


def test_bundled_structures_and_energies(bundled):
    assert {split: len(data) for split, data in bundled.items()} == COUNTS
    assert sum(path.stat().st_size for path in BUNDLED.glob("*.lmdb")) < 10e6
    for data in bundled.values():
        for structure in data:
            check_structure(structure)
            assert float(structure.y_relaxed) <= float(structure.y_init) + 1e-3
        for structure in data[:: len(data) // 4]:
            check_energies(structure)


def test_bundled_records_come_from_the_script(bundled):
    for split, data in bundled.items():
        sid = int(data[0].sid)
        assert sid // script.SID_STRIDE == systems.SPLITS.index(split)
        result = systems.compute(0, split, sid % script.SID_STRIDE)
        assert result["name"] == data[0].name
        # another processor may round differently, which a relaxation amplifies
        assert result["y_relaxed"] == pytest.approx(float(data[0].y_relaxed), abs=1e-2)


def test_bundled_hold_outs_and_disjoint_splits(bundled):
    for split in ("train", "val", "test"):
        assert {data.adsorbate for data in bundled[split]} == set(systems.ADSORBATES)
        assert all(set(data.metals.split("-")) != systems.HELD_OUT_PAIR for data in bundled[split])
    assert {frozenset(data.metals.split("-")) for data in bundled["val_ood_metal"]} == {systems.HELD_OUT_PAIR}
    assert {data.adsorbate for data in bundled["val_ood_metal"]} == set(systems.ADSORBATES)
    assert {data.adsorbate for data in bundled["val_ood_adsorbate"]} == {systems.HELD_OUT_ADSORBATE}
    prints = {
        split: {script.fingerprint({"name": d.name, "y_init": float(d.y_init)}) for d in data}
        for split, data in bundled.items()
    }
    assert all(len(prints[split]) == COUNTS[split] for split in COUNTS)
    for first, second in combinations(prints.values(), 2):
        assert not first & second
    sids = [int(data.sid) for split in bundled.values() for data in split]
    assert len(set(sids)) == len(sids)
