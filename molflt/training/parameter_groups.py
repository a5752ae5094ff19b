"""Which parameters decay."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimiser: weight decay on matrices only, and on no embedding."""
    embeddings = {p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.dim() >= 2 and p not in embeddings]
    kept = [p for p in parameters if p.dim() < 2 or p in embeddings]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
