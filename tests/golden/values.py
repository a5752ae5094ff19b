"""Energies of stored models, shipped models and freshly initialised presets on some structures.

``python -m tests.golden.values`` writes ``presets.json`` again. That is legitimate only where a change is meant to
change what a preset computes, and then the changelog says so. The other numbers are never written again: a stored
model was made by the molflt whose schema is in its name, and its predictions hold for ever, as do those of a shipped
model until another is shipped in its place (``scripts/tools/fg/ship.py``).

In double precision the far field is computed exactly, so that what a numerical method changes within its tolerance
changes nothing here.
"""

import json
from pathlib import Path

import numpy as np
import torch
from ase.build import add_adsorbate, fcc111, molecule

from molflt.attention.config import MethodKeys
from molflt.data.ase import from_atoms
from molflt.data.batch import StructureCollater
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.model.energy import EnergyModel
from molflt.model.file import load_models, set_frequencies
from molflt.prediction.members import pretrained_models
from molflt.training.config import PRESETS, preset_config

FOLDER = Path(__file__).parent
FG = FOLDER.parents[1] / "data" / "fg" / "val.lmdb"
LARGE = tuple(name for name in PRESETS if name.startswith("paper"))
N_EXACT = 9
"""Shipped structures whose energies are computed without the error of a numerical method, too."""
MOLECULES = ("H2O", "CH3CH2OH", "C6H6", "C4H4S", "CH3CONH2", "HCOOH", "C5H5N", "isobutane")


def structures():
    """Ethanol, carbon dioxide, oxygen on a small copper slab."""
    slab = fcc111("Cu", (2, 2, 2), vacuum=5.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    slab.pbc = True
    return [_data(molecule("CH3CH2OH")), _data(molecule("CO2")), _data(slab)]


def shipped_structures():
    """Eight molecules and every 31st structure of the FG set's ``val``."""
    dataset = open_dataset(FG)
    return [_data(molecule(name)) for name in MOLECULES] + [dataset[i] for i in range(0, len(dataset), 31)]


def energies(model, data):
    """eV, each structure by itself."""
    config = model.config
    collate = StructureCollater(config.neighbour_cutoff, config.all_pairs_if_isolated)
    with torch.no_grad():
        return [float(model.eval()(collate([one])).energy[0]) for one in data]


def mean_energies(members, data, exact=False):
    """eV, the mean over the members, in single precision, or exactly."""
    found = [energies(exactly(m.model) if exact else m.model.float(), data) for m in members]
    return [float(value) for value in np.mean(found, axis=0)]


def write_shipped(name):
    """Write down what another shipped model predicts."""
    path, data = FOLDER / "shipped.json", shipped_structures()
    known, members = json.loads(path.read_text(encoding="utf-8")), load_models(pretrained_models()[name])
    known[name] = {
        "float32": mean_energies(members, data),
        "exact": mean_energies(members, data[:N_EXACT], exact=True),
    }
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def exactly(model):
    """The model in double precision, its far field without the error of a numerical method where it has one."""
    if isinstance(model.config.attention, MethodKeys):
        set_frequencies(model, "exact")
    return model.double()


def preset_energies(name):
    """eV, of a preset with the weights of seed 0, in double precision."""
    torch.manual_seed(0)
    return energies(exactly(EnergyModel(preset_config(name).model, 0)), structures())


def _data(atoms):
    return from_atoms(atoms, str(atoms.symbols), ReadOptions(tags="oc20"))


if __name__ == "__main__":
    values = {name: preset_energies(name) for name in PRESETS}
    (FOLDER / "presets.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
