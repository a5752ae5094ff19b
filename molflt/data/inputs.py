"""Whatever a user has at hand, as structures."""

from __future__ import annotations

import os
from typing import Any

import torch
from ase import Atoms
from rdkit import Chem
from torch_geometric.data import Data

from molflt import vocabulary
from molflt.choices import TagConvention
from molflt.data.ase_io import from_atoms
from molflt.data.rdkit_io import from_any_mol
from molflt.data.sources import ListDataset, StructureDataset, resolve_inputs
from molflt.errors import InputError, OnBad


def structures_of(entry: Any, name: str, tags: TagConvention = "auto", on_bad: OnBad = "stop") -> StructureDataset:
    """Structures of one entry of a list of mixed things.

    Args:
        entry: ASE ``Atoms``; an RDKit ``Mol`` (without a 3D conformer it gets hydrogens and one); a SMILES, a path
            or a glob pattern; a structure under the vocabulary; or a data set of them. Paths and data sets may hold
            several structures.
        name: of what has no name of its own.
        tags: see :func:`molflt.data.ase_io.from_atoms`.
        on_bad: what happens to a path with a structure that cannot be used, see
            :func:`molflt.data.sources.open_dataset`.

    Raises:
        InputError: nothing that molflt reads, or it cannot be read.
    """
    if isinstance(entry, str | os.PathLike):
        return resolve_inputs([os.fspath(entry)], tags, on_bad=on_bad)
    if isinstance(entry, Atoms):
        return ListDataset([from_atoms(entry, name, tags)])
    if isinstance(entry, Chem.Mol):
        return ListDataset([from_any_mol(entry, name)])
    if isinstance(entry, Data):
        return ListDataset([_checked(entry, name)])
    if isinstance(entry, StructureDataset):
        return entry
    raise InputError(
        f"{name}: {type(entry).__name__} is nothing that holds a structure; give ASE Atoms, an RDKit Mol, a SMILES, "
        "a path, or a torch_geometric Data with the fields of molflt.vocabulary"
    )


def _checked(data: Data, name: str) -> Data:
    """A copy with the fields of the vocabulary only, and with a name."""
    fields = {key: data[key] for key in data.keys() if key in vocabulary.FIELDS}  # noqa: SIM118 (Data is no dict)
    for key in ("edge_index", "cell_offsets"):
        fields.pop(key, None)
    for key, value in fields.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{name}: '{key}' is {type(value).__name__}, expected a tensor")
    vocabulary.check(fields, name)
    structure = Data(**fields)
    structure.num_nodes = int(fields["atomic_numbers"].shape[0])
    structure.name = data["name"] if isinstance(data.get("name"), str) else name
    return structure
