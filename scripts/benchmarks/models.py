"""Training steps of whole models on the FG set: ``small``, and peers as wide or as large.

``speed.py`` runs each in a process of its own, PaiNN in the peers' environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scripts.benchmarks import measuring
from scripts.benchmarks.peers import Structure, build, collate, plain

PEERS: dict[str, dict[str, Any]] = {
    "DimeNet++": {"num_blocks": 3, "basis_emb_size": 8, "num_spherical": 7, "num_radial": 6},
    "PaiNN": {"n_interactions": 3, "n_rbf": 20},
    "SchNet": {"num_interactions": 4, "num_gaussians": 100},
}
WIDTHS = {
    "": dict.fromkeys(PEERS, 128),
    ", parameters of small": {"DimeNet++": 112, "PaiNN": 124, "SchNet": 252},
}
"""Width of ``small``, and widths that give about as many parameters."""


def rows() -> dict[str, tuple[str, dict[str, Any]]]:
    """Family and sizes of ``small`` and of its peers, which have its cutoff, by name."""
    found = {"molflt small": ("molflt", {"preset": "small", "attention": "flt"})}
    for ending, widths in WIDTHS.items():
        for name, sizes in PEERS.items():
            found[name + ending] = name.lower(), {**with_width(name.lower(), sizes, widths[name]), "cutoff": 5.0}
    return found


def with_width(family: str, sizes: dict[str, Any], width: int) -> dict[str, Any]:
    """The same model at another width, in the proportions of its published size."""
    own = {
        "schnet": {"hidden_channels": width, "num_filters": max(8, width // 3)},
        "dimenet++": {"hidden_channels": width, "int_emb_size": width // 4, "out_emb_channels": 3 * width // 4},
        "painn": {"n_atom_basis": width},
    }
    return {**sizes, **own[family]}


def prepared(family: str, found: Sequence[Any]) -> list[Structure]:
    """Structures of molflt as plain tensors, with the neighbours that a family takes."""
    from molflt.data.neighbours import attach_neighbours
    from scripts.benchmarks.graph_models import model_config

    small = model_config("small", "flt")
    reach = (small.neighbour_cutoff, small.all_pairs_if_isolated) if family == "molflt" else (small.cutoff, False)
    return [plain(attach_neighbours(data.clone(), *reach), float(data.get("y_relaxed", 0.0))) for data in found]


def training_steps(family: str, sizes: dict[str, Any], device: torch.device) -> Callable[..., Callable[[], None]]:
    """Build an untrained model: returns, for structures that are a batch, a step with Adam."""
    torch.manual_seed(0)
    model = build(family, sizes).to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step_on(structures: Sequence[Structure]) -> Callable[[], None]:
        batch = collate(structures).to(device)
        inputs = model.prepare(batch)

        def step() -> None:
            if hasattr(model, "loss"):
                loss = model.loss(inputs, batch)
            else:
                loss = (model(inputs) - batch.target).square().mean()
            loss.backward()
            optimiser.step()
            # Between two steps gradients take no memory.
            optimiser.zero_grad(set_to_none=True)

        return step

    return step_on


def measure(
    family: str, sizes: dict[str, Any], structures: str, repeats: int, seconds: float, gibibytes: float, device: str
) -> dict[str, Any]:
    """Measure the memory of a step after one to warm up, then seconds of further ones.

    Args:
        family: see :func:`peers.build`.
        sizes: keyword arguments of its constructor.
        structures: file of a list of :data:`peers.Structure`, which are one batch.
        repeats: steps to time.
        seconds: after which no further step is started.
        gibibytes: memory that the measurement may take; 0 for no limit.
        device: cpu or cuda.
    """
    where, found = torch.device(device), torch.load(structures, weights_only=True)
    step_on = training_steps(family, sizes, where)
    step_on(found[:1])()
    if gibibytes and device == "cpu":
        measuring.limit_memory(gibibytes)
    step = step_on(found)
    return {
        "peak_bytes": measuring.peak_growth(step, where),
        "layer_seconds": measuring.seconds_of(step, repeats, seconds, where),
        "how": ", ".join(f"{key}={x}" for key, x in sizes.items()),
    }
