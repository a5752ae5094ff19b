"""Energies, forces, stress and gradients of every kind of attention on structures of every periodicity, frozen.

``python -m tests.golden.derivatives`` writes ``derivatives.npz`` again: legitimate only where a change is meant to
change what a model computes, and then the changelog says so. The far field is computed to 1e-9 here, so that the
methods are one function and a change of method changes nothing; on the large structures, where a mesh so fine would
take minutes, it keeps a tolerance of 1e-5. Derivatives are kept as projections on fixed random directions.
"""

import sys
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, fcc111, graphene, hcp0001, make_supercell, molecule, nanotube

from molflt.attention.config import FarFieldKeys, MethodKeys
from molflt.attention.registry import attention_config
from molflt.model.config import ModelConfig
from molflt.model.derivatives import derivatives
from molflt.model.energy import EnergyModel
from molflt.model.file import load_models
from molflt.model.scale_shift import Statistics
from molflt.prediction.members import pretrained_models
from tests.attention.layers import water
from tests.attention.structures import STRUCTURES, batch_of

FILE = Path(__file__).with_name("derivatives.npz")
SIZES = {"dim": 16, "n_heads": 4, "n_layers": 2, "ffn_dim": 32, "n_rbf": 8, "pair_types": True}
NARROW = {"sigma_min": 1.5, "sigma_max": 4.0}
FINE, COARSE = 1e-9, 1e-5
"""Tolerances of the far field."""
TOGETHER = 9
"""Structures of a batch."""

MODELS = {
    "flt": {"attention": {"spectrum": "both"}},
    "gaussians": {"attention": {"spectrum": "gaussians", "far_rank": 1}},
    "waves, rank m": {"attention": {"spectrum": "sampled", "far_rank": "m", "n_features": 12}},
    "vectors": {"attention": {"vector_channels": 4}, "n_recycles": 2},
    "no moments": {"attention": {"moment_channels": 0}, "n_recycles": 2},
    "charges": {"attention": {"far_rank": 1}, "charges": 2},
    "local": {"attention": {"mechanism": "local", "vector_channels": 4}},
    "performer": {"attention": {"mechanism": "kernelised", "n_features": 12}},
    "softmax": {"attention": {"mechanism": "softmax", "dense_cutoff": 6.0}},
    "undamped": {"attention": {"mechanism": "undamped", "far_rank": 1, "periodic_radius": 8.0}},
    "random directions": {
        "attention": {"mechanism": "undamped", "directions": "random", "far_rank": "m", "n_features": 6}
    },
    "concat": {"attention": {"mechanism": "concat", "n_features": 12}},
    "ra": {"attention": {"mechanism": "randomised"}},
    "ra-rpe": {"attention": {"mechanism": "randomised-rpe"}},
    "lara-rpe": {"attention": {"far_rank": "m", "kernel": "lara", "n_landmarks": 5, "moment_channels": 0}},
}


