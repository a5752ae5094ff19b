"""A run that starts from a trained model takes over what fits, and its energies are shifted to the new labels."""

import json
import shutil

import ase.io
import pytest
import torch
from ase.build import molecule

from molflt.data.ase import to_atoms
from molflt.data.open import open_dataset
from molflt.errors import InputError
from molflt.model.file import load_model, save_models
from molflt.prediction.model import load
from molflt.prediction.predict import predict
from molflt.training.config import TrainConfig
from molflt.training.ensemble import train_ensemble
from molflt.training.run import train
from molflt.training.run_dir import read_records
from molflt.training.yaml import load_config
from molflt.training.yaml import make_config as make_preset
from tests.training.runs import Stop, assert_same_run, go, written

ASLEEP = {"optimiser.lr": 1e-12, "optimiser.weight_decay": 0.0, "trainer.max_epochs": 1}
"""Weights stay where they start, so that the first validation is of the start."""


@pytest.fixture
def fine(make_config, model_path):

    def make(**overrides):
        sizes = {key: value for key, value in overrides.items() if key.startswith("model.")}
        others = {key: value for key, value in overrides.items() if key not in sizes}
        config = make_config(**{"init": str(model_path), **others}).model_dump(exclude_unset=True)
        config["model"] = {key.removeprefix("model."): value for key, value in sizes.items()}
        return TrainConfig.model_validate(config)

    return make


@pytest.fixture
def relabelled(tiny_data, loaded, tmp_path):

    def make(label, extra=()):
        structures = open_dataset(tiny_data / "train.lmdb")
        energies = predict(loaded, structures).energies
        frames = []
        for data, energy in zip(structures, energies, strict=True):
            atoms = to_atoms(data)
            atoms.info = {"y_relaxed": label(float(energy), data.atomic_numbers.numpy())}
            frames.append(atoms)
        path = tmp_path / "relabelled.extxyz"
        ase.io.write(path, [*frames, *extra])
        return {"data.train": str(path), "data.val": str(path)}

    return make


def shift(energy, numbers):
    return energy + float((-13.6 * numbers.astype(float) ** 1.5).sum())


def test_the_same_energies_from_a_shift_away_are_known_at_once(fine, relabelled, tmp_path):
    labels = relabelled(shift)
    said = []
    run = train(fine(**labels, **ASLEEP, **{"data.standardise": "element"}), tmp_path / "fine", say=said.append)
    assert run.best < 1e-3
    assert "tensors taken over" in said[0]
    found = run.model.metadata
    assert found.fine_tuned_from.fresh == []


def test_another_quantity_begins_with_a_new_head(fine, relabelled, loaded, tmp_path):
    labels = relabelled(lambda energy, numbers: -3 * energy)
    said = []
    run = train(fine(**labels, **ASLEEP), tmp_path / "run", say=said.append)
    assert any("energy head and statistics are reinitialised" in line for line in said)
    state = run.model.members[0].model.state_dict()
    theirs = loaded.model.state_dict()
    same = {name for name in state if torch.allclose(state[name], theirs[name], atol=1e-6)}
    assert "embedding.element.weight" in same
    assert "energy_head.mlp.0.weight" not in same
    assert abs(float(state["standardiser.mean"] + 3 * theirs["standardiser.mean"])) < 10


def test_new_elements(fine, relabelled, loaded, tmp_path, monkeypatch):
    """Also where the shift is found by few structures, among which theirs would not be by chance."""
    monkeypatch.setattr("molflt.training.fine_tuning._ENOUGH", 4)
    strange = [molecule("HF"), molecule("CH3Cl")]
    for atoms in strange:
        atoms.info["y_relaxed"] = shift(0.0, atoms.numbers)
    said = []
    config = fine(**relabelled(shift, strange), **ASLEEP, **{"data.standardise": "element"})
    run = train(config, tmp_path / "fine", say=said.append)
    assert "  new elements, whose vectors are untrained: F, Cl" in said
    assert run.model.metadata.fine_tuned_from.new_elements == ["F", "Cl"]
    assert run.model.predict(strange) == pytest.approx([a.info["y_relaxed"] for a in strange], abs=1.0)


def test_elements_that_only_the_first_model_knew_keep_their_vectors(fine, loaded, tmp_path):
    """Also after a second fine-tuning."""
    frames = [molecule(name) for name in ("H2O", "CH4", "CO2", "CH3OH", "C2H6", "H2CO")]
    for k, atoms in enumerate(frames):
        atoms.info["energy"] = float(k)
    few = tmp_path / "molecules.extxyz"
    ase.io.write(few, frames)
    on_few = {**ASLEEP, "data.train": str(few), "data.val": str(few), "data.target": "energy"}
    first, second = tmp_path / "first", tmp_path / "second"
    train(fine(**on_few), first, say=print)
    train(fine(**on_few, init=str(first)), second, say=print)
    found = load_model(second / "best.safetensors")
    forgotten = sorted({*loaded.metadata.elements} - {1, 6, 8})
    assert forgotten
    assert found.metadata.elements == [1, 6, 8]
    before, after = (one.model.state_dict()["embedding.element.weight"] for one in (loaded, found))
    torch.testing.assert_close(after[forgotten], before[forgotten], atol=1e-6, rtol=0)


