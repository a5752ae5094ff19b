"""Tiny data and a tiny model for the tests of model files, training, prediction and the command line."""

from __future__ import annotations

import atexit
import copy
import csv
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, fcc100, fcc111, molecule
from ase.calculators.emt import EMT

from molflt.attention.registry import attention_config
from molflt.cli.main import main
from molflt.data.dataset import StructureDataset
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel, load_model, save_model
from molflt.training.config import TrainConfig
from molflt.training.run import train

REPOSITORY = Path(__file__).resolve().parents[1]


@cache
def ascii_python() -> str:
    """Return this interpreter by a path in ASCII: in an ASCII locale torch cannot be imported from any other."""
    if sys.prefix.isascii():
        return sys.executable
    link = Path(mkdtemp()) / "environment"
    link.symlink_to(sys.prefix)
    atexit.register(shutil.rmtree, link.parent)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def _emt_energy(atoms: Atoms) -> float:
    copy = atoms.copy()
    copy.calc = EMT()
    return float(copy.get_potential_energy())


def _slab(random: np.random.Generator) -> Atoms:
    build = (fcc111, fcc100)[random.integers(2)]
    slab = build(("Cu", "Pt", "Ni")[random.integers(3)], (2, 2, 2), vacuum=5.0)
    add_adsorbate(slab, ("H", "O", "C")[random.integers(3)], random.uniform(1.6, 2.2), "ontop")
    # ASE counts layers from the surface down; OC20 tags sub-surface 0, surface 1, adsorbate 2.
    slab.set_tags([0 if tag == 2 else 1 if tag == 1 else 2 for tag in slab.get_tags()])
    return slab


def _molecule(index: int) -> Atoms:
    return molecule(("H2O", "NH3", "CH4", "CO2", "CO", "CH3OH")[index // 4 % 6])


def _record(index: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng([seed, index])
    atoms = _slab(random) if index % 4 else _molecule(index)
    fixed = atoms.get_tags() == 0 if atoms.pbc.any() else np.zeros(len(atoms), dtype=bool)
    relaxed = atoms.get_positions()
    step = np.where(fixed[:, None], 0.0, random.normal(scale=0.08, size=relaxed.shape))
    given = atoms.copy()
    given.set_positions(relaxed + step, apply_constraint=False)
    energy = _emt_energy(given)
    return {
        "pos": given.get_positions(),
        "pos_relaxed": relaxed,
        "cell": np.asarray(given.cell),
        "pbc": np.asarray(given.pbc),
        "atomic_numbers": given.get_atomic_numbers(),
        "tags": given.get_tags(),
        "fixed": fixed,
        "natoms": len(given),
        # Labels on different scales, so that confusing them shows.
        "energy": energy,
        "y_init": energy / 2 + 1,
        "y_relaxed": _emt_energy(atoms),
        "sid": 1000 * seed + index,
        "name": f"set{seed}-{index:02d}",
    }


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.lmdb (28 structures), val.lmdb (10) and other.lmdb (6)."""
    folder = tmp_path_factory.mktemp("tiny data")
    for seed, (name, size) in enumerate({"train": 28, "val": 10, "other": 6}.items()):
        write_lmdb(folder / f"{name}.lmdb", [_record(i, seed) for i in range(size)], progress=False)
    return folder


@pytest.fixture(scope="session")
def make_config(tiny_data: Path) -> Callable[..., TrainConfig]:
    """Factory of tiny configurations: ``make_config(**{"trainer.max_epochs": 1})``."""

    def make(**overrides: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "seed": 3,
            "data": {
                "train": str(tiny_data / "train.lmdb"),
                "val": {"val": str(tiny_data / "val.lmdb"), "other": str(tiny_data / "other.lmdb")},
                "max_atoms": 48,
            },
            "model": {
                "dim": 16,
                "n_heads": 2,
                "n_layers": 1,
                "ffn_dim": 16,
                "n_rbf": 8,
                "cutoff": 4.0,
                "attention": {"n_basis": 4},
            },
            "optimiser": {"name": "adamw", "lr": 5e-3, "warmup_steps": 2, "ema_decay": 0.9},
            "trainer": {"max_epochs": 2, "accelerator": "cpu"},
        }
        for key, value in overrides.items():
            *sections, last = key.split(".")
            place = values
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        return TrainConfig.model_validate(values)

    return make


@pytest.fixture(scope="session")
def tiny_run(make_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a tiny trained model. Read it; do not write to it."""
    run_dir = tmp_path_factory.mktemp("runs") / "tiny"
    train(make_config(), run_dir, say=lambda line: None)
    return run_dir


@pytest.fixture(scope="session")
def model_path(tiny_run: Path) -> Path:
    """The tiny trained model."""
    return tiny_run / "best.safetensors"


@pytest.fixture
def loaded(model_path: Path) -> LoadedModel:
    """The tiny trained model, loaded; a fresh copy for every test."""
    return load_model(model_path)


@pytest.fixture
def two(loaded: LoadedModel) -> list[LoadedModel]:
    """The members of an ensemble: the tiny model, and it with another seed and 1.5 times what it has learnt."""
    other = copy.deepcopy(loaded)
    with torch.no_grad():
        other.model.energy_head.factor.mul_(1.5)
    other.metadata = other.metadata.model_copy(update={"seed": 8})
    return [loaded, other]


@pytest.fixture
def performer_path(loaded: LoadedModel, tmp_path: Path) -> Path:
    """An untrained model without a far field, of carbon and oxygen, alone in ``tmp_path``."""
    config = loaded.model.config.model_copy(update={"attention": attention_config("performer")})
    metadata = loaded.metadata.model_copy(update={"config": config, "elements": [6, 8]})
    path = tmp_path / "performer.safetensors"
    save_model(path, EnergyModel(config, metadata.seed), metadata)
    return path


@pytest.fixture(scope="session")
def val_set(tiny_data: Path) -> StructureDataset:
    """The ten structures of val.lmdb."""
    return open_dataset(tiny_data / "val.lmdb")


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by the names of its columns."""
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


class CommandResult:
    """Exit status and both streams of a command."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    def __repr__(self) -> str:
        return f"status {self.status}\n--- out\n{self.out}\n--- err\n{self.err}"


@pytest.fixture
def molflt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """Run a command in this process, as the installed script does; it must end with ``status`` if that is given."""

    def run(*arguments: object, status: int | None = None) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["molflt", *map(str, arguments)])
        capsys.readouterr()
        found = 0
        try:
            main()
        except SystemExit as stop:
            found = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        result = CommandResult(found, *capsys.readouterr())
        assert status in (None, found), result
        return result

    return run
