"""The entry point for Python and the command line: a trained model or an ensemble."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from ase import Atoms
from rdkit import Chem
from torch_geometric.data import Data

from molflt.data.dataset import ConcatDataset, ListDataset, StructureDataset
from molflt.data.open import resolve_inputs, structures_of
from molflt.data.reading import CONFORMERS, ReadOptions
from molflt.errors import InputError, listed, warn_caller
from molflt.model.config import Uncertainty
from molflt.model.file import LoadedModel, ModelMetadata
from molflt.prediction.members import ModelPath, load_members, meaning_of_uncertainty, uncertainty_of
from molflt.prediction.output import Prediction
from molflt.prediction.predict import DEFAULT_MAX_ATOMS, choose_device, doubt_of_forces, predict
from molflt.vocabulary import MethodName, OnError, TagConvention


class Model:
    """Energies of anything that contains atoms.

    Args:
        members: one model, or those of an ensemble.
        device: where to compute: auto, cpu or cuda.
        dtype: precision to compute in; None: as trained.

    Attributes:
        members: as given.
        device: the device it computes on.
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
        """Metadata of the (first) model file."""
        return self.members[0].metadata

    @property
    def target(self) -> str:
        """Predicted quantity: ``energy``, ``y_init`` or, of the relaxed geometry, ``y_relaxed``."""
        return self.metadata.target

    @property
    def uncertainty(self) -> Uncertainty | None:
        """Errors on structures not used in training, as stored in the file; None if unknown."""
        return uncertainty_of(self.members)

    @property
    def elements(self) -> list[int]:
        """Atomic numbers in the training set."""
        return self.metadata.elements

    def __repr__(self) -> str:
        ensemble = f"ensemble of {len(self.members)}, " if len(self.members) > 1 else ""
        return (
            f"Model({ensemble}target {self.target!r}, {self.members[0].model.n_parameters():,} parameters, "
            f"{self.members[0].name}, {self.device})"
        )

    def predict(
        self,
        structures: Any,
        *,
        on_error: OnError = "raise",
        return_uncertainty: bool = False,
        forces: bool = False,
        per_atom: bool = False,
        embeddings: bool = False,
        max_atoms: int = DEFAULT_MAX_ATOMS,
        tags: TagConvention = "auto",
        allow_charged: bool = False,
        conformers: int = CONFORMERS,
        return_std: bool = False,
    ) -> Any:
        """Predict energies, in the order of the entries.

        Args:
            structures: a list, in any mixture, of ASE ``Atoms``, RDKit ``Mol``, SMILES, paths, and structures
                under the vocabulary; or one of them. A file gives as many energies as it holds structures.
            on_error: ``raise`` names every bad entry by its index; ``skip`` warns, and gives NaN, or an empty array,
                in its place.
            return_uncertainty: give the uncertainty, eV, as well: the half-width of the 68 % interval if the file has
                it, else the standard deviation over the members of an ensemble.
            forces: give forces, (n_atoms, 3) eV/Å for each structure, as well.
            per_atom: give each atom's term of the energy, (n_atoms,) eV, as well.
            embeddings: give the encoder's embedding of each atom, (n_atoms, dim), as well.
            max_atoms: atoms per batch; bounds memory, changes no result.
            tags: convention for the tags of Atoms and files, see :func:`molflt.data.ase.from_atoms`.
            allow_charged: treat ions and radicals as if they were neutral and closed-shell.
            conformers: number to make of a molecule without positions. The energy of a molecule with several
                conformers is that of the lowest.
            return_std: deprecated name of ``return_uncertainty``.

        Returns:
            (n_structures,) eV, float64; with ``return_uncertainty`` a pair of those. With any of ``forces``,
            ``per_atom`` and ``embeddings``, a :class:`~molflt.prediction.output.Prediction`, which has ``energies``
            and, if known, ``uncertainty_eV`` as well.

        Raises:
            InputError: an entry cannot be read or computed; no uncertainty is known; the model has
                no forces; or embeddings of an ensemble.
        """
        if on_error not in ("raise", "skip"):
            raise InputError(f"on_error={on_error!r}: choose 'raise' or 'skip'")
        if return_std:
            warnings.warn("return_std is now return_uncertainty", DeprecationWarning, stacklevel=2)
            return_uncertainty = True
        if return_uncertainty and meaning_of_uncertainty(self.members) is None:
            raise InputError("no uncertainty is known: train an ensemble (ensemble=4), or load several models")
        entries = [structures] if _is_one(structures) else list(structures)
        options = self.reading(ReadOptions(allow_charged, conformers, tags=tags, on_bad="skip"))
        datasets: list[StructureDataset] = []
        for index, entry in enumerate(entries):
            try:
                datasets.append(structures_of(entry, f"entry {index}", options))
            except InputError as error:
                # The entry keeps one place.
                datasets.append(ListDataset([error]))
        found = self.predict_set(ConcatDataset(datasets), "skip", forces, per_atom, embeddings, max_atoms)
        entry_of = np.repeat(np.arange(len(entries)), [len(dataset) for dataset in datasets])
        reasons: dict[int, str] = {}
        for place, reason in sorted(found.failures.items()):
            index = int(entry_of[place])
            own = reason.removeprefix(f"entry {index}: ")
            reasons[index] = f"{reasons[index]}; {own}" if index in reasons else f"entry {index}: {own}"
            found.names[place] = found.names[place] or f"entry {index}"
            for values in found.by_atom.values():
                values[place] = np.empty(0)
        if reasons:
            message = listed(f"{len(reasons)} of {len(entries)} entries cannot be used", list(reasons.values()))
            if on_error == "raise":
                raise InputError(f"{message}\nCorrect them, or give on_error='skip'")
            warn_caller(f"{message}\nTheir energies are NaN", UserWarning)
        if forces or per_atom or embeddings:
            return found
        return (found.energies, found.uncertainty_eV) if return_uncertainty else found.energies

    def reading(self, options: ReadOptions) -> ReadOptions:
        """Adapt reading options to the model; labels and their convergence are ignored."""
        return replace(options, charges=self.members[0].model.config.takes_ions, accept_unconverged=True)

    def read(self, inputs: Sequence[str], options: ReadOptions) -> StructureDataset:
        """Read structures for :meth:`predict_set`, see :func:`molflt.data.open.resolve_inputs`."""
        return resolve_inputs(inputs, self.reading(options))

    def predict_set(
        self,
        structures: StructureDataset,
        on_error: OnError = "raise",
        forces: bool = False,
        per_atom: bool = False,
        embeddings: bool = False,
        max_atoms: int = DEFAULT_MAX_ATOMS,
    ) -> Prediction:
        """Predict a data set, and warn of doubtful results; arguments are those of :meth:`predict`.

        Raises:
            InputError: as :func:`molflt.prediction.predict.predict`.
        """
        found = predict(self.members, structures, self.device, max_atoms, on_error, forces, per_atom, embeddings)
        doubt = doubt_of_forces(self.metadata) if forces else None
        for line in [*filter(None, [doubt]), *found.doubts()]:
            warn_caller(line)
        return found


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
