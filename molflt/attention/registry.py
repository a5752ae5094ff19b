"""Every attention mechanism, preset and kernel by name.

Nothing in this file imports torch, so that configurations are read and printed at once.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, TypeAdapter

from molflt.attention import config as configs

DEFAULT_MECHANISM = "fourier"


@dataclass(frozen=True)
class Mechanism:
    """Configuration and builder of one mechanism.

    Attributes:
        config: its keys.
        build: ``module:function`` that makes the modules of a model (see :mod:`molflt.attention.build`).
    """

    config: type[configs.MechanismConfig]
    build: str


MECHANISMS = {
    "fourier": Mechanism(configs.FourierConfig, "molflt.attention.build:build_fourier"),
    "local": Mechanism(configs.LocalConfig, "molflt.attention.build:build_local"),
    "matrices": Mechanism(configs.MatricesConfig, "molflt.attention.matrices:build_matrices"),
    "kernelised": Mechanism(configs.KernelisedConfig, "molflt.attention.kernelised:build_kernelised"),
    "softmax": Mechanism(configs.SoftmaxConfig, "molflt.attention.softmax:build_softmax"),
    "undamped": Mechanism(configs.UndampedConfig, "molflt.attention.far.undamped:build_undamped"),
    "concat": Mechanism(configs.ConcatConfig, "molflt.attention.concat:build_concat"),
    "randomised": Mechanism(configs.RandomisedConfig, "molflt.attention.randomised:build_randomised"),
    "randomised-rpe": Mechanism(configs.RandomisedRpeConfig, "molflt.attention.randomised:build_randomised_rpe"),
}
"""Every mechanism by the name in ``mechanism=``."""

COMPONENT_FUNCTIONS = ("trigrf", "posrf", "oprf", "saderf")
WEIGHT_MATRICES = ("iid", "orf", "sorf", "sphere", "qmc", "mm", "sgq", "fastfood")
RANDOM_FEATURES = tuple(f"{component}-{matrix}" for component in COMPONENT_FUNCTIONS for matrix in WEIGHT_MATRICES)
KERNELS = (*RANDOM_FEATURES, "elu", "relu", "lara")
"""Every kernel by name; :func:`molflt.attention.build.build_kernel` makes them."""

ATTENTIONS: dict[str, dict[str, Any]] = {
    "flt": {},
    "molflt": {},
    "local": {"mechanism": "local"},
    "matrices": {"mechanism": "matrices"},
    "performer": {"mechanism": "kernelised"},
    "softmax": {"mechanism": "softmax"},
    "flt-undamped": {"mechanism": "undamped", "far_rank": "m", "moment_channels": 0},
    "flt-concat": {"mechanism": "concat"},
    "ra": {"mechanism": "randomised"},
    "ra-rpe": {"mechanism": "randomised-rpe"},
    "lara-rpe": {"mechanism": "fourier", "far_rank": "m", "kernel": "lara", "moment_channels": 0},
    **{kernel: {"mechanism": "kernelised", "kernel": kernel} for kernel in KERNELS},
}
"""Presets of ``attention=``: for each name the keys that differ from the mechanism's defaults. A mechanism's own name
is one, too."""


def imported(place: str) -> Any:
    """Return the object at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def attention_config(preset: str = "flt", **keys: Any) -> configs.MechanismConfig:
    """Return the configuration of a preset with some keys changed.

    An example is ``attention_config("flt", n_basis=32)``.

    Raises:
        ValueError: there is no such preset or key, or a value is not allowed.
    """
    return _ADAPTER.validate_python({**preset_keys(preset), **keys})


def preset_keys(name: str) -> dict[str, Any]:
    """Return the keys of a preset, or of a mechanism with its defaults.

    Raises:
        ValueError: there is no such preset.
    """
    if name in MECHANISMS and name not in ATTENTIONS:
        return {"mechanism": name}
    if name not in ATTENTIONS:
        near = difflib.get_close_matches(name, ATTENTIONS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        shown = [known for known in ATTENTIONS if "-" not in known or known.startswith(("flt", "lara", "ra"))]
        raise ValueError(
            f"unknown attention '{name}'; {hint}choose one of {', '.join(shown)}, or a kernel of random features, "
            "such as posrf-orf"
        )
    return dict(ATTENTIONS[name])


def _with_mechanism(value: Any) -> Any:
    """Expand a preset's name to its keys, add the default mechanism, refuse keys of others."""
    if isinstance(value, str):
        value = preset_keys(value)
    if not isinstance(value, dict):
        return value
    value = {"mechanism": DEFAULT_MECHANISM, **value}
    name = value["mechanism"]
    if not isinstance(name, str) or name not in MECHANISMS:
        raise ValueError(f"unknown mechanism '{name}'; choose one of {', '.join(MECHANISMS)}")
    for key in sorted(value.keys() - MECHANISMS[name].config.model_fields):
        owners = [other for other, mechanism in MECHANISMS.items() if key in mechanism.config.model_fields]
        if owners:
            raise ValueError(
                f"{key} is not a key of mechanism={name}, but of {', '.join(owners)}: leave it out, or set mechanism"
            )
    return value


def _known_kernel(config: configs.MechanismConfig) -> configs.MechanismConfig:
    if isinstance(config, configs.KernelKeys) and config.kernel not in KERNELS:
        near = difflib.get_close_matches(config.kernel, KERNELS, n=3, cutoff=0.4) or list(KERNELS)[:3]
        raise ValueError(f"unknown kernel '{config.kernel}'; among those there are: {', '.join(near)}")
    return config


if TYPE_CHECKING:
    AttentionConfig = configs.MechanismConfig
else:
    _union = reduce(or_, (mechanism.config for mechanism in MECHANISMS.values()))
    AttentionConfig = Annotated[
        SerializeAsAny[Annotated[_union, Field(discriminator="mechanism")]],
        BeforeValidator(_with_mechanism),
        AfterValidator(_known_kernel),
    ]
    """Any mechanism's configuration: a preset's name, or keys with ``mechanism`` among them."""

_ADAPTER: TypeAdapter[configs.MechanismConfig] = TypeAdapter(AttentionConfig)
