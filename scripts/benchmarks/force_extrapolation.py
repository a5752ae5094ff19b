"""Forces outside the training set: molflt, TensorNet, and what lies between them, one change at a time.

Each run has the same time of one processor and the same 450 geometries of ``xtb_molecules`` at 300 K. It is judged at
300, 600 and 1,200 K, along a torsion and where bonds are pressed or stretched, by the moving average of the weights
after the last step. The rate falls to zero as the time runs out.

    python -m scripts.benchmarks.force_extrapolation --data runs/xtb/acetylacetone --job tensornet --seconds 390

Prints one line of JSON, and appends it to ``--out``.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.io import read as read_frames
from torch import Tensor, nn

from molflt.training.config import OptimiserConfig
from molflt.training.optimisation import make_optimiser
from scripts import results

BEGUN = time.monotonic()
TESTS = ("train", "val", "test_300K", "test_600K", "test_1200K", "scan", "bonds")


class Set:
    """Geometries of one molecule: positions (n, a, 3) Å, energies (n,) eV less a mean, forces (n, a, 3) eV/Å."""

    def __init__(self, frames: list[Any], mean: float | None = None) -> None:
        self.numbers = torch.tensor(frames[0].numbers)
        self.positions = torch.tensor(np.array([frame.positions for frame in frames]))
        energies = np.array([frame.get_potential_energy() for frame in frames])
        self.mean = float(energies.mean()) if mean is None else mean
        self.energies = torch.tensor(energies - self.mean)
        self.forces = torch.tensor(np.array([frame.get_forces() for frame in frames]))

    def __len__(self) -> int:
        return len(self.positions)


def load(folder: Path) -> dict[str, Set]:
    """Read the sets that are there; the last tenth of the training geometries validates."""
    files = {path.name.partition(".")[0]: path for path in folder.glob("*.xyz*")}
    frames = read_frames(files["train"], ":")
    n = len(frames) - len(frames) // 10
    train = Set(frames[:n])
    sets = {"train": train, "val": Set(frames[n:], train.mean)}
    for name in TESTS[2:]:
        if name in files:
            sets[name] = Set(read_frames(files[name], ":"), train.mean)
    return sets


Energies = Callable[[Tensor], Tensor]
"""(b, a, 3) Å → (b,) in units of the root mean square force times 1 Å."""


class PerOrder(nn.Module):
    """Mix channels of (..., 9, c): one matrix each for the trace, the three and the five other components."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(n_out, n_in).uniform_(-1, 1) / math.sqrt(n_in)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(..., 9, n_in) → (..., 9, n_out)."""
        parts = x.split([1, 3, 5], dim=-2)
        return torch.cat([part @ w.t() for part, w in zip(parts, self.weights, strict=True)], dim=-2)


def basis() -> Tensor:
    """(9, 3, 3): orthonormal matrices: identity, antisymmetric, traceless symmetric."""
    found = [torch.eye(3) / math.sqrt(3)]
    for i in range(3):
        a, b = (i + 1) % 3, (i + 2) % 3
        m = torch.zeros(3, 3)
        m[a, b], m[b, a] = -(0.5**0.5), 0.5**0.5
        found.append(m)
    for i in range(3):
        a, b = (i + 1) % 3, (i + 2) % 3
        m = torch.zeros(3, 3)
        m[a, b] = m[b, a] = 0.5**0.5
        found.append(m)
    found.append(torch.diag(torch.tensor([1.0, -1.0, 0.0])) / math.sqrt(2))
    found.append(torch.diag(torch.tensor([1.0, 1.0, -2.0])) / math.sqrt(6))
    return torch.stack(found)


def norms(x: Tensor) -> Tensor:
    """(..., 9, c) → (..., c), sum of squares."""
    return x.square().sum(dim=-2)