def structures():
    """Isolated small and large, with one, two and three periodic axes, skewed, sparse, and in distant pieces."""
    found = {name: make() for name, make in STRUCTURES.items()}
    found |= {name: molecule(name) for name in ("H2O", "N2", "CH4", "C4H4S", "CH3CONH2", "C5H5N")}
    found |= {f"water {n}": water(n, seed=n) for n in (12, 30)}
    chain = Atoms("C2H2", [[0, 0, 0], [1.25, 0.6, 0.1], [0.1, -1.1, 0.2], [1.2, 1.7, 0]], cell=[2.5, 0, 0])
    found["chain"] = Atoms(chain, pbc=(True, False, False))
    found["atoms in a row"] = Atoms("He", cell=[[0, 0, 0], [0, 0, 0], [0.4, 0, 2.9]], pbc=(False, False, True))
    found["tube"] = nanotube(4, 0, length=1)
    found["chain of water"] = Atoms(water(4, seed=4), cell=[0, 9.0, 0], pbc=(False, True, False))
    found["graphene"] = graphene(size=(2, 2, 1))
    found["Pt(100) open"] = fcc100("Pt", (2, 2, 2), vacuum=None)
    found["Ru(0001) open"] = hcp0001("Ru", (2, 1, 3), vacuum=None)
    for name, metal, guest in (("Cu, OH", "Cu", "OH"), ("Ag, CO", "Ag", "CO"), ("Ni, CH3", "Ni", "CH3")):
        found[name] = fcc111(metal, (2, 2, 3), vacuum=6.0)
        add_adsorbate(found[name], molecule(guest), 1.9, "ontop")
        found[name].pbc = True
    found["large slab"] = fcc111("Pd", (4, 4, 4), vacuum=8.0)
    add_adsorbate(found["large slab"], molecule("CH3OH"), 2.2, "fcc")
    found["large slab"].pbc = True
    found |= {"NaCl": bulk("NaCl", "rocksalt", 5.64), "Si": bulk("Si", cubic=True), "Ti": bulk("Ti")}
    found["Cu 3x3x3"] = bulk("Cu") * (3, 3, 3)
    found["TiO2"] = Atoms("Ti2O4", scaled_positions=_RUTILE, cell=[4.6, 4.6, 2.96], pbc=True)
    found["skewed Al"] = make_supercell(bulk("Al"), [[2, 1, 0], [0, 1, 3], [1, 0, 1]])
    found["skewed NaCl"] = make_supercell(bulk("NaCl", "rocksalt", 5.64), [[1, 2, 0], [0, 1, 1], [0, 0, 2]])
    found["skewed graphene"] = make_supercell(graphene(vacuum=5.0), [[1, 3, 0], [0, 1, 0], [0, 0, 1]])
    for side in (14.0, 22.0):
        found[f"ethanol in {side:.0f} Å"] = Atoms(molecule("CH3CH2OH"), cell=[side] * 3, pbc=True)
    far = molecule("C6H6")
    far.positions += (90.0, 20.0, -10.0)
    found["far apart"] = molecule("CH3OH") + far
    found["crystal of water"] = Atoms(water(8, seed=8), cell=[[8.2, 0.3, 0], [0, 6.5, 0.5], [0.2, 0, 6.9]], pbc=True)
    for k, (name, atoms) in enumerate(found.items()):
        atoms.rattle(0.04, seed=k)
        if name not in ("slab", "slab_open"):
            atoms.set_tags(np.arange(len(atoms)) % 3)
    return found


def large_structures():
    """Large enough for a mesh: isolated, along one axis, along all."""
    found = {
        "drop": water(80, seed=1),
        "rod": Atoms(water(75, seed=2), cell=[0, 0, 24.0], pbc=(False, False, True)),
        "bulk": bulk("Cu", cubic=True) * (4, 4, 4),
    }
    for k, atoms in enumerate(found.values()):
        atoms.rattle(0.04, seed=k)
    return found


_RUTILE = [[0, 0, 0], [0.5, 0.5, 0.5], [0.305, 0.305, 0], [0.695, 0.695, 0], [0.195, 0.805, 0.5], [0.805, 0.195, 0.5]]


def model_of(name, tolerance):
    """In double precision, with weights that follow from the names of the parameters alone."""
    sizes = {**SIZES, **MODELS[name]}
    keys = dict(sizes.pop("attention"))
    config = attention_config(**keys)
    small = {"n_basis": 4, "n_frequencies": 6, **NARROW} if isinstance(config, FarFieldKeys) else {}
    if isinstance(config, MethodKeys):
        small["tolerance"] = tolerance
    small = {key: value for key, value in small.items() if key in type(config).model_fields}
    model = EnergyModel(ModelConfig(**sizes, attention={**keys, **small})).double().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = direction(key, parameter.shape)
            if parameter.dim() == 2 and not key.endswith("rpe_weights"):
                parameter.copy_(noise * parameter.shape[1] ** -0.5)
            elif key.endswith(("rpe_weights", "bias")):
                parameter.copy_((3.0 if key.endswith("weights") else 0.2) * noise)
            else:
                parameter.add_(0.1 * noise)
    references = {z: -0.1 * z for z in range(1, 119)}
    model.standardiser.load_statistics(Statistics("element", 0.3, 2.0, 2.0, references, 0.1))
    return model


