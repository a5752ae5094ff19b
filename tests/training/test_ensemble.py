"""Ensembles: members that are runs of their own, their mean, going on after an interruption; averages of weights."""

import numpy as np
import pytest
from ase.build import molecule

import molflt
from molflt.data.labels import LabelSpec
from molflt.data.quality.screen import Screening, labels
from molflt.errors import InputError
from molflt.model.file import load_model
from molflt.prediction.evaluate import evaluate
from molflt.prediction.members import average_models, load_members, member_paths
from molflt.prediction.predict import predict
from molflt.training.ensemble import train_ensemble
from tests.training.runs import QUICK, assert_same_run, go, quiet

TWO = {**QUICK, "ensemble": 2, "trainer.keep_last": 2, "trainer.max_epochs": 3}


@pytest.fixture(scope="module")
def trained(make_config, tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("ensembles") / "two", []
    return folder, train_ensemble(make_config(**TWO), folder, say=said.append), said


@pytest.fixture
def ensemble(trained):
    return trained[0]


def test_a_member_is_the_run_of_its_seed(ensemble, make_config, tmp_path):
    go(make_config(**{**TWO, "ensemble": 1, "seed": make_config().seed + 1}), tmp_path / "alone")
    assert_same_run(tmp_path / "alone", ensemble / "member-1")


def test_mean_and_spread(trained, val_set):
    ensemble, result, said = trained
    # The members of the model itself, whose weights need no gradient: where they do torch.matmul rounds otherwise.
    model = molflt.load(ensemble, device="cpu")
    assert [m.metadata.seed for m in model.members] == [3, 4]
    alone = np.stack([predict(member, val_set).energies for member in model.members])
    together = predict(model.members, val_set)
    np.testing.assert_allclose(together.energies, alone.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(together.uncertainty_eV, alone.std(axis=0, ddof=1), rtol=1e-4)
    # Power: another seed is another model.
    assert (together.uncertainty_eV > 0).all()
    mean, std = model.predict(val_set, return_uncertainty=True)
    np.testing.assert_array_equal(mean, together.energies)
    np.testing.assert_array_equal(std, together.uncertainty_eV)
    # What training gives is of the mean.
    expected = np.abs(mean - labels(Screening(val_set, LabelSpec(target="y_relaxed"), "val"))).mean()
    assert result.best == pytest.approx(expected, rel=1e-6)
    assert any(f"mean of the members {expected:.4f} eV" in line for line in said)


def test_members_of_several_kinds(loaded, performer_path, val_set):
    """With and without a far field, either first; a calculator keeps one layout while atoms move, and says so."""
    local = load_model(performer_path)
    for members in ([loaded, local, loaded], [local, loaded]):
        alone = [predict(member, val_set, per_atom=True) for member in members]
        together = predict(members, val_set, per_atom=True)
        np.testing.assert_allclose(together.energies, np.mean([one.energies for one in alone], axis=0), rtol=1e-6)
        of_first = np.mean([one.atomic_energies[0] for one in alone], axis=0)
        np.testing.assert_allclose(together.atomic_energies[0], of_first, rtol=1e-5)
        assert np.ptp([one.energies[0] for one in alone]) > 0
        with pytest.raises(InputError, match="members of several kinds"):
            molflt.MolFLTCalculator(members).get_potential_energy(molecule("CO"))


def test_an_interrupted_ensemble_goes_on(ensemble, make_config, tmp_path):
    folder = tmp_path / "again"

    def stop(line):
        if line.startswith("member 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_ensemble(make_config(**TWO), folder, say=stop)
    with pytest.raises(InputError, match="holds a run already"):
        train_ensemble(make_config(**TWO), folder, say=quiet)
    train_ensemble(make_config(**TWO), folder, resume=True, say=quiet)
    for member in ("member-0", "member-1"):
        assert_same_run(folder / member, ensemble / member)


def test_what_makes_no_ensemble(ensemble, make_config, tmp_path):
    for name in ("member-0", "member-10", "member-2"):
        (tmp_path / "unfinished" / name).mkdir(parents=True)
    with pytest.raises(InputError, match=r"member-0, member-2, member-10 of its 3 members .*--resume auto"):
        member_paths(tmp_path / "unfinished")
    go(make_config(**QUICK, **{"data.target": "energy"}), tmp_path / "other")
    with pytest.raises(InputError, match=r"its target is energy, that of .* y_relaxed; they are not an ensemble"):
        load_members([ensemble, tmp_path / "other"])
    one, other = load_model(ensemble / "member-0/best.safetensors"), load_model(tmp_path / "other/best.safetensors")
    with pytest.raises(InputError, match="are not an ensemble"):
        evaluate([one, other], [])
    with pytest.raises(InputError, match="ensemble=1 seed=3"):
        train_ensemble(make_config(ensemble=2, **{"trainer.devices": 2}), tmp_path / "x", say=quiet)
    # Data that are not there leave no run in the way of the corrected command.
    with pytest.raises(InputError, match="no such file"):
        train_ensemble(make_config(**TWO, **{"data.train": "nowhere.lmdb"}), tmp_path / "y", say=quiet)
    assert not (tmp_path / "y" / "config.yaml").exists()


def test_average_of_the_checkpoints_that_are_kept(ensemble, tmp_path):
    checkpoints = sorted((ensemble / "member-0").glob("epoch-*.safetensors"))
    assert [path.name for path in checkpoints] == ["epoch-000002.safetensors", "epoch-000003.safetensors"]
    averaged = average_models(checkpoints, tmp_path / "mean.safetensors")
    first, second = (load_model(path).model.state_dict() for path in checkpoints)
    found = load_model(tmp_path / "mean.safetensors")
    for name, tensor in found.model.state_dict().items():
        np.testing.assert_allclose(tensor.numpy(), (first[name].numpy() + second[name].numpy()) / 2, rtol=1e-6)
    assert found.metadata.validation == {}
    assert averaged.path == tmp_path / "mean.safetensors"


def test_average_refuses_what_is_not_of_one_run(ensemble, tmp_path):
    files = member_paths(ensemble)
    with pytest.raises(InputError, match="another configuration or seed"):
        average_models(files, tmp_path / "mean.safetensors")
    with pytest.raises(InputError, match="at least two"):
        average_models(files[:1], tmp_path / "mean.safetensors")
    with pytest.raises(InputError, match="exists already"):
        average_models([files[0], files[0]], files[1])
    assert list(tmp_path.iterdir()) == []
