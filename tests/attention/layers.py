"""One layer of any mechanism with small, generic weights, and its local factor written out with loops."""

import itertools
import math

import numpy as np
import torch
from ase import Atoms

from molflt.attention.build import Sizes, build_attention
from molflt.attention.far.field import ExactMethod
from molflt.attention.mechanism import COMPONENTS
from molflt.attention.near import GaussianDistanceBasis, local_neighbourhood
from molflt.attention.registry import attention_config
from molflt.attention.smooth import envelope
from tests.attention.structures import STRUCTURES, geometry_of

DIM, HEADS, RBF, CUTOFF = 12, 3, 7, 4.0
SIZES = Sizes(dim=DIM, n_heads=HEADS, n_layers=1, n_rbf=RBF, seed=3)
SMALL = {"n_basis": 3, "sigma_min": 1.5, "sigma_max": 4.0, "n_features": 10, "n_frequencies": 6, "dense_cutoff": 5.0}


def small(**keys):
    """A configuration with the given keys, and those of SMALL that it has and that act."""
    config = attention_config(**keys)
    acting = {key for key in type(config).model_fields if key not in keys and config.acts(key)}
    return attention_config(**keys, **{key: value for key, value in SMALL.items() if key in acting})


class Layer:
    """One layer of attention with generic weights, in any contraction order."""

    def __init__(self, dtype=torch.float64, **keys):
        torch.manual_seed(0)
        self.config = small(**keys)
        self.shared, (self.layer,) = build_attention(self.config, SIZES)
        self.radial, self.dtype = GaussianDistanceBasis(RBF, CUTOFF), dtype
        for module in (self.shared, self.layer, self.radial):
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            module.to(dtype)

    def geometry(self, atoms):
        reach = self.config.neighbour_cutoff(CUTOFF)
        all_pairs = self.config.all_pairs_if_isolated
        return geometry_of(atoms, reach, self.dtype, all_pairs, plan=self.shared.plan(CUTOFF))

    def context(self, geometry):
        return self.shared(geometry, local_neighbourhood(geometry, self.radial, CUTOFF))

    def apply(self, x, geometry):
        """Of (n, dim + 9 C), with vectors if there are: what is added to scalars, and to components."""
        prepared = self.layer.prepare(geometry, self.context(geometry))
        if not self.layer.vector_channels:
            return self.layer(x, geometry, prepared)
        vectors = x[:, DIM:].view(len(x), COMPONENTS, -1)
        change, turned = self.layer(x[:, :DIM], geometry, prepared, vectors)
        return torch.cat([change, (turned - vectors).flatten(1)], dim=1)

    def __call__(self, atoms, way="auto"):
        """Output and gradients with respect to positions and the parameters of layer and shared part."""
        if isinstance(self.shared.method, ExactMethod):
            self.shared.method.way = None if way == "auto" else way
        geometry = self.geometry(atoms)
        geometry.positions = geometry.positions.detach().requires_grad_()
        width = DIM + COMPONENTS * self.layer.vector_channels
        x = torch.randn(geometry.n_atoms, width, generator=torch.Generator().manual_seed(1)).to(self.dtype)
        out = self.apply(x, geometry)
        parameters = [*self.layer.parameters(), *self.shared.parameters()]
        weights = torch.linspace(-1, 1, out.numel(), dtype=self.dtype).view_as(out)
        found = torch.autograd.grad((out * weights).sum(), [geometry.positions, *parameters], allow_unused=True)
        return out.detach(), [g for g in found if g is not None]


def check_batch_mates_change_nothing(layer):
    """On pairs, over waves and, the large one, on a mesh: together as alone, in any order, padded further."""
    names = ["atom", "slab", "molecule", "tiny_cell", "slab_open", "wire", "triclinic", "linear"]
    atoms = [*(STRUCTURES[name]() for name in names), water(50, seed=1), water(215, seed=2)]
    geometry = layer.geometry(atoms)
    x = torch.randn(geometry.n_atoms, DIM, dtype=torch.float64)
    together = layer.apply(x, geometry).split(geometry.sizes)
    for one, expected, inputs in zip(atoms, together, x.split(geometry.sizes), strict=True):
        found = layer.apply(inputs, layer.geometry([one]))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    again = layer.apply(torch.cat(x.split(geometry.sizes)[::-1]), layer.geometry(atoms[::-1]))
    torch.testing.assert_close(again, torch.cat(together[::-1]), rtol=1e-11, atol=1e-12)


