"""Curves as numbers: metrics over the epochs, and RPE functions with their spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from molflt.attention.far.field import FarMethod
from molflt.attention.far.members import GaussianBasis
from molflt.attention.smooth import envelope, sinc_of_square
from molflt.attention.softmax import SoftmaxPositions
from molflt.model.energy import EnergyModel

TRAIN = "train"
_MOST_DISTANCE = 30.0
"""Å; beyond it wide Gaussians only decay slowly."""
_N_POINTS = 241


@dataclass(frozen=True)
class Curve:
    """One metric of one split.

    Attributes:
        split: ``train`` or the name of a validation split.
        epochs: (n,) counted from one.
        values: (n,).
    """

    split: str
    epochs: np.ndarray
    values: np.ndarray


def learning_curves(records: Sequence[dict[str, Any]], metric: str) -> list[Curve]:
    """Return a metric such as ``energy_mae`` of every split that has it; training first.

    Args:
        records: one per validated epoch, see :func:`molflt.training.run_dir.read_records`.
        metric: its name after the slash.
    """
    splits = dict.fromkeys(
        key.rpartition("/")[0] for record in records for key in record if key.endswith(f"/{metric}")
    )
    found = []
    for split in sorted(splits, key=lambda name: name != TRAIN):
        points = [(r["epoch"], r[f"{split}/{metric}"]) for r in records if f"{split}/{metric}" in r]
        epochs, values = zip(*points, strict=True)
        found.append(Curve(split, np.array(epochs), np.array(values, dtype=np.float64)))
    return found


def best_epoch(records: Sequence[dict[str, Any]]) -> int | None:
    """Return the best epoch of a run, counted from one; None if the records do not say."""
    return int(records[-1]["best_epoch"]) if records and "best_epoch" in records[-1] else None


def best_point(curves: Sequence[Curve], epoch: int | None = None) -> tuple[int, float] | None:
    """Return epoch and value of the first validation split, by default at its minimum."""
    first = next((curve for curve in curves if curve.split != TRAIN), None)
    if first is None:
        return None
    k = int(np.argmin(first.values) if epoch is None else np.searchsorted(first.epochs, epoch))
    return int(first.epochs[k]), float(first.values[k])


@dataclass(frozen=True)
class FarCurves:
    """The far field's RPE function and its spectrum.

    Attributes:
        distances: (n_r,) Å.
        values: (n_layers, n_heads, n_r), the function in use: f itself, or the estimate of it that the model was
            trained with, averaged over directions.
        intended: (n_layers, n_heads, n_r), the f to be estimated; None if ``values`` is f, or if the
            frequencies are free and there is no other.
        xi: (n_xi,) 1/Å.
        spectrum: (n_layers, n_heads, n_xi) Å³; None where the frequencies are free.
        nodes: (r,) 1/Å, |ξ_k| of the frequencies that the model sums over; None if it uses f itself.
        coefficients: (n_layers, n_heads, r), a_k in f̂(r) = Σ_k a_k sinc(2π|ξ_k|r); None with ``nodes``.
    """

    distances: np.ndarray
    values: np.ndarray
    intended: np.ndarray | None
    xi: np.ndarray
    spectrum: np.ndarray | None
    nodes: np.ndarray | None
    coefficients: np.ndarray | None

    @property
    def reach(self) -> float:
        """Å beyond which every f is below a hundredth of the largest in its layer."""
        f = np.abs(self.values if self.intended is None else self.intended)
        alive = (f > 0.01 * f.max(axis=(1, 2), keepdims=True)).any(axis=(0, 1))
        last = int(np.flatnonzero(alive)[-1]) if alive.any() else len(self.distances) - 1
        return float(self.distances[min(last + 1, len(self.distances) - 1)])


@dataclass(frozen=True)
class LocalCurves:
    """The local RPE, exp(b_h(r))·env(r), of one pair of elements.

    Attributes:
        distances: (n_r,) Å, up to the cutoff.
        values: (n_layers, n_heads, n_r).
        pair: atomic numbers of receiver and sender.
    """

    distances: np.ndarray
    values: np.ndarray
    pair: tuple[int, int]


@torch.no_grad()
def far_curves(model: EnergyModel) -> FarCurves | None:
    """Compute f and g of every layer and head in double precision; None without Fourier RPE."""
    positions = model.positions
    if positions.rpe is None:
        return None
    layers: Any = model.encoder.layers
    weights = torch.stack([layer.attention.rpe_weights for layer in layers]).double().cpu()
    basis = positions.rpe().double()
    distances = torch.linspace(0, min(3 * basis.widest, _MOST_DISTANCE), _N_POINTS, dtype=torch.float64)
    # Up to where all transforms have ended.
    xi = torch.linspace(0, float(basis.cutoffs(1e-2).max()), _N_POINTS, dtype=torch.float64)
    nodes = _waves(positions.method, basis)
    # Free weights belong to the frequencies, and there is no f that they estimate.
    free = not model.config.attention.acts("n_basis")
    true = None if free else _per_head(basis.on_pairs(distances**2).t(), weights)
    spectrum = None if free else _per_head(basis.spectra(xi), weights)
    if nodes is None:
        assert true is not None
        return FarCurves(distances.numpy(), true, None, xi.numpy(), spectrum, None, None)
    length, coefficients = nodes
    waves = sinc_of_square((2 * math.pi * length) ** 2 * distances[:, None] ** 2)
    return FarCurves(
        distances=distances.numpy(),
        values=_per_head(waves @ coefficients, weights),
        intended=true,
        xi=xi.numpy(),
        spectrum=spectrum,
        nodes=length.numpy(),
        coefficients=_per_head(coefficients, weights),
    )


@torch.no_grad()
def local_curves(model: EnergyModel, pair: tuple[int, int]) -> LocalCurves | None:
    """Compute the local RPE of two elements; None for attention without it.

    For dense softmax it is exp(b_h), with the envelope used in periodic structures.
    """
    layers: Any = model.encoder.layers
    if not all(hasattr(layer.attention, "local_rpe") for layer in layers):
        return None
    radial = model.positions.radial if isinstance(model.positions, SoftmaxPositions) else model.radial
    cutoff = float(radial.cutoff)
    distances = torch.linspace(0, cutoff, _N_POINTS, dtype=model.dtype, device=model.device)
    receiver, sender = (torch.full((_N_POINTS,), z, device=model.device) for z in pair)
    basis = radial(distances, receiver, sender)
    fade = envelope(distances, cutoff)[:, None]
    values = torch.stack([layer.attention.local_rpe.bias(basis).exp() * fade for layer in layers])
    return LocalCurves(distances.double().cpu().numpy(), values.transpose(1, 2).double().cpu().numpy(), pair)


def _waves(method: FarMethod | None, basis: GaussianBasis) -> tuple[Tensor, Tensor] | None:
    """|ξ_k| (r,) and coefficients (r, n_weights), for methods that are part of the model."""
    if method is None:
        return None
    dtype = next((p.dtype for p in method.parameters()), torch.float64)
    found = method.radial_waves(GaussianBasis(basis.widths.to(dtype), basis.n_atoms))
    return None if found is None else (found[0].double().cpu(), found[1].double().cpu())


def _per_head(columns: Tensor, weights: Tensor) -> np.ndarray:
    """Map (n, n_weights) and (n_layers, n_weights, n_heads) to (n_layers, n_heads, n)."""
    found: np.ndarray = (columns @ weights).transpose(1, 2).numpy()
    return found
