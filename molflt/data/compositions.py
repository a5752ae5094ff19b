"""Compositions of structures that do not touch, whose energies add up: for training and for judging models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation
from torch_geometric.data import Data

from molflt.vocabulary import TARGETS


def apart(members: Sequence[Data], gaps: Sequence[float], random: np.random.Generator) -> Data:
    """Isolated structures, at least one, each turned at random, in a random direction from those before.

    Between the nearest atoms of each member but the first and those before it are ``gaps``, in Å.
    """
    positions, forces = _turned(members[0], random)
    for member, gap in zip(members[1:], gaps, strict=True):
        others, others_forces = _turned(member, random)
        positions = np.concatenate([positions, at_distance(positions, others, _direction(random), gap)])
        forces = np.concatenate([forces, others_forces])
    return _composition(members, positions, forces)


def in_cell(member: Data, gaps: np.ndarray, random: np.random.Generator) -> Data:
    """An isolated structure in a periodic box, (3,) Å from its images along the edges."""
    positions, forces = _turned(member, random)
    data = _composition([member], positions, forces)
    data.cell = torch.from_numpy(np.diag(np.ptp(positions, axis=0) + gaps))[None]
    data.pbc = torch.ones((1, 3), dtype=torch.bool)
    return data


def at_distance(fixed: np.ndarray, moved: np.ndarray, direction: np.ndarray, gap: float) -> np.ndarray:
    """Positions (n, 3) of ``moved``, shifted along a direction until its nearest atom is ``gap`` away, Å."""
    reach = np.linalg.norm(fixed, axis=1).max() + np.linalg.norm(moved - moved.mean(axis=0), axis=1).max() + gap
    place = moved - moved.mean(axis=0) + reach * direction
    for _ in range(8):
        # A step as long as the excess cannot bring two atoms nearer than the gap.
        place = place - (cdist(fixed, place).min() - gap) * direction
    return place


def _turned(data: Data, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Positions from their mean and forces, turned at random; forces of nothing are zero."""
    turn = Rotation.random(random_state=random).as_matrix().T
    positions = data.positions.numpy()
    forces = data.forces.numpy() if "forces" in data else np.zeros_like(positions)
    return (positions - positions.mean(axis=0)) @ turn, forces @ turn


def _direction(random: np.random.Generator) -> np.ndarray:
    found = random.normal(size=3)
    return np.asarray(found / np.linalg.norm(found))


def _composition(members: Sequence[Data], positions: np.ndarray, forces: np.ndarray) -> Data:
    """A structure with the fields of the first member, and the sum of the energies."""
    data = members[0].clone()
    data.atomic_numbers = torch.cat([member.atomic_numbers for member in members])
    data.positions = torch.from_numpy(positions)
    data.tags = torch.cat([member.tags for member in members])
    data.fixed = torch.cat([member.fixed for member in members])
    data.num_nodes = len(positions)
    for target in TARGETS:
        if target in data:
            data[target] = torch.stack([member[target] for member in members]).sum(dim=0)
    if any("charge" in member for member in members):
        data.charge = sum((member.charge for member in members if "charge" in member), torch.zeros(1).double())
    if "forces" in data:
        data.forces = torch.from_numpy(forces)
    return data
