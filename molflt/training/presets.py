"""Named configurations; each trains as it stands, ``forces`` on files of one's own, the others on bundled data."""

from __future__ import annotations

from typing import Any

from molflt.attention.registry import ATTENTIONS
from molflt.training.config import TrainConfig

_BUNDLED = {"train": "bundled:fg/train.lmdb", "val": "bundled:fg/val.lmdb"}
_OWN = {"train": "train.extxyz", "val": "val.extxyz"}
"""Of a preset for which no bundled set has the labels."""


def _paper(n_layers: int, attention: str, **sizes: Any) -> dict[str, Any]:
    """FLT appendix B.3 and Table 3: the sizes of the paper. Batch 64 is given as atoms, 78 a structure in OC20."""
    return {
        "model": {
            "dim": 768,
            "n_heads": 48,
            "n_layers": n_layers,
            "n_recycles": 4,
            "ffn_dim": 2048,
            "n_rbf": 128,
            "pair_types": True,
            "read_out": "all",
            "attention_dropout": 0.1,
            "attention": {**ATTENTIONS[attention], **sizes},
        },
        "data": {"max_atoms": 5000, "num_workers": 4},
        "optimiser": {
            "name": "adam",
            "lr": 3e-4,
            "betas": (0.9, 0.98),
            "eps": 1e-6,
            "weight_decay": 1e-3,
            "schedule": "linear",
            "warmup_steps": 10_000,
            "ema_decay": 0.0,
        },
        "loss": {"auxiliary_start": 15.0, "auxiliary_end": 1.0},
        "trainer": {"max_epochs": 1000, "max_steps": 500_000},
    }


_PAPER_RPE = {"spectrum": "sampled", "n_basis": 32, "far_rank": 1, "moment_channels": 0}
"""Frequencies with learnable scales, damped so that they have a linear form, and content as a gate of rank one."""

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "about three minutes on two cores; mean absolute error on val 0.10 eV, seed 0",
        {
            "model": {
                "dim": 64,
                "n_layers": 2,
                "ffn_dim": 128,
                "cutoff": 5.0,
                "n_rbf": 16,
                "attention": {"n_basis": 8},
            },
            "optimiser": {"lr": 3e-3},
            "trainer": {"max_epochs": 8},
        },
    ),
    "small": (
        "half an hour of one core; mean absolute error on val 0.064 eV, three seeds",
        {
            "model": {"dim": 128, "n_layers": 3, "ffn_dim": 256, "cutoff": 5.0, "n_rbf": 24},
            "data": {"max_atoms": 768},
            "optimiser": {"lr": 2e-3, "warmup_steps": 200},
            "trainer": {"max_epochs": 40},
        },
    ),
    "forces": (
        "energies and forces of your own file, as of molecular dynamics; see docs/forces.md",
        {
            "model": {
                "dim": 64,
                "n_layers": 2,
                "ffn_dim": 128,
                "cutoff": 4.0,
                # Wide ones, 0.4 Å: with more of them forces turn round where the bonds of the training set end.
                "n_rbf": 11,
                "attention": {"vector_channels": 16},
            },
            # Few structures in a batch: what counts is the number of steps.
            "data": {**_OWN, "target": "energy", "max_atoms": 96},
            "optimiser": {"lr": 5e-3, "clip_norm": 20.0},
            "loss": {"force_weight": "auto"},
            "trainer": {"max_epochs": 400, "max_steps": 100_000, "val_every": 4},
        },
    ),
    "base": (
        "made for a GPU, not measured",
        {
            "model": {"dim": 256, "n_heads": 8, "n_layers": 6, "n_recycles": 2, "ffn_dim": 768, "n_rbf": 48},
            "data": {"max_atoms": 4096, "num_workers": 4},
            "optimiser": {"lr": 5e-4, "warmup_steps": 1000},
            "trainer": {"max_epochs": 100},
        },
    ),
    "paper-flt-10l": (
        "the sizes of FLT-10L (arXiv 2302.01925), attention made invariant",
        _paper(10, "flt", **_PAPER_RPE),
    ),
    "paper-flt-12l": (
        "the sizes of FLT-12L (arXiv 2302.01925), attention made invariant",
        _paper(12, "flt", **_PAPER_RPE),
    ),
    "paper-performer-12l": ("the sizes of Performer-12L (arXiv 2302.01925)", _paper(12, "performer", n_features=64)),
}


def preset_config(name: str) -> TrainConfig:
    """The configuration called ``name``.

    Raises:
        KeyError: there is none of that name.
    """
    values = PRESETS[name][1]
    return TrainConfig.model_validate({**values, "data": {**_BUNDLED, **values.get("data", {})}})
