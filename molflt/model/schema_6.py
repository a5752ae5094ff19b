"""Older model files: schema 6, in which every attention mechanism had the keys of all, and names since changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from molflt.attention.config import FarFieldKeys, MechanismConfig
from molflt.attention.registry import mechanisms
from molflt.errors import InputError

WIDTHS = "positions.rpe.raw_widths"
"""The tensor whose length is the number of Gaussians, ``n_basis``."""


def uncut(path: Path, config: Any) -> None:
    """Drop ``l_max``, where the far field of a model of schema 9 or before was cut off.

    Raises:
        InputError: this one was, and that is no longer there.
    """
    attention = config.get("attention") if isinstance(config, dict) else None
    if isinstance(attention, dict) and attention.pop("l_max", None) is not None:
        raise InputError(
            f"{path}: its far field is cut off at l_max, which this molflt no longer has, for it was not local: "
            "train again"
        )


def by_mechanism(path: Path, config: Any) -> None:
    """Bring a configuration of schema 6, in which every mechanism had the keys of all, to the present schema.

    The keys that stay are those of the mechanism chosen that act beside the others: the rest did nothing.

    Raises:
        InputError: RA with an estimator as its positional mask, or without a far field, which is no longer there.
    """
    attention = config.get("attention") if isinstance(config, dict) else None
    if not isinstance(attention, dict):
        return
    mechanism = attention.get("mechanism", "fourier")
    far_field, sampled = attention.get("far_field", True), attention.get("frequencies") == "sampled"
    if mechanism == "randomised" and attention.get("positional_mask"):
        if sampled or not far_field:
            raise InputError(
                f"{path}: its attention is RA with sampled frequencies or without a far field, "
                " which this molflt no longer has; train again with model.attention=ra-rpe"
            )
        mechanism = "randomised-rpe"
    elif mechanism == "fourier" and attention.get("combine") == "concat":
        mechanism = "concat"
    elif mechanism == "fourier":
        mechanism = "local" if not far_field else "undamped" if sampled else "fourier"
    kept: dict[str, Any] = {}
    if mechanism in mechanisms():
        schema = mechanisms()[mechanism].config
        given = schema.model_construct(
            **{key: value for key, value in attention.items() if key in schema.model_fields}
        )
        kept = {key: getattr(given, key) for key in given.model_fields_set if given.acts(key)}
        if mechanism != "undamped":
            # Of the estimator alone; since then the word has come to mean the members of f.
            kept.pop("spectrum", None)
        if kept.get("moment_channels", 0) is None:
            del kept["moment_channels"]
    config["attention"] = {**kept, "mechanism": mechanism}


def has_idle_widths(attention: MechanismConfig) -> bool:
    """Whether the widths of the Gaussians do nothing: with ``spectrum=free``, whose files hold any number of them."""
    return isinstance(attention, FarFieldKeys) and not attention.acts("n_basis")


def renamed(config: Any) -> None:
    """Bring the names of a configuration of schema 7 up to date."""
    attention = config.get("attention") if isinstance(config, dict) else None
    if not isinstance(attention, dict):
        return
    if attention.get("mechanism") == "sampled":
        attention["mechanism"] = "undamped"
    if attention.get("mechanism") in ("fourier", "randomised-rpe"):
        # There was no other when the key was not there.
        attention.setdefault("spectrum", "gaussians")
    if attention.get("frequencies") == "quadrature" and attention.get("order") == "linear":
        # The same energy to its tolerance, on pairs.
        attention["order"] = "auto"