class TensorLayer(nn.Module):
    """TensorNet's interaction (arXiv 2306.06482, Eq. 9 to 11), with what molflt has beside it."""

    def __init__(self, c: int, nr: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.c, self.o = c, o
        self.filters = nn.Sequential(
            nn.Linear(nr, c), nn.SiLU(), nn.Linear(c, 2 * c), nn.SiLU(), nn.Linear(2 * c, 3 * c), nn.SiLU()
        )
        self.first, self.second = PerOrder(c, c), PerOrder(c, c)
        if o["content"]:
            self.qk = nn.Linear(3 * c, 2 * c, bias=False)
        if o["ffn"]:
            self.norm = nn.LayerNorm(3 * c)
            self.ffn = nn.Sequential(nn.Linear(3 * c, 3 * c), nn.GELU(), nn.Linear(3 * c, 3 * c))

    def forward(self, x: Tensor, radial: Tensor, env: Tensor, q: Tensor, orders: Tensor) -> Tensor:
        """(b, a, 9, c) → the same; of pairs the radial functions (b, a, a, nr) and their envelope (b, a, a)."""
        c = x.shape[-1]
        f = (self.filters(radial) * env[..., None]).unflatten(-1, [3, c])
        if self.o["content"]:
            heads = 8
            inv = invariants(x, orders)
            qs, ks = (t.unflatten(-1, [heads, -1]) for t in self.qk(inv).chunk(2, dim=-1))
            dots = torch.einsum("bihd,bjhd->bijh", qs, ks) / math.sqrt(qs.shape[-1])
            if self.o["content"] == "linear":
                w = 1 + dots
            else:
                qs, ks = (t / (1e-6 + t.square().sum(-1, keepdim=True)).sqrt() for t in (qs, ks))
                w = torch.exp(2 * torch.einsum("bihd,bjhd->bijh", qs, ks)) * env[..., None]
                w = 4 * w / (w.sum(2, keepdim=True) + math.e**2)
            f = f * w.repeat_interleave(c // heads, dim=-1)[:, :, :, None]
        x = x / (norms(x) + 1)[:, :, None]
        y = self.first(x)
        m = torch.cat(
            [
                torch.einsum("bijc,bjmc->bimc", f[:, :, :, k], part)
                for k, part in enumerate(y.split([1, 3, 5], dim=2))
            ],
            dim=2,
        )
        if self.o["products"]:
            my, mm = (torch.einsum("kxy,bnkc->bnxyc", q, t) for t in (m, y))
            p = (my[:, :, :, :, None] * mm[:, :, None]).sum(3)
            # M Y + Y M; the transpose of Y M is Yᵀ Mᵀ
            p = p + (mm[:, :, :, :, None] * my[:, :, None]).sum(3)
            p = torch.einsum("kxy,bnxyc->bnkc", q, p)
        else:
            p = m
        p = p / (norms(p) + 1)[:, :, None]
        d = self.second(p)
        out = x + d
        if self.o["products"]:
            dd = torch.einsum("kxy,bnkc->bnxyc", q, d)
            out = out + torch.einsum("kxy,bnxyc->bnkc", q, (dd[:, :, :, :, None] * dd[:, :, None]).sum(3))
        if self.o["ffn"]:
            g = self.ffn(self.norm(invariants(out, orders))).unflatten(-1, [3, c])
            out = out * (1 + g[:, :, orders])
        return out


def invariants(x: Tensor, orders: Tensor) -> Tensor:
    """(b, n, 9, c) → (b, n, 3 c): norms of each order."""
    one, three, five = (part.square().sum(2) for part in x.split([1, 3, 5], dim=2))
    return torch.cat([one, three, five], dim=-1)


class TensorNet(nn.Module):
    """TensorNet (Simeon and De Fabritiis 2023, arXiv 2306.06482) on all pairs of one molecule."""

    def __init__(self, numbers: Tensor, **o: Any) -> None:
        super().__init__()
        self.o = o = {
            "c": 48, "layers": 2, "cutoff": 4.5, "nr": 16, "content": None, "ffn": False, "products": True, **o,
        }  # fmt: skip
        c, nr = o["c"], o["nr"]
        kinds, z = torch.unique(numbers, return_inverse=True)
        self.register_buffer("z", z)
        self.register_buffer("q", basis())
        self.register_buffer("orders", torch.tensor([0] + [1] * 3 + [2] * 5))
        self.embedding, self.pair = nn.Embedding(len(kinds), c), nn.Linear(2 * c, c)
        self.radial_embedding = nn.Linear(nr, 3 * c)
        self.linear = PerOrder(c, c)
        self.gates = nn.Sequential(
            nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.SiLU(), nn.Linear(2 * c, 3 * c), nn.SiLU()
        )
        self.layers = nn.ModuleList(TensorLayer(c, nr, o) for _ in range(o["layers"]))
        self.out = nn.Sequential(
            nn.LayerNorm(3 * c), nn.Linear(3 * c, c), nn.SiLU(), nn.Linear(c, c), nn.SiLU(), nn.Linear(c, 1)
        )
        start = math.exp(-o["cutoff"])
        self.register_buffer("mu", torch.linspace(start, 1, nr))
        self.beta = (2 / nr * (1 - start)) ** -2
        self.register_buffer("off", 1 - torch.eye(len(numbers)))

    def forward(self, positions: Tensor) -> Tensor:
        """(b, a, 3) → (b,)."""
        o, c = self.o, self.o["c"]
        d = positions[:, :, None] - positions[:, None]
        r = (d.square().sum(-1) + 1e-12 + (1 - self.off)).sqrt()
        env = 0.5 * (torch.cos(math.pi * (r / o["cutoff"]).clamp(max=1)) + 1) * self.off
        radial = torch.exp(-self.beta * (torch.exp(-r)[..., None] - self.mu) ** 2)
        u = d / r[..., None]
        outer = torch.einsum("kxy,bijx,bijy->bijk", self.q[4:], u, u)
        vec = u * math.sqrt(2)
        element = self.embedding(self.z)
        n = len(self.z)
        pair = self.pair(torch.cat([element[:, None].expand(n, n, c), element.expand(n, n, c)], dim=-1))
        w = (self.radial_embedding(radial).unflatten(-1, [3, c])) * (pair * env[..., None])[:, :, :, None]
        x = torch.cat(
            [
                w[:, :, :, 0].sum(2)[:, :, None] * math.sqrt(3),
                torch.einsum("bijk,bijc->bikc", vec, w[:, :, :, 1]),
                torch.einsum("bijk,bijc->bikc", outer, w[:, :, :, 2]),
            ],
            dim=2,
        )
        gates = self.gates(norms(x)).unflatten(-1, [3, c])
        x = self.linear(x) * gates[:, :, self.orders]
        for layer in self.layers:
            x = layer(x, radial, env, self.q, self.orders)
        return self.out(invariants(x, self.orders)).flatten(1).sum(1)


class Molflt(nn.Module):
    """molflt's model in the sizes of the preset ``forces``."""

    def __init__(self, numbers: Tensor, seed: int, **changes: Any) -> None:
        super().__init__()
        from molflt.attention.mechanism import FourierPositions
        from molflt.model.config import ModelConfig
        from molflt.model.energy import EnergyModel

        near_only = changes.pop("near_only", False)
        values = {"dim": 64, "n_layers": 2, "ffn_dim": 128, "cutoff": 4.0}
        values = {**values, "auxiliary_head": False, **changes}
        self.inner = EnergyModel(ModelConfig.model_validate(values), seed)
        if near_only:
            self.inner.positions = FourierPositions(None, None, moments=True)
        for parameter in (self.inner.radial.centres, self.inner.radial.log_widths):
            parameter.requires_grad_(False)
        self.numbers = numbers

    def batch(self, positions: Tensor) -> Any:
        """Collate with neighbours and layout."""
        from torch_geometric.data import Data

        from molflt.data.batch import StructureCollater

        model = self.inner
        n = len(self.numbers)
        data = [
            Data(
                positions=p, atomic_numbers=self.numbers.to(torch.int64), tags=torch.full((n,), 2),
                cell=torch.zeros(1, 3, 3, dtype=torch.float64), pbc=torch.zeros(1, 3, dtype=torch.bool), num_nodes=n,
            )
            for p in positions.to(torch.float64)
        ]  # fmt: skip
        return StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated, model.plan())(
            data
        )

    def forward(self, positions: Tensor) -> Tensor:
        """(b, a, 3) → (b,)."""
        batch = self.batch(positions.detach())
        batch.positions = positions.flatten(0, 1).to(torch.float64)
        return self.inner(batch).energy.to(torch.float32)


CONTROL = {"optimiser": "adam", "lr": 1e-3, "decay": 0.0, "loss": "squares", "batch": 5, "ema": 0.99, "clip": 10.0}
"""Training of the control."""
RECIPE = {
    "optimiser": "muon",
    "lr": 5e-3,
    "decay": 0.001,
    "loss": "squares",
    "batch": 6,
    "ema": 0.999,
    "clip": 2000.0,
}
"""Training of the preset ``forces``."""


def tensornet(**changes: Any) -> dict[str, Any]:
    """A job of TensorNet: changes of the network under ``net``, others of its training."""
    return {"kind": "tensornet", "net": changes.pop("net", {}), **CONTROL, **changes}


def molflt(**changes: Any) -> dict[str, Any]:
    """A job of molflt."""
    return {"kind": "molflt", "net": changes.pop("net", {}), **RECIPE, **changes}


VECTORS = {"attention": {"vector_channels": 16}, "n_rbf": 11}
EXPONENTIAL = {"spacing": "exponential", "n_rbf": 16}
MATRICES = {"attention": {"mechanism": "matrices"}, **EXPONENTIAL}
MUON = {"optimiser": "muon", "lr": 3e-3, "decay": 0.001}
LENGTHS = {"loss": "lengths", "clip": 2000.0}
JOBS: dict[str, dict[str, Any]] = {
    "tensornet": tensornet(),
    "tensornet, Muon": tensornet(**MUON),
    "tensornet, Muon, lengths": tensornet(**MUON, **LENGTHS),
    "tensornet, Muon, softmax": tensornet(**MUON, net={"content": "softmax"}),
    "tensornet, Muon, linear content": tensornet(**MUON, net={"content": "linear"}),
    "tensornet, Muon, feed-forward": tensornet(**MUON, net={"ffn": True}),
    "tensornet, Muon, no products": tensornet(**MUON, net={"products": False}),
    "vectors": molflt(net=VECTORS, **LENGTHS, decay=0.1),
    "vectors, squares, exponential": molflt(net={**VECTORS, **EXPONENTIAL}),
    "matrices": molflt(net=MATRICES),
    "matrices, lengths": molflt(net=MATRICES, **LENGTHS),
    "matrices, even": molflt(net={**MATRICES, "n_rbf": 11, "spacing": "even"}),
    "matrices, decay 0.1": molflt(net=MATRICES, decay=0.1),
    "matrices, near only": molflt(net={**MATRICES, "near_only": True}),
}
"""What is trained, and how."""


def optimiser_of(net: nn.Module, job: dict[str, Any]) -> torch.optim.Optimizer:
    """Adam with the largest second moments kept, as the control, AdamW or Muon."""
    if job["optimiser"] == "adam":
        return torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=job["lr"], amsgrad=True)
    return make_optimiser(net, OptimiserConfig(name=job["optimiser"], lr=job["lr"], weight_decay=job["decay"]))


