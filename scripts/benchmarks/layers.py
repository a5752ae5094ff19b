"""Layers of molflt as the benchmarks see them.

A layer to be measured is a module with two methods: ``prepare(batch)``, once for a structure, and
``forward(x, prepared)``, once for every layer and recycle.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch_geometric.data import Batch

from molflt.attention.build import Sizes, build_attention
from molflt.attention.config import LayerKeys
from molflt.attention.geometry import Geometry, geometry_of_batch
from molflt.attention.near import GaussianDistanceBasis, local_neighbourhood
from molflt.attention.registry import DEFAULT_MECHANISM, MECHANISMS, attention_config

DIM, HEADS, N_BASIS = 256, 8, 16
"""With these widths the far field carries a quarter of the channels, 64."""
CUTOFF, N_RBF = 6.0, 48

ROWS: dict[str, dict[str, Any]] = {
    "flt, gaussians": {"spectrum": "gaussians"},
    "flt, both": {"spectrum": "both"},
    "no far field": {"mechanism": "local"},
    "softmax": {"mechanism": "softmax"},
}
"""Changes from the default attention, row by row; all have the widths above, and no moments."""


class MolfltLayer(nn.Module):
    """One attention layer of molflt and what it shares with others.

    Args:
        name: one of :data:`ROWS`.
        n_layers: of the model that it is a layer of: they share what is prepared, which decides how it is prepared.
    """

    def __init__(self, name: str, n_layers: int = 1) -> None:
        super().__init__()
        schema = MECHANISMS[ROWS[name].get("mechanism", DEFAULT_MECHANISM)].config
        keys = {"n_basis": N_BASIS, "sigma_min": 2.0, "sigma_max": 12.0, "moment_channels": 0}
        own = {key: value for key, value in keys.items() if key in schema.model_fields}
        self.config = attention_config(**{**own, **ROWS[name]})
        self.radial = GaussianDistanceBasis(N_RBF, CUTOFF)
        sizes = Sizes(dim=DIM, n_heads=HEADS, n_layers=n_layers, n_rbf=N_RBF)
        self.positions, (self.layer, *_) = build_attention(self.config, sizes)
        self.local = isinstance(self.config, LayerKeys)

    @property
    def neighbour_cutoff(self) -> float:
        """Å up to which the layer needs neighbours; zero when it takes none."""
        return self.config.neighbour_cutoff(CUTOFF) if self.local or self.all_pairs_if_isolated else 0.0

    @property
    def all_pairs_if_isolated(self) -> bool:
        """True if isolated structures need every pair."""
        return self.config.all_pairs_if_isolated

    def prepare(self, batch: Batch) -> tuple[Geometry, Any]:
        """Prepare geometry, radial features and far field, which layers do not repeat."""
        if self.neighbour_cutoff == 0.0:
            batch = copy.copy(batch)
            batch.edge_index, batch.cell_offsets = batch.edge_index[:, :0], batch.cell_offsets[:0]
        layout = self.positions.plan(CUTOFF)(batch).to(batch.positions.device)
        geometry = geometry_of_batch(batch, layout, next(self.layer.parameters()).dtype)
        neighbourhood = local_neighbourhood(geometry, self.radial, CUTOFF) if self.local else None
        return geometry, self.positions(geometry, neighbourhood)

    def forward(self, x: Tensor, prepared: tuple[Geometry, Any]) -> Tensor:
        """Apply all that happens in every layer: (n_atoms, dim) → (n_atoms, dim)."""
        geometry, context = prepared
        return self.layer(x, geometry, self.layer.prepare(geometry, context))

    def how(self, prepared: tuple[Geometry, Any]) -> str:
        """The ways of the far field, where there is one."""
        far = prepared[0].layout.far
        return "; ".join(dict.fromkeys(group.way for group in far.groups)) if far else ""


def cut(prepared: Any) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """Copy what ``prepare`` returned, with leaves in place of tensors that have a gradient.

    In a model the gradient goes through every layer to the prepared tensors, is added up there, and goes on through
    the preparation once. So every tensor with a gradient becomes a leaf that asks for one.

    Returns:
        The copy, and the pairs of (original tensor, its leaf).
    """
    leaves: dict[int, tuple[Tensor, Tensor]] = {}

    def leaf(tensor: Tensor, _: dict[int, Any]) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        return leaves.setdefault(id(tensor), (tensor, tensor.detach().requires_grad_()))[1]

    def itself(module: nn.Module, _: dict[int, Any]) -> nn.Module:
        return module

    with (
        patch.object(Tensor, "__deepcopy__", leaf),
        patch.object(nn.Parameter, "__deepcopy__", leaf),
        patch.object(nn.Module, "__deepcopy__", itself, create=True),
    ):
        return copy.deepcopy(prepared), list(leaves.values())


Path = tuple[str | int, ...]


def tensors(prepared: Any) -> set[Path]:
    """Paths of the tensors in what was prepared: attributes, and places in lists."""
    found: set[Path] = set()
    seen: set[int] = set()

    def walk(value: Any, path: Path) -> None:
        if isinstance(value, Tensor):
            found.add(path)
        elif id(value) not in seen and not isinstance(value, (type, nn.Module)):
            seen.add(id(value))
            entries = enumerate(value) if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).items()
            for key, item in list(entries):
                walk(item, (*path, key))

    walk(prepared, ())
    return found


def touch(prepared: Any, path: Path) -> None:
    """Have made what is made when it is first asked for."""
    for key in path:
        prepared = prepared[key] if isinstance(key, int) else getattr(prepared, key)
