"""Noise, statistics, labels: the structures on their way to the model."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase.build import fcc111, molecule
from ase.geometry import get_distances
from torch_geometric.data import Batch

from molflt.attention.registry import attention_config
from molflt.data.ase import from_atoms
from molflt.data.dataset import ListDataset
from molflt.data.labels import LabelSpec
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.quality.screen import Crew, Screening, labels
from molflt.data.reading import ReadOptions
from molflt.data.record import to_record
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.model.scale_shift import fit_statistics
from molflt.training.config import TrainConfig
from molflt.training.data_module import EnergyDataModule
from molflt.training.loader import Batches, Packed, Request
from molflt.training.training_set import read_training_set
from molflt.training.training_structures import SHARE, NeighbourDataset, NoisyDataset, SeparatedDataset
from molflt.vocabulary import TAG_ADSORBATE
from tests.model.models import make_model

ENERGY, RELAXED = LabelSpec(), LabelSpec(target="y_relaxed")
MODEL = ModelConfig(cutoff=4.0)


@pytest.fixture(scope="module")
def structures(tiny_data):
    return [structure.clone() for structure in open_dataset(tiny_data / "train.lmdb")]


def noisy(structures, seed=0, epoch=0, std=0.1):
    return NoisyDataset(ListDataset(structures), MODEL, ("y_relaxed",), std, seed, epoch)


def screening(structures, spec):
    return Screening(ListDataset(structures), spec, "x")


def test_a_packed_batch_is_the_batch(structures):
    plan = make_model(attention_config()).plan()
    batch = Batches(noisy(structures), plan.cutoff)[Request(list(range(len(structures))), 0, plan)]
    packed = pickle.loads(pickle.dumps(Packed.of(batch)))
    found = packed.unpacked(torch.device("cpu"))

    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value]
        if not isinstance(value, tuple):
            value = (value.to_dict() if isinstance(value, Batch) else getattr(value, "__dict__", {})).values()
        return [tensor for part in value for tensor in tensors(part)]

    pairs = list(zip(tensors(batch), tensors(found), strict=True))
    assert len(pairs) > 25
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert found.name == batch.name
    # Integers are sent with 32 bits.
    assert packed.memory.nbytes < 0.9 * sum(a.nbytes for a, _ in pairs)
    wide = batch.clone()
    wide.sid = torch.tensor([1 << 40, -(1 << 40)])
    assert torch.equal(Packed.of(wide).unpacked(torch.device("cpu")).sid, wide.sid)


@pytest.mark.parametrize(
    ("device", "asked", "cores", "cached", "lasting", "expected"),
    [
        ("cpu", "auto", 16, False, True, 0),
        ("cpu", 3, 16, False, True, 3),
        # In a process of its own the cache would die with it, unless the process stays.
        ("cpu", 3, 16, True, True, 0),
        ("cuda", "auto", 16, True, True, 7),
        ("cuda", "auto", 16, True, False, 0),
        ("cuda", "auto", 64, False, False, 8),
        ("cuda", "auto", 1, False, True, 1),
        ("cuda", 0, 16, False, True, 0),
    ],
)
def test_loader_processes(device, asked, cores, cached, lasting, expected, make_config, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    data = EnergyDataModule(make_config(**{"data.num_workers": asked}))
    strategy = SimpleNamespace(root_device=torch.device(device))
    monkeypatch.setattr(data, "trainer", SimpleNamespace(strategy=strategy, num_devices=2))
    assert data._n_workers(cached, lasting) == expected


def test_noise_depends_on_seed_epoch_and_index_alone(structures):
    first = noisy(structures, 1, 2)
    torch.manual_seed(99)
    np.random.seed(99)
    again = noisy(structures, 1, 2)
    order = list(range(len(structures)))
    forwards = [first[i].positions for i in order]
    backwards = [again[i].positions for i in reversed(order)][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    for other in (noisy(structures, 1, 3), noisy(structures, 2, 2)):
        assert not torch.equal(first[5].positions, other[5].positions)
    # Two structures of the same size get different noise.
    same = noisy([structures[5], structures[5]])
    assert not torch.equal(same[0].positions, same[1].positions)


def test_fixed_atoms_stay_and_the_source_is_untouched(structures):
    before = [structure.positions.clone() for structure in structures]
    with_noise = noisy(structures)
    for i, structure in enumerate(structures):
        moved = with_noise[i].positions != structure.positions
        assert not bool(moved[structure.fixed].any())
        assert bool(moved[~structure.fixed].all())
    assert any(bool(structure.fixed.any()) for structure in structures)
    assert all(torch.equal(a, s.positions) for a, s in zip(before, structures, strict=True))
    assert all("edge_index" not in structure for structure in structures)


def test_surfaces_lie_between_given_and_relaxed(structures):
    """Without noise: as given, or on the line to relaxed, the same share of the way for all atoms of a structure."""
    shares = []
    for epoch in range(4):
        points = noisy(structures, epoch=epoch, std=0.0)
        for i, given in enumerate(structures):
            point, free = points[i], ~given.fixed & (given.tags != TAG_ADSORBATE)
            way = (given.positions_relaxed - given.positions)[free]
            share = (point.positions - given.positions)[free] / way
            assert float(share.max() - share.min()) < 1e-8
            shares.append(float(share.mean()))
            # What is left to go is the target of the displacement head.
            left = (point.positions_relaxed - point.positions)[free]
            torch.testing.assert_close(left, (1 - shares[-1]) * way)
            assert torch.equal(point.y_relaxed, given.y_relaxed)
    assert 0.3 < np.mean(np.array(shares) == 0.0) < 0.7
    assert 0.7 < max(shares) <= 1


def test_an_adsorbate_moves_as_a_whole(structures):
    """Distances within it stay, also across the border of the cell that cuts it in two."""
    given = structures[1].clone()
    cut = np.array([[0.9, 0.1, 7.0], [-0.9, -0.2, 7.4], [-0.3, 0.9, 8.0]])
    given.positions = torch.cat([given.positions[given.tags != TAG_ADSORBATE], torch.from_numpy(cut)])
    n = len(given.positions)
    given.atomic_numbers = torch.cat([given.atomic_numbers[: n - 3], torch.tensor([8, 1, 1])])
    given.tags = torch.cat([given.tags[: n - 3], torch.full((3,), TAG_ADSORBATE)])
    given.fixed = torch.cat([given.fixed[: n - 3], torch.zeros(3, dtype=torch.bool)])
    given.positions[-3:] %= given.cell[0].diagonal()
    given.positions_relaxed = given.positions.clone()
    cell, pbc = given.cell[0].numpy(), given.pbc[0].numpy()
    furthest = []
    for epoch in range(20):
        moved = noisy([given], epoch=epoch, std=0.0)[0].positions[-3:]
        now = get_distances(moved.numpy(), cell=cell, pbc=pbc)[1]
        np.testing.assert_allclose(now, np.linalg.norm(cut[:, None] - cut, axis=2), atol=1e-9)
        furthest.append(float((moved - given.positions[-3:]).abs().max()))
    assert 0.1 < max(furthest) < 1.0


def test_neighbours_are_those_of_the_noised_positions(structures):
    data = noisy(structures, std=0.3)[1]
    i, j = data.edge_index
    shift = data.cell_offsets.to(torch.float64) @ data.cell[0]
    distance = (data.positions[i] - data.positions[j] - shift).norm(dim=1)
    assert float(distance.min()) > 0.5
    assert float(distance.max()) <= 4.0


def test_prepared_structures_leave_the_source_alone(structures):
    prepared = NeighbourDataset(ListDataset(structures), MODEL, ("y_init",))
    data = prepared[0]
    assert prepared[0] is data
    assert {"edge_index", "y_init"} <= set(data.keys())
    assert not {"energy", "y_relaxed", "positions_relaxed"} & set(data.keys())
    assert "edge_index" not in structures[0]
    assert {"energy", "y_relaxed", "positions_relaxed"} <= set(structures[0].keys())


def test_statistics_of_kind_structure(structures):
    found = read_training_set(screening(structures, RELAXED), "structure")
    statistics = found.statistics
    values = np.array([float(structure.y_relaxed) for structure in structures])
    assert statistics.mean == pytest.approx(values.mean())
    assert statistics.std == pytest.approx(values.std())
    assert statistics.references == {}
    assert found.relaxed
    assert set(found.elements) == {int(z) for structure in structures for z in structure.atomic_numbers}
    free = [(s.positions_relaxed - s.positions)[~s.fixed] for s in structures]
    assert statistics.displacement_std == pytest.approx(float(torch.cat(free).square().mean().sqrt()))
    np.testing.assert_array_equal(labels(screening(structures, RELAXED)), values)


def test_statistics_of_kind_element_are_least_squares(structures):
    found = read_training_set(screening(structures, ENERGY), "element")
    statistics, elements = found.statistics, found.elements
    counts = np.array([[int((s.atomic_numbers == z).sum()) for z in elements] for s in structures])
    energies = labels(screening(structures, ENERGY))
    solution, *_ = np.linalg.lstsq(counts.astype(float), energies, rcond=None)
    assert list(statistics.references) == elements
    np.testing.assert_allclose(list(statistics.references.values()), solution, atol=1e-8)
    assert statistics.mean == 0
    assert statistics.std == pytest.approx((energies - counts @ solution).std(), rel=1e-6)


def test_inseparable_elements_share_their_energy():
    """H and O only ever as water: least squares has no unique answer; the one of least norm is taken."""
    compositions = torch.zeros((3, 119), dtype=torch.int64)
    compositions[:, 1], compositions[:, 8] = torch.tensor([2, 4, 6]), torch.tensor([1, 2, 3])
    statistics = fit_statistics("element", torch.tensor([-10.0, -20.0, -30.0]), compositions, 0.0)
    assert 2 * statistics.references[1] + statistics.references[8] == pytest.approx(-10)
    assert statistics.references[1] == pytest.approx(2 * statistics.references[8])


@pytest.mark.parametrize("kind", ["structure", "element"])
@pytest.mark.parametrize("energies", [[3.0], [2.0, 2.0]])
def test_statistics_of_hardly_any_data_divide_by_one(kind, energies):
    compositions = torch.zeros((len(energies), 119), dtype=torch.int64)
    compositions[:, 6] = 1
    statistics = fit_statistics(kind, torch.tensor(energies), compositions, 0.0)
    assert statistics.std == pytest.approx(1.0)
    assert statistics.displacement_std == 1.0


@pytest.mark.parametrize("kind", ["structure", "element"])
def test_a_unit_of_the_output_is_what_forces_do_in_an_angstrom(kind):
    """Energies of dynamics differ by tenths of what a stretched bond costs; the loss still goes by their spread."""
    compositions = torch.zeros((2, 119), dtype=torch.int64)
    compositions[:, 6] = 1
    for force_rms, std in ((0.0, 0.1), (0.05, 0.1), (3.0, 3.0)):
        statistics = fit_statistics(kind, torch.tensor([1.0, 1.2]), compositions, 0.0, force_rms=force_rms)
        assert (statistics.spread, statistics.std) == pytest.approx((0.1, std), rel=1e-5)


def test_when_inputs_are_noised(make_config):
    for setting, expected in (("auto", True), (False, False), (True, True)):
        assert EnergyDataModule(make_config(**{"loss.noisy_nodes": setting})).noisy is expected
    assert not EnergyDataModule(make_config(**{"data.target": "y_init"})).noisy
    with pytest.raises(InputError, match=r"needs data\.target=y_relaxed"):
        EnergyDataModule(make_config(**{"data.target": "y_init", "loss.noisy_nodes": True}))


@pytest.mark.parametrize(("target", "kind"), [("energy", "element"), ("y_relaxed", "structure")])
def test_standardiser_chosen_by_target(target, kind, make_config):
    assert EnergyDataModule(make_config(**{"data.target": target})).training_set.statistics.kind == kind
    given = make_config(**{"data.target": target, "data.standardise": "element"})
    assert EnergyDataModule(given).training_set.statistics.kind == "element"


def test_structures_are_shared_by_processes(make_config):
    data = EnergyDataModule(make_config(**{"data.max_atoms": 2048}))

    def among(n_processes):
        data.trainer = SimpleNamespace(global_rank=0, world_size=n_processes, current_epoch=0)

    among(6)
    # Of ten and six structures, which would make one batch each.
    assert all(len(list(loader.sampler)) >= 1 for loader in data.val_dataloader())
    among(29)
    with pytest.raises(InputError, match="28 structures cannot be shared by 29 processes; use fewer"):
        data.train_dataloader()
    with pytest.raises(InputError, match="10 structures cannot be shared by 29 processes; use fewer"):
        data.val_dataloader()


def by_crew(n, make):
    """Results of ``make(crew)`` in n threads that act as the processes of a crew; errors are results, too."""
    barrier, board = threading.Barrier(n), {}

    def one(rank):
        def gather(value):
            board[rank] = pickle.dumps(value)
            barrier.wait(timeout=60)
            values = [pickle.loads(board[k]) for k in range(n)]
            barrier.wait(timeout=60)
            return values

        try:
            return make(Crew(rank, n, gather))
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


class Read(ListDataset):
    def __init__(self, structures):
        super().__init__(structures)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)

    @property
    def n_atoms(self):
        raise AssertionError("the sizes are known from the pass")


@pytest.mark.parametrize("n", [2, 5, 40])
def test_a_crew_reads_each_record_once_and_finds_what_one_finds(n, structures):
    few = [s.clone() for s in structures]
    del few[3].y_relaxed, few[20].y_relaxed
    alone = Screening(Read(few), RELAXED, "x", on_bad="skip", compared=True)
    expected = read_training_set(alone, "element")
    screenings = []

    def make(crew):
        screenings.append(Screening(Read(few), RELAXED, "x", on_bad="skip", compared=True, crew=crew))
        return screenings[-1], read_training_set(screenings[-1], "element")

    for its, found in by_crew(n, make):
        assert found == expected
        assert its.skipped == alone.skipped
        for name, one in its.facts._asdict().items():
            np.testing.assert_array_equal(one, getattr(alone.facts, name), err_msg=name)
        np.testing.assert_array_equal(its.usable.n_atoms, [s.num_nodes for s in few if "y_relaxed" in s])
    assert sorted(k for its in screenings for k in its.structures.read) == list(range(len(few)))
    assert max(len(its.structures.read) for its in screenings) <= -(-len(few) // n)


@pytest.mark.parametrize("kind", ["unreadable", "unlabelled", "all"])
def test_a_crew_refuses_with_one_voice(kind, structures):
    few = [s.clone() for s in structures]
    for k in (5, 25):
        if kind == "unreadable":
            few[k].positions[0] = few[k].positions[1]
        else:
            del few[k].y_relaxed
    refused = few[5:6] if kind == "all" else few
    on_bad = "skip" if kind == "all" else "stop"
    with pytest.raises(InputError, match=few[5].name) as alone:
        labels(Screening(ListDataset(refused), RELAXED, "x", on_bad=on_bad))
    told = by_crew(3, lambda crew: labels(Screening(ListDataset(refused), RELAXED, "x", on_bad=on_bad, crew=crew)))
    assert told == [str(alone.value)] * 3


def test_what_one_process_meets_stops_all():
    def open_it(crew):
        def there():
            if crew.rank == 1:
                raise InputError("node-7/train.lmdb: no such file")

        return crew.agree(there)

    assert by_crew(3, open_it) == ["node-7/train.lmdb: no such file"] * 3


def molecules():
    found = [
        from_atoms(molecule(name), name) for name in ("H2O", "NH3", "CH4", "CO2", "CH3OH", "C2H6", "H2O2", "N2H4")
    ]
    for k, data in enumerate(found):
        data.energy = torch.tensor([-float(k)], dtype=torch.float64)
    return found


def test_compositions_are_new_in_every_epoch_and_of_the_same_sizes():
    prepared = NeighbourDataset(ListDataset(molecules()), MODEL, ("energy",))
    first, again, later = (SeparatedDataset(prepared, 2.5, 3, epoch) for epoch in (1, 1, 2))
    assert len(first) == 8 + 20
    np.testing.assert_array_equal(first.n_atoms, later.n_atoms)
    changed = 0
    for k in range(8, 28):
        a, b, c = first[k], again[k], later[k]
        assert len(a.positions) == first.n_atoms[k] == len(c.positions)
        assert torch.equal(a.positions, b.positions)
        assert not torch.equal(a.positions, c.positions)
        changed += float(a.energy) != float(c.energy)
    # Ammonia is the only one of its size here; the others change places.
    assert changed > 3


def on_platinum():
    """Water and carbon monoxide on some places of one slab, moved a little on relaxation, and one on copper."""
    found = []
    for k, (metal, name) in enumerate([("Pt", "H2O"), ("Pt", "CO"), ("Pt", "H2O"), ("Pt", "OH"), ("Cu", "CO")]):
        slab = fcc111(metal, (3, 3, 2), vacuum=6.0, periodic=True)
        slab.set_tags((slab.get_tags() == 1).astype(int))
        guest = molecule(name)
        guest.positions += slab.positions[-1 - k] + [0, 0, 2.2 - guest.positions[:, 2].min()]
        guest.set_tags([TAG_ADSORBATE] * len(guest))
        atoms = slab + guest
        atoms.info["y_relaxed"] = -1.0 - k
        data = from_atoms(atoms, f"{name} on {metal} {k}", ReadOptions(tags="oc20"))
        data.positions_relaxed = data.positions + 0.05
        found.append(data)
    return found


def paired(epoch, share=2.0):
    return NoisyDataset(ListDataset(on_platinum()), MODEL, ("y_relaxed",), 0.01, 3, epoch, share)


def test_pairs_of_adsorbates_are_at_other_places_in_every_epoch_and_of_the_same_sizes():
    first, again, later = paired(1), paired(1), paired(2)
    # Nothing else is on copper.
    assert len(first) == 5 + 8
    np.testing.assert_array_equal(first.n_atoms, later.n_atoms)
    assert torch.equal(first[2].positions, noisy(on_platinum(), 3, 1, 0.01)[2].positions)
    changed = 0
    for k in range(5, 13):
        a, b, c = first[k], again[k], later[k]
        assert len(a.positions) == first.n_atoms[k] == len(c.positions)
        assert torch.equal(a.positions, b.positions)
        changed += not torch.allclose(a.positions, c.positions, atol=1.0)
        assert float(a.y_relaxed) == float(c.y_relaxed) <= -3
        assert int(a.edge_index.max()) == len(a.positions) - 1
    # Some fit in one place only.
    assert changed > 2
    assert len(paired(0, 0.5)) == 5 + 2


def test_when_adsorbates_are_paired(tmp_path):
    write_lmdb(tmp_path / "a.lmdb", map(to_record, on_platinum()), progress=False)

    def module(**overrides):
        path = str(tmp_path / "a.lmdb")
        values = {"train": path, "val": {"val": path}, "target": "y_relaxed"}
        return EnergyDataModule(TrainConfig.model_validate({"data": values, **overrides}))

    assert module().separation == 0
    assert module(loss={"separation": 0.6}).separation == 0.6
    path = tmp_path / "different.lmdb"
    write_lmdb(path, map(to_record, on_platinum()[3:]), progress=False)
    values = {"train": str(path), "val": str(path), "target": "y_relaxed"}
    with pytest.raises(InputError, match=r"different\.lmdb: no two structures have the same slab"):
        _ = EnergyDataModule(TrainConfig.model_validate({"data": values, "loss": {"separation": 0.6}})).prepared
    # The slab has an energy of its own, which two would have twice.
    for other in ({"model": {"read_out": "all"}}, {"loss": {"noisy_nodes": False}}):
        with pytest.raises(InputError, match="so that energies add up"):
            module(**other | {"loss": {"separation": 0.6, **other.get("loss", {})}})


def test_when_distant_molecules_are_composed(tmp_path):
    def module(**overrides):
        path = tmp_path / "molecules.lmdb"
        if not path.exists():
            write_lmdb(path, map(to_record, molecules()), progress=False)
        values = {"train": str(path), "val": {"val": str(path)}, "target": "energy", **overrides.pop("data", {})}
        return EnergyDataModule(TrainConfig.model_validate({"data": values, **overrides}))

    assert module().separation == SHARE
    assert module(loss={"separation": 0.7}).separation == 0.7
    assert module(loss={"separation": 0}).separation == 0
    # A mean for each structure does not add up, and ions feel each other from afar.
    assert module(data={"standardise": "structure"}).separation == 0
    assert module(data={"allow_charged": True}).separation == 0
    with pytest.raises(InputError, match="so that energies add up"):
        module(data={"standardise": "structure"}, loss={"separation": 0.1})
