"""A trained model, or an ensemble, for use from Python."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np
import torch
from ase import Atoms
from rdkit import Chem
from torch_geometric.data import Data

from molflt.data.dataset import ConcatDataset, ListDataset, StructureDataset
from molflt.data.open import structures_of
from molflt.data.reading import CONFORMERS, ReadOptions
from molflt.errors import InputError, listed
from molflt.model.model_file import LoadedModel, ModelMetadata
from molflt.model.uncertainty import Uncertainty
from molflt.prediction.members import ModelPath, load_members, meaning_of_uncertainty, uncertainty_of
from molflt.prediction.prediction import BY_ATOM, Prediction
from molflt.prediction.predictor import DEFAULT_MAX_ATOMS, choose_device, doubt_of_forces, predict
from molflt.vocabulary import MethodName, OnError, TagConvention


class Model:
    """Energies of anything that holds atoms.

    Args:
        members: one model, or those of an ensemble.
        device: where to compute: auto, cpu or cuda.
        dtype: precision to compute in; None: as trained.

    Attributes:
        members: as given.
        device: where it computes.
    """

    def __init__(
        self, members: Sequence[LoadedModel], device: str = "auto", dtype: torch.dtype | None = None
    ) -> None:
        if not members:
            raise InputError("a model needs at least one member")
        self.members = list(members)
        self.device = choose_device(device)
        for member in self.members:
            member.model.to(device=self.device, dtype=dtype).requires_grad_(False)

    @property
    def metadata(self) -> ModelMetadata:
        """What the (first) model file says of itself."""
        return self.members[0].metadata

    @property
    def target(self) -> str:
        """What is predicted: ``energy`` and ``y_init`` of the given geometry, ``y_relaxed`` of the relaxed one."""
        return self.metadata.target

    @property
    def uncertainty(self) -> Uncertainty | None:
        """What the file knows of the model's errors on structures that it was not trained on; None: nothing."""
        return uncertainty_of(self.members)

    @property
    def elements(self) -> list[int]:
        """Atomic numbers that the model was trained on."""
        return self.metadata.elements

    def __repr__(self) -> str:
        ensemble = f"ensemble of {len(self.members)}, " if len(self.members) > 1 else ""
        return (
            f"Model({ensemble}target {self.target!r}, {self.members[0].model.n_parameters():,} parameters, "
            f"{self.members[0].name}, {self.device})"
        )

    @overload
    def predict(
        self,
        structures: Any,
        *,
        on_error: OnError = ...,
        return_std: Literal[False] = ...,
        forces: Literal[False] = ...,
        per_atom: Literal[False] = ...,
        embeddings: Literal[False] = ...,
        max_atoms: int = ...,
        tags: TagConvention = ...,
        allow_charged: bool = ...,
        conformers: int = ...,
    ) -> np.ndarray: ...
    @overload
    def predict(
        self,
        structures: Any,
        *,
        on_error: OnError = ...,
        return_std: Literal[True],
        forces: Literal[False] = ...,
        per_atom: Literal[False] = ...,
        embeddings: Literal[False] = ...,
        max_atoms: int = ...,
        tags: TagConvention = ...,
        allow_charged: bool = ...,
        conformers: int = ...,
    ) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(
        self,
        structures: Any,
        *,
        on_error: OnError = ...,
        return_std: Literal[False] = ...,
        forces: bool = ...,
        per_atom: bool = ...,
        embeddings: bool = ...,
        max_atoms: int = ...,
        tags: TagConvention = ...,
        allow_charged: bool = ...,
        conformers: int = ...,
    ) -> Prediction: ...

    def predict(
        self,
        structures: Any,
        *,
        on_error: OnError = "raise",
        return_std: bool = False,
        forces: bool = False,
        per_atom: bool = False,
        embeddings: bool = False,
        max_atoms: int = DEFAULT_MAX_ATOMS,
        tags: TagConvention = "auto",
        allow_charged: bool = False,
        conformers: int = CONFORMERS,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray] | Prediction:
        """Energies, in the order of the entries.

        Args:
            structures: a list, mixed as it comes, of ASE ``Atoms``, RDKit ``Mol``, SMILES, paths, and structures
                under the vocabulary; or one of them. A file gives as many energies as it holds structures.
            on_error: ``raise`` names every bad entry by its index; ``skip`` warns, and gives NaN, or an empty array,
                in its place.
            return_std: give the uncertainty as well: what 68 % of the errors are below where the file knows it,
                else the standard deviation over the members of an ensemble.
            forces: give forces, (n_atoms, 3) eV/Å for each structure, as well.
            per_atom: give each atom's term of the energy, (n_atoms,) eV, as well.
            embeddings: give what the encoder makes of each atom, (n_atoms, dim), as well.
            max_atoms: atoms per batch; bounds memory, changes no result.
            tags: how to read tags of Atoms and files, see :func:`molflt.data.ase.from_atoms`.
            allow_charged: take ions and radicals as if they were neutral and closed-shell.
            conformers: how many to make of a molecule without positions. The energy of a molecule with several
                conformers is that of the lowest.

        Returns:
            (n_structures,) eV, float64; with ``return_std`` a pair of those. With any of ``forces``, ``per_atom`` and
            ``embeddings``, a :class:`~molflt.prediction.prediction.Prediction`, which has ``energies`` and, if known,
            ``std`` as well.

        Raises:
            InputError: an entry cannot be read or computed; nothing is known for ``return_std``; the model has no
                forces; or embeddings of an ensemble.
        """
        if on_error not in ("raise", "skip"):
            raise InputError(f"on_error={on_error!r}: choose 'raise' or 'skip'")
        has_std = meaning_of_uncertainty(self.members) is not None
        if return_std and not has_std:
            raise InputError("return_std=True needs an ensemble: train one with ensemble=4, or load several models")
        wanted = [name for name, one in zip(BY_ATOM, (forces, per_atom, embeddings), strict=True) if one]
        entries = [structures] if _is_one(structures) else list(structures)
        takes_ions = self.members[0].model.config.takes_ions
        options = ReadOptions(
            allow_charged, conformers, charges=takes_ions, accept_unconverged=True, tags=tags, on_bad="skip"
        )
        datasets: list[StructureDataset] = []
        for index, entry in enumerate(entries):
            try:
                datasets.append(structures_of(entry, f"entry {index}", options))
            except InputError as error:
                # It keeps one place.
                datasets.append(ListDataset([error]))
        together = ConcatDataset(datasets)
        if len(together):
            found = predict(self.members, together, self.device, max_atoms, "skip", forces, per_atom, embeddings)
        else:
            found = Prediction(np.empty(0), [], Counter())
            found.std = np.empty(0) if has_std else None
            for name in wanted:
                setattr(found, name, [])
        entry_of = np.repeat(np.arange(len(entries)), [len(dataset) for dataset in datasets])
        reasons: dict[int, list[str]] = {}
        for place, reason in sorted(found.failures.items()):
            index = int(entry_of[place])
            reasons.setdefault(index, []).append(reason)
            found.names[place] = found.names[place] or f"entry {index}"
            for name in wanted:
                found.by_atom[name][place] = np.empty(0)
        if forces and (doubt := doubt_of_forces(self.members[0].metadata)):
            warnings.warn(doubt, stacklevel=2)
        for doubtful in found.doubts():
            warnings.warn(doubtful, stacklevel=2)
        if reasons:
            _report({index: "; ".join(some) for index, some in reasons.items()}, len(entries), on_error)
        if wanted:
            return found
        return (found.energies, found.std) if return_std and found.std is not None else found.energies


