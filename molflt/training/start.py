"""Training from Python, by whatever says what to train."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from molflt.training import run as single
from molflt.training.config import TrainConfig
from molflt.training.config_file import make_config
from molflt.training.ensemble import train_ensemble
from molflt.training.run import Run


def train(
    config: TrainConfig | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    say: Callable[[str], None] = print,
    callbacks: list[Callback] | None = None,
    **overrides: Any,
) -> Run:
    """Train a model, or an ensemble, as ``molflt train`` does.

    For example ``molflt.train("tiny", "runs/mine", data={"train": "a.xyz", "val": "b.xyz", "target": "energy"})``.

    Args:
        config: a YAML file, the name of a preset (``molflt config`` lists them), or the values of a configuration in
            nested mappings; docs/config.md has every key.
        out: the run directory, which gets models, metrics, configuration and checkpoints.
        resume: continue the run in ``out`` from its last finished epoch; start it if there is none.
        say: takes each line on how the run goes.
        callbacks: further Lightning callbacks.
        overrides: sections or keys that differ from ``config``, as ``seed=1``, ``trainer={"max_epochs": 5}`` or
            ``**{"trainer.max_epochs": 5}``.

    Raises:
        InputError: a configuration or data that cannot be used, a run directory that holds another run, or a loss
            that is not a number any more.
        ConnectionError: another process of the run has ended; the run can be resumed.
        ChildProcessError: a loader process was killed; the run can be resumed.
        KeyboardInterrupt: the run was interrupted; it can be resumed.
    """
    settings = make_config(config, overrides)
    go = train_ensemble if settings.ensemble > 1 else single.train
    return go(settings, Path(out), resume, say, callbacks)
