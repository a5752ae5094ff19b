"""The rows of the accuracy table that molflt trains: each names what it changes of the default."""

from __future__ import annotations

from typing import Any

from accuracy.data_sets import DATA_SETS, Split
from molflt.training.config import TrainConfig

MODEL: dict[str, Any] = {
    "dim": 128,
    "n_heads": 8,
    "n_layers": 2,
    "ffn_dim": 256,
    "n_rbf": 32,
    "auxiliary_head": False,
}

_CHANGES: dict[str, dict[str, Any]] = {
    "molflt": {},
    "flt": {"attention": "flt"},
    "no moments": {"attention": {"moment_channels": 0}},
    "no far field": {"attention": {"far_field": False}},
    "no local RPE": {},
    "performer": {"attention": "performer"},
    "concat, turned at random": {"attention": "flt-concat"},
    # Wider feed-forward layers, for as many parameters as molflt has.
    "softmax": {"attention": "softmax", "ffn_dim": 332},
    "far_rank = 1": {"attention": {"far_rank": 1}},
    "far_rank = m": {"attention": {"far_rank": "m"}},
    "all channels": {"attention": {"far_dim": MODEL["dim"]}},
    "sampled": {"attention": {"frequencies": "sampled"}},
    "sampled, free spectrum": {"attention": {"frequencies": "sampled", "spectrum": "free"}},
    "4 recycles": {"n_recycles": 4},
    "no auxiliary head": {"auxiliary_head": False},
}
_TYPED = ("molflt", "softmax")

VARIANTS = {**_CHANGES, **{f"{row}, pair types": {**_CHANGES[row], "pair_types": True} for row in _TYPED}}
"""What each row changes of the model."""

TURNED = ("concat, turned at random",)
"""Rows that see every structure in another orientation in every epoch."""

UNBIASED = ("no local RPE",)
"""Rows whose neighbours count by content and envelope alone."""

ONLY_RELAXED = ("no auxiliary head",)
"""Rows that differ from the default where relaxed positions are known."""


def run_config(name: str, data: str, split: Split, seed: int, epochs: int, max_steps: int = -1) -> TrainConfig:
    """The common trainer with the model of a row.

    Args:
        name: of :data:`VARIANTS`.
        data: of :data:`accuracy.data_sets.DATA_SETS`.
        split: its files.
        seed: of everything.
        epochs: of training.
        max_steps: optimiser steps at most; -1 for no limit.
    """
    chosen = DATA_SETS[data]
    model = {**MODEL, "cutoff": chosen.cutoff, **chosen.model, **VARIANTS[name]}
    values: dict[str, Any] = {
        "seed": seed,
        "data": {
            "train": split.train,
            "val": split.held_out,
            "target": split.target,
            "standardise": "element",
            "max_atoms": chosen.max_atoms,
        },
        "model": model,
        "optimiser": {"lr": 2e-3, "warmup_steps": 200},
        "trainer": {"max_epochs": epochs, "max_steps": max_steps, "val_every": max(1, epochs // 10)},
    }
    return TrainConfig.model_validate(values)
