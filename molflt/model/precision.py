"""Where mixed precision stops."""

from __future__ import annotations

import torch


def full_precision(device: torch.device) -> torch.autocast:
    """A context without autocast: exponentials of attention and sums over atoms keep the dtype of the weights."""
    return torch.autocast(device.type, enabled=False)
