"""docs/extending.md: its Python runs, its attention is invariant, its change to the package works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from ase import units

from molflt.attention.kernels import kernelised_attention
from molflt.attention.registry import MECHANISMS
from molflt.data import formats
from molflt.data.batch import StructureCollater
from molflt.data.dataset import StructureDataset
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.invariance import CHECKS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "extending.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page's Python leaves behind, run from top to bottom in one namespace."""
    torch.manual_seed(0)
    module = ModuleType("extending")
    # A dataclass looks up its module.
    sys.modules["extending"] = module
    for block in blocks("python"):
        exec(compile(block, "docs/extending.md", "exec"), module.__dict__)
    return module.__dict__


def test_the_attention_is_short() -> None:
    assert "class GatedAttention" in blocks("python")[0]
    assert len(blocks("python")[0].splitlines()) <= 75


def test_the_attention_is_invariant(page: dict[str, Any]) -> None:
    """With an output that is not close to zero, and no property skipped but those the page names."""
    with torch.no_grad():
        page["model"].energy_head.factor.fill_(1.0)
    loaded = page["LoadedModel"](page["model"], page["metadata"], Path("none"))
    results = page["run_suite"](loaded, page["structures"], ["float32", "float64"], checks=page["checks"])
    assert {result.name for result in results} >= set(CHECKS) - {"save and load"}
    assert {result.name for result in results if result.verdict == "not applicable"} == {"against exact"}
    assert not [result for result in results if result.verdict == "fail"]


def test_the_attention_learns(page: dict[str, Any]) -> None:
    """Every parameter of a layer has a gradient."""
    model = page["with_gated_attention"](page["config"])
    with torch.no_grad():
        model.energy_head.factor.fill_(1.0)
    collate = StructureCollater(page["config"].neighbour_cutoff, False)
    model(collate(page["structures"][:2])).energy.sum().backward()
    for name, parameter in model.encoder.layers[0].attention.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all())
        assert float(parameter.grad.abs().max()) > 0, name


def test_the_kernel(page: dict[str, Any]) -> None:
    """Against the definition, written out over all pairs."""
    q, k, v = (torch.randn(2, 3, 7, 5, dtype=torch.float64) for _ in range(3))
    found = kernelised_attention(page["SoftplusKernel"](5), q, k, v, None)
    weights = torch.einsum("bhic,bhjc->bhij", *(torch.nn.functional.softplus(x) for x in (q, k)))
    expected = torch.einsum("bhij,bhjc->bhic", weights / weights.sum(dim=-1, keepdim=True), v)
    torch.testing.assert_close(found, expected)


def test_the_file_format(page: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened by its suffix, with a bad frame left out."""
    monkeypatch.setitem(sys.modules, "molflt.data.points", sys.modules["extending"])
    monkeypatch.setitem(formats._FRAMES, "*.points", "points:points_frames")
    file = tmp_path / "two.points"
    frames = ["water -14.2\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0", "bad -1\nH 0 0", "h2 -6.7\nH 0 0 0\nH 0 0 0.74"]
    file.write_text("\n\n".join(frames), encoding="utf-8")
    with pytest.raises(InputError, match=r"two.points#1: an atom needs a symbol"):
        open_dataset(file)
    read = open_dataset(file, ReadOptions(on_bad="skip"))
    found = [read[0], read[2]]
    assert [float(data.energy) for data in found] == [-14.2, -6.7]
    assert [data.num_nodes for data in found] == [3, 2]


def test_the_data_source(page: dict[str, Any], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    stored = random.normal(size=(4, 1))
    np.savez(tmp_path / "water.npz", R=random.normal(size=(4, 3, 3)) * 2, z=np.array([8, 1, 1]), E=stored)
    source = page["NpzFrames"](tmp_path / "water.npz")
    assert isinstance(source, StructureDataset)
    assert page["to_lmdb"](source, str(tmp_path / "water.lmdb")) == 4
    read = open_dataset(tmp_path / "water.lmdb")
    assert len(read) == 4
    energies = [float(read[k].energy) for k in range(4)]
    np.testing.assert_allclose(energies, stored.ravel() * units.kcal / units.mol)


@pytest.mark.slow
def test_the_change_makes_it_a_name(tmp_path: Path) -> None:
    """Applied to a copy of the package: the name is known, and a model file with it can be written and read."""
    assert "gated" not in MECHANISMS
    shutil.copytree(REPOSITORY / "molflt", tmp_path / "molflt", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "molflt" / "attention" / "gated.py").write_text(blocks("python")[0], encoding="utf-8")
    (change,) = blocks("diff")
    apply(change, tmp_path)
    (tmp_path / "try.py").write_text(TRY, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "try.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["GatedAttention", str(tmp_path / "molflt" / "__init__.py")]


TRY = """
import molflt
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.model.file import ModelMetadata, TrainingData, load_model, save_model
from molflt.training.yaml import load_config

with open("tiny.yaml", "w") as file:
    file.write("data: {train: a.lmdb, val: b.lmdb}\\n")
config = load_config("tiny.yaml", ["model.attention=gated", "model.dim=16"]).model
data = TrainingData(path="none", fingerprint="", n_structures=0)
metadata = ModelMetadata(
    config=config, seed=0, target="energy", elements=[1], training_data=data, standardiser={},
    validation={}, epoch=0,
)
save_model("gated.safetensors", EnergyModel(config), metadata)
print(type(load_model("gated.safetensors").model.encoder.layers[0].attention).__name__, molflt.__file__)
"""


def apply(change: str, root: Path) -> None:
    """A diff whose line numbers are only hints: what each hunk removes or keeps must occur once in its file."""
    path, text = None, ""
    for part in re.split(r"^(?=--- a/|@@)", change, flags=re.M):
        if part.startswith("--- a/"):
            path = root / part.splitlines()[1].removeprefix("+++ b/")
        elif part.startswith("@@"):
            assert path is not None
            lines = part.splitlines()[1:]
            before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
            after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
            text = path.read_text(encoding="utf-8")
            assert text.count(before) == 1, f"{path}: the page's change does not fit:\n{part}"
            path.write_text(text.replace(before, after), encoding="utf-8")
