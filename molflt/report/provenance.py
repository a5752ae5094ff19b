"""Where a model comes from: versions, machine, seed, data, configuration."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from pathlib import Path

from ase.data import chemical_symbols

from molflt import __version__
from molflt.attention.config import FROM_TRAINING_SET, ContentKeys, FarFieldKeys, KernelisedConfig, MethodKeys
from molflt.attention.registry import ATTENTIONS, AttentionConfig, attention_config
from molflt.data.quality.screen import SKIPPED
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.model.model_file import LoadedModel, library_versions
from molflt.training.config_file import load_config, to_yaml


def summary(loaded: LoadedModel, n_members: int = 1) -> list[tuple[str, str]]:
    """What the model is, in a few lines; of an ensemble, whose first member is given, what they have in common."""
    metadata, config = loaded.metadata, loaded.model.config
    recycles = f", applied {config.n_recycles} times" if config.n_recycles > 1 else ""
    data = metadata.training_data
    skipped = Path(loaded.path).parent / SKIPPED
    origin = metadata.fine_tuned_from
    left_out = [("left out of its data", f"structures that cannot be used, listed in {SKIPPED}")]
    return [
        *(left_out if skipped.is_file() else []),
        ("target", f"{metadata.target}, eV"),
        ("attention", attention_in_words(config.attention)),
        ("size", f"{config.n_layers} layers{recycles}, {config.n_heads} heads, width {config.dim}"),
        ("parameters", f"{loaded.model.n_parameters():,}"),
        ("local cutoff", f"{config.cutoff:g} Å"),
        ("elements", " ".join(chemical_symbols[z] for z in metadata.elements)),
        ("trained on", f"{data.n_structures:,} structures of {data.path}"),
        ("fingerprint of these", data.fingerprint),
        *([("fine-tuned from", f"{origin.model}, trained on {origin.trained_on.path}")] if origin else []),
        *(
            [("epoch", str(metadata.epoch + 1)), ("model file", str(loaded.path))]
            if n_members == 1
            else [("ensemble", f"{n_members} models in {loaded.name}; curves and RPE are of the first")]
        ),
    ]


def attention_in_words(config: AttentionConfig) -> str:
    """The preset's name where one fits exactly, and the mechanism."""
    names = [name for name in ATTENTIONS if _core(attention_config(name)) == _core(config)]
    parts = [f"mechanism {config.mechanism}"]
    if isinstance(config, MethodKeys):
        parts.append(f"far field by {config.frequencies}")
    if isinstance(config, ContentKeys):
        parts.append(f"far rank {config.far_rank}")
    if isinstance(config, FarFieldKeys):
        kind = f"{config.spectrum}, " if isinstance(config, MethodKeys) else ""
        parts.append(f"{config.n_basis} members ({kind}up to {config.widest:.3g} Å wide)")
    if isinstance(config, KernelisedConfig):
        parts.append(f"kernel {config.kernel}")
    return (f"{names[0]}: " if names else "") + ", ".join(parts)


def _core(config: AttentionConfig) -> dict[str, object]:
    """What makes a mechanism, without its sizes and without what changes no function."""
    return {name: getattr(config, name, None) for name in ("mechanism", "far_rank", "kernel") if config.acts(name)}


def provenance(loaded: LoadedModel, command: str | None) -> list[tuple[str, str]]:
    """Date, machine, seed, command and versions."""
    trained_with = ", ".join(f"{name} {version}" for name, version in loaded.metadata.versions.items())
    written_with = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    found = [
        ("report written", datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")),
        ("molflt", __version__),
        ("machine", f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} logical CPUs"),
        ("seed", str(loaded.metadata.seed)),
        ("model trained with", trained_with),
        ("report written with", written_with),
    ]
    return [*found, ("command", command)] if command else found


def configuration(loaded: LoadedModel) -> tuple[str, str]:
    """Name and YAML of the run's configuration where it lies beside the model, else of the model's own."""
    beside = Path(loaded.path).parent / "config.yaml"
    if beside.is_file():
        try:
            config = load_config(beside)
        except InputError:
            pass
        else:
            # Another model's may lie there.
            if _settled(config.model, loaded.metadata.config) == loaded.metadata.config:
                return f"Full configuration ({beside.name} of the run)", to_yaml(config)
    return "Configuration of the model", to_yaml(loaded.metadata.config)


def _settled(config: ModelConfig, model: ModelConfig) -> ModelConfig:
    """A run's configuration with what it left to its training set as it is in a model."""
    found, attention = config.model_copy(deep=True), model.attention
    found.auxiliary_head = found.auxiliary_head and model.auxiliary_head
    if found.read_out == "auto":
        found.read_out = model.read_out
    if isinstance(found.attention, FarFieldKeys) and isinstance(attention, FarFieldKeys):
        for key in FROM_TRAINING_SET:
            if getattr(found.attention, key) is None:
                setattr(found.attention, key, getattr(attention, key))
    return found
