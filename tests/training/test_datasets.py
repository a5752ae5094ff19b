"""Noise, statistics, labels: the structures on their way to the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from molflt.data.labels import LabelSpec
from molflt.data.sources import ListDataset, StructureDataset, open_dataset
from molflt.errors import InputError
from molflt.model.standardiser import Standardiser, fit_statistics
from molflt.training.config import TrainConfig
from molflt.training.data_module import EnergyDataModule, NoisyDataset, PreparedDataset, labels, read_training_set
from molflt.training.screening import Screening

ENERGY, RELAXED = LabelSpec(), LabelSpec(target="y_relaxed")


@pytest.fixture
def structures(tiny_data: Path) -> StructureDataset:
    return open_dataset(tiny_data / "train.lmdb")


def _noisy(structures: StructureDataset, seed: int = 0, epoch: int = 0, std: float = 0.1) -> NoisyDataset:
    return NoisyDataset(structures, std, seed, epoch, 4.0, False, ("y_relaxed",))


def test_noise_depends_on_seed_epoch_and_index_alone(structures: StructureDataset) -> None:
    first = _noisy(structures, 1, 2)
    torch.manual_seed(99)
    np.random.seed(99)
    again = _noisy(structures, 1, 2)
    order = list(range(len(structures)))
    forwards = [first[i].positions for i in order]
    backwards = [again[i].positions for i in reversed(order)][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    for other in (_noisy(structures, 1, 3), _noisy(structures, 2, 2)):
        assert not torch.equal(first[5].positions, other[5].positions)
    # Two structures of the same size get different noise.
    same = ListDataset([structures[5], structures[5]])
    assert not torch.equal(_noisy(same)[0].positions, _noisy(same)[1].positions)


def test_fixed_atoms_stay_and_the_source_is_untouched(structures: StructureDataset) -> None:
    source = ListDataset([structures[i] for i in range(len(structures))])
    before = [structure.positions.clone() for structure in source]
    noisy = _noisy(source)
    n_fixed = 0
    for i in range(len(source)):
        moved = noisy[i].positions != source[i].positions
        assert not bool(moved[source[i].fixed].any())
        assert bool(moved[~source[i].fixed].all())
        n_fixed += int(source[i].fixed.sum())
    assert n_fixed > 0
    assert all(torch.equal(a, s.positions) for a, s in zip(before, source, strict=True))
    assert all("edge_index" not in structure for structure in source)


def test_noised_points_lie_between_given_and_relaxed(structures: StructureDataset) -> None:
    # Without noise: on the line from given to relaxed, the same share of the way for all atoms of a structure.
    shares = []
    for i in range(len(structures)):
        given, point = structures[i], _noisy(structures, std=0.0)[i]
        way = (given.positions_relaxed - given.positions)[~given.fixed]
        gone = (point.positions - given.positions)[~given.fixed]
        share = gone / way
        assert float(share.max() - share.min()) < 1e-8
        shares.append(float(share.mean()))
        # what is left to go is the target of the displacement head
        left = (point.positions_relaxed - point.positions)[~given.fixed]
        torch.testing.assert_close(left, (1 - shares[-1]) * way)
        assert torch.equal(point.y_relaxed, given.y_relaxed)
    assert 0 <= min(shares) < 0.3
    assert 0.7 < max(shares) <= 1


def test_neighbours_are_those_of_the_noised_positions(structures: StructureDataset) -> None:
    noisy = _noisy(structures, std=0.3)[1]
    i, j = noisy.edge_index
    shift = noisy.cell_offsets.to(torch.float64) @ noisy.cell[0]
    distance = (noisy.positions[i] - noisy.positions[j] - shift).norm(dim=1)
    assert float(distance.min()) > 0.5
    assert float(distance.max()) <= 4.0


def test_prepared_structures_leave_the_source_alone(structures: StructureDataset) -> None:
    source = ListDataset([structures[0]])
    prepared = PreparedDataset(source, 4.0, False, ("y_init",))
    data = prepared[0]
    assert prepared[0] is data
    assert {"edge_index", "y_init"} <= set(data.keys())
    assert not {"energy", "y_relaxed", "positions_relaxed"} & set(data.keys())
    assert "edge_index" not in source[0]
    assert {"energy", "y_relaxed", "positions_relaxed"} <= set(source[0].keys())


def test_statistics_of_kind_structure(structures: StructureDataset) -> None:
    found = read_training_set(Screening(structures, RELAXED, "x"), "structure")
    statistics = found.statistics
    values = np.array([float(structures[i].y_relaxed) for i in range(len(structures))])
    assert statistics.mean == pytest.approx(values.mean())
    assert statistics.std == pytest.approx(values.std())
    assert statistics.references == {}
    assert found.relaxed
    assert set(found.elements) == {int(z) for i in range(len(structures)) for z in structures[i].atomic_numbers}
    free = [
        (structures[i].positions_relaxed - structures[i].positions)[~structures[i].fixed]
        for i in range(len(structures))
    ]
    assert statistics.displacement_std == pytest.approx(float(torch.cat(free).square().mean().sqrt()))
    np.testing.assert_array_equal(labels(Screening(structures, RELAXED, "x")), values)


def test_statistics_of_kind_element_are_least_squares(structures: StructureDataset) -> None:
    found = read_training_set(Screening(structures, ENERGY, "x"), "element")
    statistics, elements = found.statistics, found.elements
    counts = np.array(
        [[int((structures[i].atomic_numbers == z).sum()) for z in elements] for i in range(len(structures))]
    )
    energies = labels(Screening(structures, ENERGY, "x"))
    solution, *_ = np.linalg.lstsq(counts.astype(float), energies, rcond=None)
    assert list(statistics.references) == elements
    np.testing.assert_allclose(list(statistics.references.values()), solution, atol=1e-8)
    assert statistics.mean == 0
    assert statistics.std == pytest.approx((energies - counts @ solution).std(), rel=1e-6)


def test_inseparable_elements_share_their_energy() -> None:
    # H and O only ever as water: least squares has no unique answer; the one of least norm is taken.
    compositions = torch.zeros((3, 119), dtype=torch.int64)
    compositions[:, 1], compositions[:, 8] = torch.tensor([2, 4, 6]), torch.tensor([1, 2, 3])
    statistics = fit_statistics("element", torch.tensor([-10.0, -20.0, -30.0]), compositions, 0.0)
    assert 2 * statistics.references[1] + statistics.references[8] == pytest.approx(-10)
    assert statistics.references[1] == pytest.approx(2 * statistics.references[8])


@pytest.mark.parametrize("kind", ["structure", "element"])
@pytest.mark.parametrize("energies", [[3.0], [2.0, 2.0]])
def test_statistics_of_hardly_any_data_divide_by_one(kind: str, energies: list[float]) -> None:
    compositions = torch.zeros((len(energies), 119), dtype=torch.int64)
    compositions[:, 6] = 1
    statistics = fit_statistics(kind, torch.tensor(energies), compositions, 0.0)  # type: ignore[arg-type]
    assert statistics.std == pytest.approx(1.0)
    assert statistics.displacement_std == 1.0


def test_standardiser_stays_in_double_precision() -> None:
    standardiser = Standardiser()
    standardiser.references[6] = 1027.123456789012
    for moved in (standardiser.float(), standardiser.half(), standardiser.to(torch.bfloat16)):
        assert moved.references.dtype == torch.float64
        assert float(moved.references[6]) == 1027.123456789012


@pytest.mark.parametrize(("setting", "expected"), [("auto", False), (False, False), (True, True)])
def test_noisy_nodes_setting(setting: object, expected: bool, make_config: Callable[..., TrainConfig]) -> None:
    assert EnergyDataModule(make_config(**{"loss.noisy_nodes": setting})).noisy is expected


def test_noisy_nodes_from_ten_thousand_structures_on(
    make_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molflt.training.data_module.NOISY_NODES_FROM", 28)
    assert EnergyDataModule(make_config()).noisy
    monkeypatch.setattr("molflt.training.data_module.NOISY_NODES_FROM", 29)
    assert not EnergyDataModule(make_config()).noisy


@pytest.mark.parametrize(("target", "kind"), [("energy", "element"), ("y_relaxed", "structure")])
def test_standardiser_chosen_by_target(target: str, kind: str, make_config: Callable[..., TrainConfig]) -> None:
    assert EnergyDataModule(make_config(**{"data.target": target})).training_set.statistics.kind == kind
    assert EnergyDataModule(make_config(**{"data.standardise": "element"})).training_set.statistics.kind == "element"


def test_structures_are_shared_by_processes(make_config: Callable[..., TrainConfig]) -> None:
    data = EnergyDataModule(make_config(**{"data.max_atoms": 2048}))

    def among(n_processes: int) -> None:
        data.trainer = SimpleNamespace(global_rank=0, world_size=n_processes, current_epoch=0)  # type: ignore[assignment]

    among(6)
    # of ten and six structures, which would make one batch each
    batches = [list(loader.batch_sampler) for loader in data.val_dataloader()]
    assert all(len(own) >= 1 for own in batches)
    among(29)
    with pytest.raises(InputError, match="28 structures cannot be shared by 29 processes; use fewer"):
        data.train_dataloader()
    with pytest.raises(InputError, match="10 structures cannot be shared by 29 processes; use fewer"):
        data.val_dataloader()
