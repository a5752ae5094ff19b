"""Every attention mechanism, preset and kernel by name: the package's own, and those of the literature.

The literature is one folder that may be missing: its names are asked for here and nowhere else. Nothing in this file
imports torch, so that configurations are read and printed at once.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from functools import cache, reduce
from importlib.util import find_spec
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, TypeAdapter

from molflt.attention.config import (
    PERFORMER_KERNEL,
    FourierConfig,
    KernelisedConfig,
    KernelKeys,
    LocalConfig,
    MechanismConfig,
    SoftmaxConfig,
)

DEFAULT_MECHANISM = "fourier"


@dataclass(frozen=True)
class Mechanism:
    """One mechanism.

    Attributes:
        config: its keys.
        build: ``module:function`` that makes the modules of a model (see :mod:`molflt.attention.build`).
    """

    config: type[MechanismConfig]
    build: str


OWN_MECHANISMS = {
    "fourier": Mechanism(FourierConfig, "molflt.attention.build:build_fourier"),
    "local": Mechanism(LocalConfig, "molflt.attention.build:build_local"),
    "kernelised": Mechanism(KernelisedConfig, "molflt.attention.build:build_kernelised"),
    "softmax": Mechanism(SoftmaxConfig, "molflt.attention.build:build_softmax"),
}
OWN_PRESETS: dict[str, dict[str, Any]] = {
    "flt": {},
    "molflt": {},
    "local": {"mechanism": "local"},
    "performer": {"mechanism": "kernelised"},
    "softmax": {"mechanism": "softmax"},
}
OWN_KERNELS = {PERFORMER_KERNEL: "molflt.attention.kernels.random_features:performer_kernel"}


@cache
def _literature() -> Any:
    """The names of the literature, or nothing where its folder is not there."""
    if find_spec("molflt.literature") is None:
        return None
    return importlib.import_module("molflt.literature.names")


@cache
def mechanisms() -> dict[str, Mechanism]:
    """Every mechanism by the name in ``mechanism=``."""
    found = dict(OWN_MECHANISMS)
    if literature := _literature():
        found |= {name: Mechanism(*entry) for name, entry in literature.MECHANISMS.items()}
    return found


@cache
def presets() -> dict[str, dict[str, Any]]:
    """What each name that ``attention=`` takes stands for: keys that differ from the mechanism's defaults."""
    literature = _literature()
    return OWN_PRESETS | (literature.PRESETS if literature else {})


@cache
def kernels() -> dict[str, str]:
    """Every kernel by name, and the ``module:function`` that makes it."""
    literature = _literature()
    return OWN_KERNELS | (literature.KERNELS if literature else {})


def imported(place: str) -> Any:
    """The object at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def attention_config(preset: str = "flt", **keys: Any) -> MechanismConfig:
    """The configuration of a preset with some keys changed, as in ``attention_config("flt", n_basis=32)``.

    Raises:
        ValueError: there is no such preset or key, or a value is not allowed.
    """
    return _ADAPTER.validate_python({**_preset(preset), **keys})


def _preset(name: str) -> dict[str, Any]:
    if name not in presets():
        near = difflib.get_close_matches(name, presets(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        shown = [known for known in presets() if "-" not in known or known.startswith(("flt", "lara", "ra"))]
        raise ValueError(
            f"unknown attention '{name}'; {hint}choose one of {', '.join(shown)}, or a kernel of random features, "
            "such as posrf-orf"
        )
    return dict(presets()[name])


def _with_mechanism(value: Any) -> Any:
    """A preset's name as its keys; the default mechanism where none is named; no keys of other mechanisms."""
    if isinstance(value, str):
        value = _preset(value)
    if not isinstance(value, dict):
        return value
    value = {"mechanism": DEFAULT_MECHANISM, **value}
    name = value["mechanism"]
    if not isinstance(name, str) or name not in mechanisms():
        raise ValueError(f"unknown mechanism '{name}'; choose one of {', '.join(mechanisms())}")
    for key in sorted(value.keys() - mechanisms()[name].config.model_fields):
        owners = [other for other, mechanism in mechanisms().items() if key in mechanism.config.model_fields]
        if owners:
            raise ValueError(
                f"{key} is no key of mechanism={name}, but of {', '.join(owners)}: leave it out, or set mechanism"
            )
    return value


def _known_kernel(config: MechanismConfig) -> MechanismConfig:
    if isinstance(config, KernelKeys) and config.kernel not in kernels():
        near = difflib.get_close_matches(config.kernel, kernels(), n=3, cutoff=0.4) or list(kernels())[:3]
        raise ValueError(f"unknown kernel '{config.kernel}'; among those there are: {', '.join(near)}")
    return config


if TYPE_CHECKING:
    AttentionConfig = MechanismConfig
else:
    _union = reduce(or_, (mechanism.config for mechanism in mechanisms().values()))
    AttentionConfig = Annotated[
        SerializeAsAny[Annotated[_union, Field(discriminator="mechanism")]],
        BeforeValidator(_with_mechanism),
        AfterValidator(_known_kernel),
    ]
    """Any mechanism's configuration: a preset's name, or keys with ``mechanism`` among them."""

_ADAPTER: TypeAdapter[MechanismConfig] = TypeAdapter(AttentionConfig)
