"""Ensembles: members that are runs of their own, their mean, and going on after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import molflt
from molflt.data.labels import LabelSpec
from molflt.data.sources import StructureDataset
from molflt.errors import InputError
from molflt.model.model_file import load_model
from molflt.prediction.average import average_models
from molflt.prediction.members import load_members, member_paths
from molflt.prediction.predictor import predict
from molflt.training.config import TrainConfig
from molflt.training.ensemble import train_ensemble
from molflt.training.run import train
from molflt.training.screening import Screening, labels

MakeConfig = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def ensemble(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ensembles") / "three"
    train_ensemble(make_config(ensemble=3, **{"trainer.keep_last": 2}), folder, say=lambda line: None)
    return folder


def test_a_member_is_the_run_of_its_seed(ensemble: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    alone = make_config(seed=make_config().seed + 1, **{"trainer.keep_last": 2})
    train(alone, tmp_path / "alone", say=lambda line: None)
    mine, other = (load_model(p / "best.safetensors") for p in (ensemble / "member-1", tmp_path / "alone"))
    for name, tensor in mine.model.state_dict().items():
        assert tensor.equal(other.model.state_dict()[name]), name


def test_mean_and_spread(ensemble: Path, val_set: StructureDataset) -> None:
    # The members of the model itself, whose weights need no gradient: where they do torch.matmul rounds otherwise.
    model = molflt.load(ensemble, device="cpu")
    members = model.members
    assert len(members) == 3
    assert len({m.metadata.seed for m in members}) == 3
    alone = np.stack([predict(member, val_set)[0].energies for member in members])
    together, _ = predict(members, val_set)
    assert together.std is not None
    np.testing.assert_allclose(together.energies, alone.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(together.std, alone.std(axis=0, ddof=1), rtol=1e-4)
    mean, std = model.predict(val_set, return_std=True)
    np.testing.assert_array_equal(mean, together.energies)
    np.testing.assert_array_equal(std, together.std)


def test_the_result_is_that_of_the_mean(make_config: MakeConfig, tmp_path: Path, val_set: StructureDataset) -> None:
    said: list[str] = []
    result = train_ensemble(make_config(ensemble=2, **{"trainer.max_epochs": 1}), tmp_path / "two", say=said.append)
    energies = predict(load_members(tmp_path / "two"), val_set)[0].energies
    expected = np.abs(energies - labels(Screening(val_set, LabelSpec(target="y_relaxed"), "val"))).mean()
    assert result.best == pytest.approx(expected, rel=1e-6)
    assert any(f"mean of the members {expected:.4f} eV" in line for line in said)


def test_an_interrupted_ensemble_goes_on(
    ensemble: Path, make_config: MakeConfig, tmp_path: Path, val_set: StructureDataset
) -> None:
    config = make_config(ensemble=3, **{"trainer.keep_last": 2})
    folder = tmp_path / "again"

    def stop(line: str) -> None:
        if line.startswith("member 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_ensemble(config, folder, say=stop)
    with pytest.raises(InputError, match="holds a run already"):
        train_ensemble(config, folder, say=lambda line: None)
    train_ensemble(config, folder, resume=True, say=lambda line: None)
    np.testing.assert_array_equal(
        predict(load_members(folder), val_set)[0].energies, predict(load_members(ensemble), val_set)[0].energies
    )


def test_unfinished_members_are_named(ensemble: Path, tmp_path: Path) -> None:
    (tmp_path / "member-0").mkdir()
    (tmp_path / "member-10").mkdir()
    (tmp_path / "member-2").mkdir()
    with pytest.raises(InputError, match=r"member-0, member-2, member-10 of its 3 members .*--resume auto"):
        member_paths(tmp_path)


def test_members_must_predict_the_same(ensemble: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    other = make_config(**{"data.target": "energy", "trainer.max_epochs": 1})
    train(other, tmp_path / "other", say=lambda line: None)
    with pytest.raises(InputError, match=r"its target is energy, that of .* y_relaxed; they make no ensemble"):
        load_members([ensemble, tmp_path / "other"])


def test_several_devices_are_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ensemble=1 seed=3"):
        train_ensemble(make_config(ensemble=2, **{"trainer.devices": 2}), tmp_path / "x", say=lambda line: None)


def test_average_is_the_mean_of_the_weights(ensemble: Path, tmp_path: Path) -> None:
    checkpoints = sorted((ensemble / "member-0").glob("epoch-*.safetensors"))
    assert [path.name for path in checkpoints] == ["epoch-000001.safetensors", "epoch-000002.safetensors"]
    averaged = average_models(checkpoints, tmp_path / "mean.safetensors")
    first, second = (load_model(path).model.state_dict() for path in checkpoints)
    found = load_model(tmp_path / "mean.safetensors")
    for name, tensor in found.model.state_dict().items():
        np.testing.assert_allclose(tensor.numpy(), (first[name].numpy() + second[name].numpy()) / 2, rtol=1e-6)
    assert found.metadata.validation == {}
    assert averaged.path == tmp_path / "mean.safetensors"


def test_average_refuses_what_is_not_of_one_run(ensemble: Path, tmp_path: Path) -> None:
    files = member_paths(ensemble)
    with pytest.raises(InputError, match="another configuration or seed"):
        average_models(files[:2], tmp_path / "mean.safetensors")
    with pytest.raises(InputError, match="at least two"):
        average_models(files[:1], tmp_path / "mean.safetensors")
    with pytest.raises(InputError, match="exists already"):
        average_models([files[0], files[0]], files[1])
    assert list(tmp_path.iterdir()) == []


def test_only_the_last_checkpoints_are_kept(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**{"trainer.max_epochs": 4, "trainer.keep_last": 2})
    train(config, tmp_path / "run", say=lambda line: None)
    kept = sorted(path.name for path in (tmp_path / "run").glob("epoch-*"))
    assert kept == ["epoch-000003.safetensors", "epoch-000004.safetensors"]