def test_a_mean_for_each_structure_is_not_composed(fine, loaded, tmp_path):
    """The energies of a model that adds a mean to every structure do not add up, whatever it is trained on."""
    frames = [molecule(name) for name in ("H2O", "CH4", "CO2", "CH3OH", "C2H6", "H2CO")]
    for atoms, energy in zip(frames, load(loaded.path).predict(frames), strict=True):
        atoms.info["energy"] = float(energy)
    path = tmp_path / "molecules.extxyz"
    ase.io.write(path, frames)
    said = []
    config = fine(**ASLEEP, **{"data.train": str(path), "data.val": str(path), "data.target": "energy"})
    run = train(config, tmp_path / "run", say=said.append)
    assert any("which does not add up: no loss.separation" in line for line in said)
    assert not any("compositions" in line or "augmentation" in line for line in said)
    assert run.best < 1e-3


def test_energies_read_off_the_contact_get_no_mean(fine, relabelled, loaded, tmp_path):
    """It would be counted once for two adsorbates. Power: where all atoms are read out, the shift is in the mean."""
    labels = {**relabelled(lambda energy, numbers: energy + 5), **ASLEEP}
    every = train(fine(**labels), tmp_path / "all", say=print).model
    contact = train(fine(**labels, **{"model.read_out": "contact"}), tmp_path / "contact", say=print).model
    theirs = float(loaded.model.standardiser.mean)
    assert float(every.members[0].model.standardiser.mean) == pytest.approx(theirs + 5, abs=0.01)
    assert float(contact.members[0].model.standardiser.mean) == 0
    again = fine(**labels, init=str(tmp_path / "contact" / "best.safetensors"))
    assert float(train(again, tmp_path / "again", say=print).model.members[0].model.standardiser.mean) == 0


def test_frozen_parts_stay(fine, loaded, tmp_path):
    config = fine(init={"model": str(loaded.path), "freeze": ["embedding", "layers.0"]})
    assert config.optimiser.lr == 5e-3
    said = []
    run = train(config, tmp_path, say=said.append)
    assert any(line.startswith("  frozen: embedding, layers.0 (") for line in said)
    before, after = loaded.model.state_dict(), run.model.members[0].model.state_dict()
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert "embedding" not in moved
    assert {"energy_head", "radial"} <= moved
    assert all(torch.equal(v, after[k]) for k, v in before.items() if k.startswith("encoder.layers.0."))


def test_a_lower_rate_unless_told(make_config):
    values = make_config().model_dump(exclude_unset=True)
    del values["optimiser"]["lr"]
    make = TrainConfig.model_validate
    assert make(values).optimiser.lr == 1e-3
    assert make({**values, "init": "some model"}).optimiser.lr == 3e-4


def test_another_architecture(fine, tmp_path):
    """Missing parts begin anew and are listed; where hardly anything fits, the keys are named."""
    said = []
    run = train(fine(**ASLEEP, **{"model.n_layers": 2}), tmp_path / "deeper", say=said.append)
    assert "  new: layers.1" in said
    assert run.model.metadata.fine_tuned_from.fresh == ["layers.1"]
    assert run.model.metadata.config.dim == 16
    with pytest.raises(InputError, match=r"less than half .*\(model\.dim: 32 here, 16 there\); leave these keys"):
        go(fine(**ASLEEP, **{"model.dim": 32}), tmp_path / "wider")
    assert not (tmp_path / "wider").exists()
    with pytest.raises(InputError, match=r"model: with the other keys of .*: dim \(16\) must be a multiple"):
        go(fine(**ASLEEP, **{"model.n_heads": 32}), tmp_path / "odd")


