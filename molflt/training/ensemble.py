"""Training from Python, of one model or of an ensemble, whose spread tells uncertainty."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.callbacks import Callback

from molflt.errors import InputError
from molflt.files import alone
from molflt.prediction.evaluate import evaluate
from molflt.prediction.members import MEMBER
from molflt.training import run as single
from molflt.training.config import TrainConfig
from molflt.training.fine_tuning import each_initial, load_initial
from molflt.training.run import Run
from molflt.training.run_dir import CONFIG, OCCUPIED, check_run_dir, write_config
from molflt.training.yaml import make_config


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


def train_ensemble(
    config: TrainConfig,
    run_dir: str | Path,
    resume: bool = False,
    say: Callable[[str], None] = print,
    callbacks: list[Callback] | None = None,
) -> Run:
    """Train ``config.ensemble`` models one after another (deep ensembles, arXiv 1612.01474).

    Member k is a run of its own in ``run_dir/member-k``, with seed ``config.seed + k`` for weights, random features
    and the order of batches. Arguments are those of :func:`molflt.train`; resuming goes on with members that are
    not finished.

    Returns:
        As :func:`molflt.training.run.train`, of the members' mean; its model is ``run_dir``.

    Raises:
        InputError: as :func:`molflt.training.run.train`; or several devices, among which members cannot be shared.
    """
    run_dir = Path(run_dir)
    if config.trainer.devices * config.trainer.num_nodes > 1:
        raise InputError(
            "ensemble: members are trained one after the other on one device. With several, train each in a run of "
            f"its own, as in: molflt train CONFIG --out {run_dir / MEMBER}0 ensemble=1 seed={config.seed}"
        )
    with alone(run_dir, OCCUPIED):
        config, _ = load_initial(config, lambda _: None)
        check_run_dir(run_dir, config, resume)
        write_config(run_dir, config)
        results = []
        for k, initial in enumerate(each_initial(config)):
            say(f"member {k + 1} of {config.ensemble} ({MEMBER}{k}), seed {config.seed + k}")
            member = config.model_copy(update={"ensemble": 1, "seed": config.seed + k})
            member.init = config.init.model_copy(update={"model": initial})
            folder = run_dir / f"{MEMBER}{k}"
            try:
                results.append(single.train(member, folder, resume, say, callbacks))
            except InputError:
                if not results and not (folder / CONFIG).exists():
                    # Nothing has begun: a corrected command finds no run in its way.
                    (run_dir / CONFIG).unlink()
                raise
        name, path = next(iter(config.data.val.items()))
        device = "cpu" if config.trainer.accelerator == "cpu" else "auto"
        data = config.data
        found = evaluate(run_dir, path, device=device, max_atoms=data.max_atoms, options=data.reading())
        metrics = found.metrics
        singly = np.array([result.best for result in results])
        say(f"{name}: mean of the members {metrics.energy_mae:.4f} eV, each alone {singly.mean():.4f} eV")
        last = max(result.best_epoch for result in results)
        return Run(run_dir, metrics.energy_mae, last, metrics.mad, found.force_mae, results[0].warnings)
