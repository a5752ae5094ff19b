"""Models for programs that do not use molflt: TorchScript files, which PyTorch alone runs, in Python and C++."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from ase.data import chemical_symbols

from molflt import __version__
from molflt.export.scripted import ScriptedEnergy, ScriptedMean
from molflt.files import atomic_file
from molflt.model.file import LoadedModel
from molflt.vocabulary import DIFFERENTIABLE

DESCRIPTION = "molflt.json"
"""The file inside the archive that describes the model."""


def description(members: Sequence[LoadedModel]) -> dict[str, object]:
    """Return the metadata that a program needs to use the exported model."""
    metadata = members[0].metadata
    return {
        "molflt": __version__,
        "target": metadata.target,
        "members": len(members),
        "cutoff": metadata.config.cutoff,
        "elements": [chemical_symbols[z] for z in metadata.elements],
        "forces": metadata.target in DIFFERENTIABLE,
        "units": {"length": "Angstrom", "energy": "eV", "forces": "eV/Angstrom", "stress": "eV/Angstrom^3"},
        "far_field": "closed form on all pairs; over the reciprocal lattice where anything is periodic",
        "inputs": ["positions", "cell", "pbc", "atomic_numbers", "tags", "edge_index", "cell_offsets"],
        "outputs": ["energy", "forces", "stress"],
    }


def export(members: Sequence[LoadedModel], path: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
    """Write a model as a TorchScript file.

    Args:
        members: one model, or those of an ensemble, whose mean is exported; they are not changed.
        path: of the file.
        dtype: of the weights; None: as trained.

    Raises:
        InputError: its attention cannot be exported.
        OSError: the system refuses.
    """
    models = [copy.deepcopy(loaded.model).cpu().eval().requires_grad_(False) for loaded in members]
    energies = [ScriptedEnergy(model.to(dtype or model.dtype)) for model in models]
    scripted = ScriptedMean(energies, members[0].metadata.target in DIFFERENTIABLE).eval()
    about = {DESCRIPTION: json.dumps(description(members), indent=1)}
    with warnings.catch_warnings(), atomic_file(Path(path)) as temporary:
        warnings.filterwarnings("ignore", ".*torch.jit.*deprecated.*")
        torch.jit.save(torch.jit.script(scripted), temporary, _extra_files=about)
