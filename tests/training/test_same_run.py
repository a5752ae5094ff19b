"""Two processes do what one does with the batches of both: losses, weights, validation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.data.batch import AtomBudgetSampler
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.prepare import prepare
from molflt.data.record import to_record
from molflt.model.file import load_model
from molflt.training.data_module import EnergyDataModule
from molflt.training.run_dir import read_records
from tests.training.runs import go, run, torchrun, with_forces, written

N_RANKS = 2
KINDS = {
    "displacements": {"loss.noisy_nodes": True},
    "forces": {"data.target": "energy", "data.label": "energy", "loss.force_weight": 10.0, "loss.energy_per": "atom"},
}
SCRIPT = """
import sys
from molflt.training.yaml import load_config
from tests.training.runs import go
from tests.training.test_same_run import Losses

config, out = sys.argv[1:]
go(load_config(config), out + "/run", Losses(out))
"""


class Losses(Callback):
    """Writes the losses of this process, step by step, and the sizes of its batches."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.losses = []
        self.sizes = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))
        self.sizes.append(int(batch.num_graphs))

    def on_fit_end(self, trainer, pl_module):
        content = {"losses": self.losses, "sizes": self.sizes}
        (self.folder / f"losses-{trainer.global_rank}.json").write_text(json.dumps(content), encoding="utf-8")


class GlobalBatches(torch.utils.data.Sampler[list[int]]):
    """For one process: what all ranks together have in a step."""

    def __init__(self, shares):
        self.shares = shares

    def set_epoch(self, epoch):
        for share in self.shares:
            share.set_epoch(epoch)

    @property
    def sampler(self):
        return self

    def __len__(self):
        return len(self.shares[0])

    def __iter__(self):
        return ([k for part in parts for k in part] for parts in zip(*self.shares, strict=True))


def read(folder, key):
    return np.array(
        [json.loads(path.read_text(encoding="utf-8"))[key] for path in sorted(folder.glob("losses-*.json"))]
    )


def by_two(config, folder):
    path = written(config, folder)
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = run(torchrun(N_RANKS, folder / "script.py", path, folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_same_losses_and_weights(kind, make_config, tiny_data, tmp_path, monkeypatch):
    options = {**KINDS[kind], "trainer.precision": "64-true", "data.max_atoms": 40, "trainer.max_epochs": 3}
    if kind == "forces":
        files = {
            name: with_forces(tiny_data / f"{name}.lmdb", tmp_path / f"{name}.extxyz") for name in ("train", "val")
        }
        options |= {"data.train": files["train"], "data.val": {"val": files["val"]}}
    # From a prepared set, which is equal to its source.
    prepared = tmp_path / "prepared"
    config = make_config(**options)
    prepare([config.data.train], prepared, replace(config.data.reading(), labels=config.data.labels()))
    two = make_config(**options | {"trainer.devices": N_RANKS, "data.train": str(prepared)})
    shared = by_two(two, tmp_path / "two")
    sizes = read(shared, "sizes")
    assert (sizes[0] != sizes[1]).any(), "the ranks' batches are of one size: nothing is tested"

    def global_batches(self, n_atoms, shuffle):
        config = self.config
        if not shuffle:
            return AtomBudgetSampler(n_atoms, config.data.max_atoms, shuffle=False, seed=0)
        how = {"max_atoms": config.data.max_atoms, "shuffle": True, "seed": config.seed, "n_ranks": N_RANKS}
        return GlobalBatches([AtomBudgetSampler(n_atoms, rank=rank, **how) for rank in range(N_RANKS)])

    monkeypatch.setattr(EnergyDataModule, "_sampler", global_batches)
    (tmp_path / "one").mkdir()
    go(make_config(**options), tmp_path / "one" / "run", Losses(tmp_path / "one"))
    losses = read(tmp_path / "one", "losses")
    assert losses.shape == (1, sizes.shape[1])
    np.testing.assert_allclose(read(shared, "losses").mean(axis=0), losses[0], rtol=1e-6)
    for two, one in zip(read_records(shared / "run"), read_records(tmp_path / "one" / "run"), strict=True):
        assert two == pytest.approx(one, rel=1e-9)
    weights = [
        load_model(folder / "run" / "last.safetensors").model.state_dict() for folder in (shared, tmp_path / "one")
    ]
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("max_atoms", [12, 40, 10_000])
def test_same_metrics(max_atoms, make_config, tiny_data, tmp_path):
    """Of nine structures: a sampler that pads would count one twice. The weights stay as they are."""
    structures = open_dataset(tiny_data / "val.lmdb")
    write_lmdb(tmp_path / "nine.lmdb", [to_record(structures[k]) for k in range(9)], progress=False)
    options = {
        "trainer.precision": "64-true",
        "trainer.max_epochs": 1,
        "optimiser.lr": 1e-30,
        "optimiser.ema_decay": 0.0,
        "data.max_atoms": max_atoms,
        "data.val": {"nine": str(tmp_path / "nine.lmdb"), "other": str(tiny_data / "other.lmdb")},
    }
    shared = by_two(make_config(**options, **{"trainer.devices": N_RANKS}), tmp_path / "two")
    go(make_config(**options), tmp_path / "one")
    two, one = read_records(shared / "run")[-1], read_records(tmp_path / "one")[-1]
    names = [f"{split}/{name}" for split in ("nine", "other") for name in ("energy_mae", "energy_rmse", "ewt")]
    assert {name: two[name] for name in names} == pytest.approx({name: one[name] for name in names}, rel=1e-12, abs=0)