def check_ways_agree(names, ways, **keys):
    """Outputs of all ways in both precisions, and all gradients; ``tolerance`` is 1e-10."""
    atoms = [STRUCTURES[name]() for name in names]
    for dtype, bound in ((torch.float64, 1e-8), (torch.float32, 3e-5)):
        layer = Layer(dtype, tolerance=1e-10, **keys)
        expected, slopes = layer(atoms, ways[0])
        for way in ways[1:]:
            found, other_slopes = layer(atoms, way)
            assert float((found - expected).abs().max()) < bound * float(expected.abs().max())
            if dtype == torch.float64:
                for a, b in zip(slopes, other_slopes, strict=True):
                    assert float((a - b).abs().max()) < 1e-7 * max(1.0, float(a.abs().max()))


def prepare(name, keys):
    """A layer in float64, its input, and everything that loops over one structure need."""
    made = Layer(**keys)
    geometry = made.geometry([STRUCTURES[name]()])
    x = torch.randn(geometry.n_atoms, DIM, dtype=torch.float64)
    return made.layer, made.shared, made.radial, geometry, x, made.context(geometry)


def water(n, seed=0):
    """n molecules at the density of water, isolated."""
    random = np.random.default_rng(seed)
    side = (n / 0.033) ** (1 / 3)
    centres = random.uniform(0, side, size=(n, 3))
    return Atoms("OHH" * n, np.repeat(centres, 3, axis=0) + random.normal(0, 0.6, size=(3 * n, 3)))


def near_and_far(atoms, layer, shared, radial, q, k):
    """near_ij and f̂_ij of all pairs, images summed with loops, (n, n, n_heads) each; f̂ = 0 without a far field."""
    n, z = len(atoms), torch.as_tensor(atoms.numbers)
    shifts = torch.from_numpy(np.array(images(atoms, 20.0)))
    near, far = (torch.zeros(n, n, HEADS, dtype=torch.float64) for _ in range(2))
    for i, j in np.ndindex(n, n):
        near[i, j] = local_sum(atoms, i, j, q, k, layer, radial, CUTOFF, z)
        if shared.rpe is not None:
            delta = torch.from_numpy(atoms.positions[i] - atoms.positions[j]) + shifts
            far[i, j] = shared.rpe().on_pairs((delta**2).sum(-1)).sum(1) @ layer.rpe_weights
    return near, far


def images(atoms, radius):
    """Every lattice translation that can matter within ``radius``."""
    heights = np.ones(3)
    if any(atoms.pbc):
        heights = 1 / np.linalg.norm(np.linalg.pinv(np.asarray(atoms.cell)), axis=0)
    reach = [math.ceil(radius * 2 / h) + 1 if p else 0 for h, p in zip(heights, atoms.pbc, strict=True)]
    grid = itertools.product(*[range(-r, r + 1) for r in reach])
    return [np.array(n) @ np.asarray(atoms.cell) for n in grid]


def local_sum(atoms, i, j, q, k, layer, radial, cutoff, z, env=True):
    """Σ over images of exp(q·k + b) env, per head; the atom itself counts with env = 1."""
    total = torch.zeros(HEADS, dtype=torch.float64)
    for shift in images(atoms, cutoff):
        d = float(np.linalg.norm(atoms.positions[i] - atoms.positions[j] - shift))
        itself = i == j and d == 0
        if d >= cutoff and env and not itself:
            continue
        distance = torch.tensor([d], dtype=torch.float64)
        bias = layer.local_rpe.bias(radial(distance, z[i : i + 1], z[j : j + 1]))[0]
        weight = torch.ones(1, dtype=torch.float64) if itself or not env else envelope(distance, cutoff)
        total = total + ((q[i] * k[j]).sum(-1) + bias).exp() * weight
    return total