def load(
    path: ModelPath | Sequence[ModelPath],
    device: str = "auto",
    dtype: torch.dtype | None = None,
    frequencies: MethodName | None = None,
) -> Model:
    """Load a model for use; nothing is unpickled and no code from the file is run.

    Args:
        path: a model file, a run directory, the directory of an ensemble, ``pretrained:NAME``, one of these with
            ``#K`` behind it for its K-th member, or a list of them: one ensemble.
        device: auto (a GPU where there is one), cpu or cuda.
        dtype: ``torch.float64`` computes in double precision; None: as trained.
        frequencies: evaluate the far field by this method, among those that compute the same function.

    Raises:
        InputError: a file cannot be used.
    """
    return Model(load_members(path, frequencies), device, dtype)


def _is_one(structures: Any) -> bool:
    kinds = str | os.PathLike | Atoms | Chem.Mol | Data
    return isinstance(structures, kinds) or not isinstance(structures, Iterable)


def _report(failures: dict[int, str], n_entries: int, on_error: OnError) -> None:
    lines = [
        f"entry {index}: {reason.removeprefix(f'entry {index}: ')}" for index, reason in sorted(failures.items())
    ]
    message = listed(f"{len(failures)} of {n_entries} entries cannot be used", lines)
    if on_error == "raise":
        raise InputError(f"{message}\nCorrect them, or give on_error='skip'")
    warnings.warn(f"{message}\nTheir energies are NaN", stacklevel=3)
