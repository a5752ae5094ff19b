"""Which of the processes that share a run this one is, from what their launcher left in the environment."""

from __future__ import annotations

import os

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""Set by torchrun; by Lightning for the processes it starts; by hand for its nodes; by srun; by jsrun."""


def is_first_process() -> bool:
    """Whether this process speaks for all: there is one for every device."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)
