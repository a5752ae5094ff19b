"""The mean of several checkpoints' weights: one model that is often better than each (Izmailov et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from molflt.errors import InputError
from molflt.model.model_file import LoadedModel, load_model, save_model
from molflt.prediction.members import ModelPath


def average_models(paths: Sequence[ModelPath], target: str | Path) -> LoadedModel:
    """Average the weights of model files of one run (stochastic weight averaging, arXiv 1803.05407) and save them.

    Models of different seeds are no checkpoints of one run: the mean of their weights means nothing, the mean of
    their predictions (an ensemble) does.

    Args:
        paths: model files with equal configuration, random features and statistics.
        target: where to save; must not exist.

    Raises:
        InputError: fewer than two files, files that do not belong together, or a target that exists.
    """
    if len(paths) < 2:
        raise InputError("give at least two model files to average, such as RUN_DIR/epoch-*.safetensors")
    target = Path(target)
    if target.exists():
        raise InputError(f"{target}: exists already; choose another name")
    first = load_model(Path(paths[0]))
    learnt = {name for name, _ in first.model.named_parameters()}
    state = first.model.state_dict()
    sums = {name: tensor.to(torch.float64) for name, tensor in state.items() if name in learnt}
    for path in map(Path, paths[1:]):
        other = load_model(path)
        if other.metadata.config != first.metadata.config or other.metadata.seed != first.metadata.seed:
            raise InputError(
                f"{path}: has another configuration or seed than {paths[0]}; average checkpoints of one run, or use "
                "different models together as an ensemble"
            )
        for name, tensor in other.model.state_dict().items():
            if name in learnt:
                sums[name] += tensor
            elif not torch.equal(tensor, state[name]):
                raise InputError(f"{path}: '{name}' differs from that of {paths[0]}; they are not of one run")
    first.model.load_state_dict({**state, **{name: total / len(paths) for name, total in sums.items()}})
    # Nothing is known of the errors of these weights.
    metadata = first.metadata.model_copy(update={"validation": {}})
    save_model(target, first.model, metadata)
    return LoadedModel(first.model, metadata, target)
