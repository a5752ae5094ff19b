"""Every mechanism against its formula written out with loops over atoms and images, in float64."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from molflt.attention.build import build_attention
from molflt.attention.config import AttentionConfig
from molflt.attention.near import GaussianDistanceBasis, local_neighbourhood
from molflt.attention.smooth import envelope
from tests.attention.structures import STRUCTURES, geometry_of

DIM, HEADS, RBF, CUTOFF = 12, 3, 7, 4.0
SMALL = {"n_basis": 3, "sigma_min": 1.5, "sigma_max": 4.0, "n_features": 10, "n_frequencies": 6, "dense_cutoff": 5.0}


def prepare(name: str, attention: dict, n_max: int | None = None):
    """A layer with generic weights, its input, and everything the loops need."""
    torch.manual_seed(0)
    config = AttentionConfig(**{**SMALL, **attention})
    shared, layers = build_attention(config, DIM, HEADS, 1, 1, RBF, 0.0, seed=3)
    radial = GaussianDistanceBasis(RBF, CUTOFF)
    layer = layers[0]
    for module in (shared, layer, radial):
        module.double()
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    reach = config.neighbour_cutoff(CUTOFF)
    geometry = geometry_of([STRUCTURES[name]()], reach, all_pairs=config.mechanism == "softmax", n_max=n_max)
    x = torch.randn(geometry.n_atoms, DIM, dtype=torch.float64)
    context = shared(geometry, local_neighbourhood(geometry, radial, CUTOFF))
    return layer, shared, radial, geometry, x, context


def images(atoms, radius: float):
    """(n_images, 3): every lattice translation that can matter within ``radius``."""
    reach = [math.ceil(radius * 2 / h) + 1 if p else 0 for h, p in zip(heights(atoms), atoms.pbc, strict=True)]
    grid = itertools.product(*[range(-r, r + 1) for r in reach])
    return [np.array(n) @ np.asarray(atoms.cell) for n in grid]


def heights(atoms) -> np.ndarray:
    if not any(atoms.pbc):
        return np.ones(3)
    return 1 / np.linalg.norm(np.linalg.pinv(np.asarray(atoms.cell)), axis=0)


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


@pytest.mark.parametrize("far_rank", [0, 1, "m", None])
@pytest.mark.parametrize("name", ["linear", "wire", "tiny_cell", "atom"])
def test_fourier_attention_is_its_formula(name, far_rank):
    attention = {"far_field": False} if far_rank is None else {"far_rank": far_rank, "frequencies": "exact"}
    layer, shared, radial, geometry, x, context = prepare(name, attention)
    found = layer(x, geometry, layer.prepare(geometry, context))

    atoms, z, n = STRUCTURES[name](), geometry.atomic_numbers, geometry.n_atoms
    tau = 16 * torch.sigmoid(layer.query_key.raw_temperature)
    q, k = layer.query_key.projection(x).view(n, 2, HEADS, -1).unbind(1)
    q = q / q.norm(dim=-1, keepdim=True) * tau.sqrt()[:, None]
    k = k / k.norm(dim=-1, keepdim=True) * tau.sqrt()[:, None]
    v = layer.value(x).view(n, HEADS, -1)
    out = torch.zeros_like(v)
    for i in range(n):
        numerator, denominator = torch.zeros_like(v[0]), torch.zeros(HEADS, dtype=torch.float64)
        for j in range(n):
            near = local_sum(atoms, i, j, q, k, layer, radial, CUTOFF, z)
            denominator = denominator + near
            weight = near[:, None].expand_as(v[j])
            if far_rank is not None:
                rpe = shared.rpe
                shifts = torch.from_numpy(np.array(images(atoms, 20.0)))
                delta = torch.from_numpy(atoms.positions[i] - atoms.positions[j]) + shifts
                f = rpe().values((delta**2).sum(-1)).sum(0) @ layer.rpe_weights
                content = torch.ones(HEADS, dtype=torch.float64)
                if far_rank == 1:
                    content = functional.softplus(layer.query_gate.linear(x[i])) * functional.softplus(
                        layer.key_gate.linear(x[j])
                    )
                if far_rank == "m":
                    omega = layer.kernel.weights.omega
                    phi_q = (q[i] @ omega.T - (q[i] ** 2).sum(-1, keepdim=True) / 2).exp()
                    phi_k = (k[j] @ omega.T - (k[j] ** 2).sum(-1, keepdim=True) / 2).exp()
                    content = (phi_q * phi_k).mean(-1)
                # the far field carries the first channels of a head
                carried = torch.arange(v.shape[-1]) < (v.shape[-1] if far_rank == "m" else math.ceil(v.shape[-1] / 4))
                weight = weight + (f * content)[:, None] * carried
            numerator = numerator + weight * v[j]
        out[i] = numerator / denominator[:, None]
    # Moments have their own formula, in test_local_moments.py.
    expected = layer.output(out.reshape(n, DIM)) + layer.moments(x, context.moments)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["linear", "wire", "molecule"])
def test_softmax_attention_is_its_formula(name):
    layer, shared, _, geometry, x, context = prepare(name, {"mechanism": "softmax"})
    found = layer(x, geometry, layer.prepare(geometry, context))
    atoms, z, n = STRUCTURES[name](), geometry.atomic_numbers, geometry.n_atoms
    q, k, v = (t.reshape(n, HEADS, -1) for t in layer.projection(x).chunk(3, dim=-1))
    q = q / math.sqrt(DIM / HEADS)
    periodic = bool(any(atoms.pbc))
    weights = torch.stack(
        [
            torch.stack([local_sum(atoms, i, j, q, k, layer, shared.radial, 5.0, z, env=periodic) for j in range(n)])
            for i in range(n)
        ]
    )
    out = torch.einsum("ijh,jhc->ihc", weights / weights.sum(1, keepdim=True), v)
    torch.testing.assert_close(found, layer.output(out.reshape(n, DIM)), rtol=1e-9, atol=1e-10)


def test_performer_is_the_normalised_kernel():
    layer, _, _, geometry, x, context = prepare("molecule", {"mechanism": "kernelised"})
    n = geometry.n_atoms
    q, k, v = (t.reshape(n, HEADS, -1) for t in layer.projection(x).chunk(3, dim=-1))
    scale = (DIM / HEADS) ** -0.25
    phi = lambda t: (t @ layer.kernel.weights.omega.T - (t**2).sum(-1, keepdim=True) / 2).exp()  # noqa: E731
    kernel = torch.einsum("ihm,jhm->ijh", phi(q * scale), phi(k * scale))
    out = torch.einsum("ijh,jhc->ihc", kernel / kernel.sum(1, keepdim=True), v)
    torch.testing.assert_close(
        layer(x, geometry, layer.prepare(geometry, context)), layer.output(out.reshape(n, DIM))
    )


def test_concat_is_algorithm_one():
    """φ applied to [√|a| cos, √|a| sin, q d^{-1/4}], with the sign of a on the key side only."""
    layer, shared, _, geometry, x, context = prepare(
        "molecule", {"combine": "concat", "frequencies": "sampled", "directions": "random"}
    )
    n = geometry.n_atoms
    a = shared.method.coefficients(shared.rpe()) @ layer.rpe_weights
    assert bool((a < 0).any())
    xi = shared.method.frequencies()
    delta = geometry.positions[:, None] - geometry.positions[None]
    mask = torch.einsum("ijk,kh->ijh", torch.cos(2 * math.pi * delta @ xi.T), a)
    q, k, v = (t.reshape(n, HEADS, -1) for t in layer.projection(x).chunk(3, dim=-1))
    scale = (DIM / HEADS) ** -0.25
    phase = 2 * math.pi * (geometry.positions + geometry.centroids) @ xi.T
    waves = torch.cat([phase.cos(), phase.sin()], dim=1)[:, None]
    root, sign = a.T.repeat(1, 2).abs().sqrt(), a.T.repeat(1, 2).sign()
    qq, kk = torch.cat([waves * root, q * scale], -1), torch.cat([waves * root * sign, k * scale], -1)
    # Theorem 4.1: the concatenated vectors' scalar product is the estimated mask plus q·k/√d
    product = torch.einsum("ihc,jhc->ijh", qq, kk)
    torch.testing.assert_close(product, mask + torch.einsum("ihc,jhc->ijh", q, k) / math.sqrt(DIM / HEADS))
    phi = lambda t: (t @ layer.kernel.weights.omega.T - (t**2).sum(-1, keepdim=True) / 2).exp()  # noqa: E731
    kernel = torch.einsum("ihm,jhm->ijh", phi(qq), phi(kk))
    out = torch.einsum("ijh,jhc->ihc", kernel / kernel.sum(1, keepdim=True), v)
    torch.testing.assert_close(
        layer(x, geometry, layer.prepare(geometry, context)), layer.output(out.reshape(n, DIM)), rtol=1e-6, atol=1e-6
    )