def differentiate(net: Energies, positions: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
    """Energies (b,) and forces (b, a, 3)."""
    positions = positions.requires_grad_()
    energies = net(positions)
    (gradient,) = torch.autograd.grad(energies.sum(), positions, create_graph=create_graph)
    return energies, -gradient


def loss_of(kind: str, e: Tensor, f: Tensor, spread: float, std: float, n_atoms: int, force_weight: float) -> Tensor:
    """Loss of the errors of energies and forces, in units of the root mean square force."""
    if kind == "squares":
        return e.square().mean() / n_atoms + 10 * f.square().mean()
    lengths = (f.square().sum(-1) + 1e-16).sqrt()
    return e.abs().mean() / spread + force_weight * lengths.mean() / std


def judge(net: nn.Module, sets: dict[str, Set], scale: float) -> dict[str, float]:
    """Root mean square errors in meV and meV/Å; the tail is of forces among the largest hundredth."""
    found = {}
    for name, part in sets.items():
        energies, forces = [], []
        for chosen in torch.arange(len(part)).split(50):
            e, f = differentiate(net, part.positions[chosen].float(), False)
            energies.append(e.detach())
            forces.append(f.detach())
        e = scale * torch.cat(energies).double() - part.energies
        if name == "scan":
            e = e - e.mean()
        f = (scale * torch.cat(forces).double() - part.forces).flatten()
        true = part.forces.flatten().abs()
        tail = true >= true.quantile(0.99)
        found[f"{name}_e"] = round(1e3 * e.square().mean().sqrt().item(), 2)
        found[f"{name}_f"] = round(1e3 * f.square().mean().sqrt().item(), 1)
        found[f"{name}_tail"] = round(1e3 * f[tail].square().mean().sqrt().item(), 0)
        found[f"{name}_median"] = round(1e3 * f.abs().median().item(), 1)
    return found


def main() -> None:
    """Train and judge one job."""
    parser = results.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of one molecule")
    parser.add_argument("--job", choices=list(JOBS), required=True)
    parser.add_argument("--set", default="{}", help="further changes, JSON")
    parser.add_argument("--seconds", type=float, default=390, help="of the processor")
    parser.add_argument(
        "--wall", type=float, default=math.inf, help="seconds from its start after which training ends in any case"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=450, help="training geometries")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.seconds = 1.0
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    job = {**JOBS[options.job], **json.loads(options.set)}
    sets = load(options.data)
    train = sets["train"]
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(options.seed))[: options.n]
    scale = float(train.forces.square().mean().sqrt())
    spread = float(train.energies.std(unbiased=False)) / scale
    n_atoms = train.positions.shape[1]
    net: Any
    if job["kind"] == "molflt":
        net = Molflt(train.numbers, options.seed, **job["net"])
    else:
        net = TensorNet(train.numbers, **job["net"])
    average = copy.deepcopy(net)
    optimiser = optimiser_of(net, job)
    generator = torch.Generator().manual_seed(options.seed + 1)
    start, step, order = time.process_time(), 0, torch.empty(0, dtype=torch.int64)
    while True:
        done = max((time.process_time() - start) / options.seconds, (time.monotonic() - BEGUN) / options.wall)
        if done >= 1:
            break
        if len(order) < job["batch"]:
            order = chosen[torch.randperm(len(chosen), generator=generator)]
        some, order = order[: job["batch"]], order[job["batch"] :]
        rate = job["lr"] * min(1, (step + 1) / 200) * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimiser.param_groups:
            group["lr"] = rate
        e, f = differentiate(net, train.positions[some].float(), True)
        e, f = e - train.energies[some].float() / scale, f - train.forces[some].float() / scale
        loss = loss_of(job["loss"], e, f, spread, 1.0, n_atoms, job.get("force_weight", 100.0))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), job["clip"])
        optimiser.step()
        step += 1
        decay = min(job["ema"], (1 + step) / (10 + step))
        with torch.no_grad():
            for a, p in zip(average.parameters(), net.parameters(), strict=True):
                a.lerp_(p, 1 - decay)
    seconds = time.process_time() - start
    found = {
        "job": options.job, "set": options.set, "data": options.data.name, "seed": options.seed, "n": options.n,
        "seconds": round(seconds), "steps": step, "ms": round(1e3 * seconds / max(step, 1), 1),
        "parameters": sum(p.numel() for p in net.parameters()), **judge(average, sets, scale),
    }  # fmt: skip
    line = json.dumps(found)
    print(line, flush=True)
    if options.out:
        with open(options.out, "a", encoding="utf-8") as handle:
            handle.write(line + "\n")


if __name__ == "__main__":
    main()