@pytest.mark.parametrize(
    ("init", "error"),
    [
        ({"model": "{data}"}, r"init\.model: .*train\.lmdb: not a model file"),
        ({"model": "pretrained:none"}, r"init\.model: pretrained:none: no such model; there are acac, fg"),
        (
            {"model": "{model}", "freeze": ["embeding"]},
            r"init\.freeze: there is no part embeding; there are radial, embedding\.element, .*layers\.0, .*y_head",
        ),
        (
            {
                "model": "{model}",
                "freeze": ["radial", "embedding", "positions", "encoder", "energy_head", "displacement_head"],
            },
            "nothing is left to train",
        ),
    ],
    ids=["no model", "no such model", "no such part", "all"],
)
def test_mistakes(init, error, make_config, model_path, tiny_data, tmp_path):
    init = {**init, "model": init["model"].format(model=model_path, data=tiny_data / "train.lmdb")}
    with pytest.raises(InputError, match=error):
        go(make_config(init=init), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_charges_need_a_start_that_has_them(make_config, model_path, tmp_path):
    with pytest.raises(InputError, match=r"no partial charges; add loss\.charge_weight=0"):
        go(make_config(init=str(model_path), **{"loss.charge_weight": 1.0}), tmp_path / "run")


def test_mistakes_of_the_configuration(make_config):
    with pytest.raises(ValueError, match=r"init\.freeze needs init\.model"):
        make_config(**{"init.freeze": ["embedding"]})
    with pytest.raises(ValueError, match=r"data\.references cannot be given with init\.model"):
        make_config(**{"init.model": "x", "data.references": {"H": -13.6}, "data.standardise": "element"})


def test_it_is_resumed_as_any_run(fine, model_path, tmp_path):
    shutil.copy(model_path, tmp_path / "start.safetensors")
    config = fine(init={"model": str(tmp_path / "start.safetensors"), "freeze": "layers"})
    go(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(config, tmp_path / "run", Stop(1, 1))
    go(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    # Its own configuration is complete, and repeats it.
    again = load_config(tmp_path / "run" / "config.yaml")
    go(again, tmp_path / "run", resume=True)
    assert again.model.dim == 16
    # The model that it started from is another now.
    shutil.copy(tmp_path / "run" / "best.safetensors", tmp_path / "start.safetensors")
    with pytest.raises(InputError, match=r"start\.safetensors has changed since the run was started"):
        go(config, tmp_path / "run", resume=True)


def test_a_resumed_run_may_be_longer_but_not_shorter(make_config, tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    go(make_config(**{"trainer.max_epochs": 4}), tmp_path / "run", resume=True)
    records = read_records(tmp_path / "run")
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    assert records[:2] == read_records(tiny_run)
    assert load_config(tmp_path / "run" / "config.yaml").trainer.max_epochs == 4
    with pytest.raises(InputError, match=r"trainer\.max_epochs: 4 then, 3 now"):
        go(make_config(**{"trainer.max_epochs": 3}), tmp_path / "run", resume=True)


def test_at_the_command_line(make_config, model_path, tmp_path, molflt):
    file, run = written(make_config(), tmp_path), tmp_path / "run"
    done = molflt("train", file, f"init={model_path}", "init.freeze=[embedding]", "--out", run, "--no-report")
    assert done.status == 0, done
    assert "tensors taken over" in done.err
    said = json.loads(molflt("info", run, "--json").out)["fine_tuned_from"]
    assert (said["model"], said["frozen"]) == (str(model_path), ["embedding"])


def test_the_architecture_is_that_of_the_start_and_not_of_the_preset(model_path, tiny_data, tmp_path, molflt):
    """``--from`` needs no file; a key of ``model`` that is given counts."""
    files = ["--train", tiny_data / "train.lmdb", "--val", tiny_data / "val.lmdb"]
    options = ["--no-report", "trainer.max_epochs=1", "data.num_workers=0"]
    done = molflt("train", "--from", model_path, *files, "--out", tmp_path / "run", *options)
    assert done.status == 0, done
    of_start, of_run = (json.loads(molflt("info", path, "--json").out) for path in (model_path, tmp_path / "run"))
    assert of_run["config"] == of_start["config"]
    assert of_run["fine_tuned_from"]["model"] == str(model_path)
    start = {"init": str(model_path), "model.n_layers": 1}
    assert make_preset("forces", start).model.model_fields_set == {"n_layers"}
    assert make_preset("forces", {"model.n_layers": 1}).model.model_fields_set > {"n_layers", "attention"}
    # whose loss asks for the charges of the start
    assert make_preset("organic", {"init": "pretrained:organic"}).loss.charge_weight


def test_each_member_starts_from_one_of_an_ensemble(fine, two, tmp_path):
    save_models(tmp_path / "two.safetensors", two)
    config = fine(init=str(tmp_path / "two.safetensors"), ensemble=3, **ASLEEP)
    train_ensemble(config, tmp_path / "run")
    factors = [load_model(tmp_path / f"run/member-{k}/last.safetensors").model.energy_head.factor for k in range(3)]
    torch.testing.assert_close(factors[1], 1.5 * factors[0], rtol=1e-3, atol=0)
    torch.testing.assert_close(factors[2], factors[0], rtol=1e-3, atol=0)
    said = []
    train(fine(init=str(tmp_path / "two.safetensors"), **ASLEEP), tmp_path / "alone", say=said.append)
    assert any("this is the first" in line for line in said)