def shipped_model(name, tolerance):
    """In double precision, its far field to a tolerance."""
    model = load_models(pretrained_models()[name])[0].model.double().eval()
    attention = model.config.attention
    for module in model.positions.modules():
        if isinstance(attention, MethodKeys) and hasattr(module, "tolerance"):
            module.tolerance = tolerance
    return model


def direction(name, shape):
    """A random direction that follows from a name, float64."""
    return torch.from_numpy(np.random.default_rng(zlib.crc32(name.encode())).normal(size=tuple(shape)))


def computed(model, chosen):
    """Of every structure: energy, two numbers of its forces, two of its stress; of every parameter, a gradient.

    The gradients are those of a random sum of energies and forces, so that second derivatives are in them.
    """
    if model.config.charges:
        chosen = {name: atoms for name, atoms in chosen.items() if atoms.pbc.sum() in (0, 3)}
    rows, gradients = [], {name: 0.0 for name, _ in model.named_parameters()}
    for names in _some(list(chosen)):
        atoms = [chosen[name] for name in names]
        config = model.config
        batch = batch_of(atoms, config.neighbour_cutoff, config.all_pairs_if_isolated)
        found = derivatives(model, batch, stress=True, create_graph=True)
        energy, forces, stress = found.output.energy, found.forces, found.stress
        assert stress is not None
        ends = np.cumsum([len(one) for one in atoms])[:-1].tolist()
        along = torch.cat([direction(name, (len(one), 3)) for name, one in zip(names, atoms, strict=True)])
        projected = [part.sum() for part in (forces * along).tensor_split(ends)]
        lengths = [part.norm().detach() for part in forces.tensor_split(ends)]
        shear = direction("stress", (3, 3))
        for k in range(len(atoms)):
            traced = stress[k].detach()
            rows.append([energy[k], projected[k], lengths[k], traced.trace(), (traced * shear).sum()])
        loss = (energy * direction("energies", energy.shape)).sum() + sum(projected)
        wanted = [p for p in model.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
        for (name, parameter), slope in zip(model.named_parameters(), slopes, strict=True):
            if slope is not None:
                gradients[name] += float((slope * direction(name, parameter.shape)).sum())
    values = torch.stack([torch.stack(row) for row in rows]).detach().numpy()
    return {"structures": values, "gradients": np.array(list(gradients.values()))}


def _some(names):
    n_batches = -(-len(names) // TOGETHER)
    for k in range(n_batches):
        # Small and large, periodic or not, in one batch.
        yield names[k::n_batches]


def values_of(name):
    """Return the values of a model of :data:`MODELS`, by the names of the arrays in the file."""
    found = computed(model_of(name, FINE), structures())
    found |= {f"large {key}": value for key, value in computed(model_of(name, COARSE), large_structures()).items()}
    return {f"{name}/{key}": value for key, value in found.items()}


def shipped_values_of(name):
    """Return the values of a shipped model on some structures, by the names of the arrays in the file."""
    found = computed(shipped_model(name, FINE), dict(list(structures().items())[::4]))
    return {f"{name}/{key}": value for key, value in found.items()}


def write(names):
    """Write down what these models give, beside what others gave."""
    kept = dict(np.load(FILE)) if FILE.exists() else {}
    for model in names:
        start = time.process_time()
        kept |= values_of(model) if model in MODELS else shipped_values_of(model)
        print(model, round(time.process_time() - start, 1), "s", flush=True)
    np.savez_compressed(FILE, **kept)


if __name__ == "__main__":
    write(sys.argv[1:] or [*MODELS, *pretrained_models()])
