"""An exported model gives the energies, forces and stresses of the model, in a process that has PyTorch only."""

import json
import sys
from pathlib import Path

import pytest
import torch

from molflt.data.batch import collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.open import open_dataset, resolve_inputs
from molflt.export import DESCRIPTION, export
from molflt.model.derivatives import derivatives
from molflt.model.file import LoadedModel, load_model
from tests.model.models import make_model
from tests.training.runs import run

ALONE = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("molflt", "torch_geometric", "ase", "rdkit", "lightning", "scipy"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import torch

model, structures, out = sys.argv[1:]
extra = {"molflt.json": ""}
model = torch.jit.load(model, _extra_files=extra)
found = []
# Twice: TorchScript compiles anew for what it has seen.
for inputs in [*torch.load(structures), *torch.load(structures)]:
    energy, forces, stress = model(*inputs)
    found.append((energy.detach(), forces, stress))
torch.save({"found": found, "about": json.loads(extra["molflt.json"])}, out)
"""
NAMES = ("positions", "cell", "pbc", "atomic_numbers", "tags", "edge_index", "cell_offsets")


def inputs_of(data):
    return tuple(data[name][0] if name in ("cell", "pbc") else data[name] for name in NAMES)


@pytest.fixture(scope="module")
def structures(tiny_data):
    """Molecules and slabs of 1 to 13 atoms, and one that repeats along one direction, with neighbour lists."""
    found = [open_dataset(tiny_data / "val.lmdb")[k] for k in (0, 1, 4, 5)]
    found += list(resolve_inputs(["CC(=O)NC", "[He]", "O"]))
    rod = open_dataset(tiny_data / "val.lmdb")[2]
    rod.pbc = torch.tensor([[True, False, False]])
    return [attach_neighbours(data, 4.0) for data in [*found, rod]]


KINDS = {
    "flt": {"attention": "flt"},
    "waves, gates": {"attention": {"spectrum": "both", "far_rank": 1, "moment_channels": 4, "isolated_atoms": 9.0}},
    "rank m": {"attention": {"far_rank": "m", "n_features": 8}, "n_recycles": 2, "read_out": "contact"},
    "local": {"attention": "local", "auxiliary_head": False, "pair_types": False},
    "matrices": {"attention": {"mechanism": "matrices", "channels": 8}, "spacing": "exponential"},
    "vectors": {"attention": {"spectrum": "both", "vector_channels": 8, "moment_channels": 4}, "n_recycles": 2},
}


def loaded_model(metadata, target="energy", dtype=torch.float64, attention="flt", **sizes):
    model = make_model(attention, dtype, cutoff=4.0, **sizes)
    return LoadedModel(model, metadata.model_copy(update={"config": model.config, "target": target}), Path("x"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_same_numbers_with_pytorch_alone(dtype, structures, loaded, tmp_path):
    (tmp_path / "alone.py").write_text(ALONE, encoding="utf-8")
    torch.save([inputs_of(data) for data in structures], tmp_path / "structures.pt")
    for kind, sizes in KINDS.items():
        model = loaded_model(loaded.metadata, dtype=dtype, **sizes)
        export([model], tmp_path / "model.pt")
        done = run(
            [sys.executable, *(str(tmp_path / name) for name in ("alone.py", "model.pt", "structures.pt", "out.pt"))]
        )
        assert done.returncode == 0, done.stderr
        out = torch.load(tmp_path / "out.pt")
        assert out["about"]["cutoff"] == 4.0
        assert out["about"]["forces"]
        for data, (energy, forces, stress) in zip([*structures, *structures], out["found"], strict=True):
            expected = derivatives(model.model, collate([data]), stress=True)
            scale = float(expected.forces.abs().max()) + 1e-3
            where = f"{kind} {data.name}"
            assert energy.item() == pytest.approx(float(expected.output.energy), rel=1e-5, abs=1e-5), where
            assert float((forces - expected.forces).abs().max()) < 2e-4 * scale, where
            assert float((stress - expected.stress[0]).abs().max()) < 1e-4, where
            if not bool(data.pbc.any()):
                # Both in closed form: nothing but rounding.
                rounding = 1e-12 if dtype == torch.float64 else 2e-4
                assert float((forces - expected.forces).abs().max()) < rounding * scale, where


def test_of_an_ensemble_the_mean(structures, loaded, tmp_path):
    members = [loaded_model(loaded.metadata), loaded_model(loaded.metadata)]
    with torch.no_grad():
        members[1].model.energy_head.factor.mul_(1.5)
    export(members, tmp_path / "model.pt")
    model, inputs = torch.jit.load(tmp_path / "model.pt"), inputs_of(structures[0])
    energy, forces, _ = model(*inputs)
    found = [derivatives(member.model, collate([structures[0]])) for member in members]
    assert energy.item() == pytest.approx(sum(float(one.output.energy) for one in found) / 2, rel=1e-9)
    torch.testing.assert_close(forces, (found[0].forces + found[1].forces) / 2)
    assert float((found[0].forces - found[1].forces).abs().max()) > 1e-3
    # What docs/export.md offers to engines; the mean of the standardiser belongs to no atom.
    atomic = next(model.members.children()).atomic_energies(*inputs)
    torch.testing.assert_close(atomic, found[0].output.atomic_energies)


def test_the_command(molflt, model_path, structures, tmp_path):
    """The tiny model learnt the energy of relaxed structures, which has no forces."""
    out = tmp_path / "tiny.pt"
    done = molflt("export", model_path, "-o", out)
    assert done.status == 0, done
    assert "y_relaxed of one structure, from its neighbours up to 4 Å" in done.out + done.err
    about = {DESCRIPTION: ""}
    model = torch.jit.load(out, _extra_files=about)
    assert json.loads(about[DESCRIPTION])["forces"] is False
    expected = load_model(model_path).model
    for data in structures[:2]:
        energy, forces, stress = model(*inputs_of(data))
        with torch.no_grad():
            assert energy.item() == pytest.approx(float(expected(collate([data])).energy), rel=1e-5)
        assert len(forces) == len(stress) == 0
    again = molflt("export", model_path, "-o", out)
    assert again.status == 2
    assert "exists already" in again.err


def test_what_cannot_be_exported(molflt, performer_path, tmp_path):
    done = molflt("export", performer_path, "-o", tmp_path / "x.pt")
    assert done.status == 2
    assert "mechanism 'kernelised' cannot be exported; 'fourier', 'local' and 'matrices' can" in done.err
    assert not (tmp_path / "x.pt").exists()
