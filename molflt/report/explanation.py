"""What a predicted energy is made of, and what one atom attends to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.data.batch import StructureCollater
from molflt.data.images import nearest_image
from molflt.data.progress import track
from molflt.errors import InputError
from molflt.model.model_file import LoadedModel
from molflt.prediction.predict import choose_device, lowest_of, unlabelled
from molflt.report.attention_rows import attention_row, recorded_forward


@dataclass(frozen=True)
class Explanation:
    """One structure as a model sees it: energy = mean + Σ_i (reference_i + learnt_i).

    How the network shares an energy among atoms is its own choice: only the sum was trained.

    Attributes:
        structure: what was explained, without labels.
        target: the field whose values the model predicts.
        energy: eV, as ``molflt predict`` gives it.
        mean: eV, the constant that belongs to no atom; 0 where the model has reference energies per element.
        reference: (n_atoms,) eV, float64: the reference energy of each atom's element; zeros without references.
        learnt: (n_atoms,) eV, float64: what the network says of each atom, in eV.
        atom: index of the atom that attends.
        attention: (n_layers, n_heads, n_atoms), float64, dimensionless: the weight with which that atom takes the
            values of every atom, in the last pass where the stack is recycled; images of one atom are summed.
            Rows sum to one in softmax, Performer and their kin. In the attention of molflt the near part sums to
            one and the far part, of either sign, comes on top.
        distance: (n_atoms,) Å, from that atom to the nearest image of every atom.
    """

    structure: Data
    target: str
    energy: float
    mean: float
    reference: np.ndarray
    learnt: np.ndarray
    atom: int
    attention: np.ndarray
    distance: np.ndarray

    @property
    def name(self) -> str:
        """Where the structure came from."""
        return str(self.structure.name)

    @property
    def atomic_energies(self) -> np.ndarray:
        """(n_atoms,) eV: reference plus learnt part."""
        return self.reference + self.learnt

    @property
    def share(self) -> np.ndarray:
        """(n_atoms,): |learnt_i| / Σ_j |learnt_j|, which adds up to one; zeros where nothing was learnt."""
        size = np.abs(self.learnt)
        total = size.sum()
        return size / total if total > 0 else size


def explain(
    loaded: LoadedModel, structure: Data, atom: int | None = None, device: torch.device | str = "cpu"
) -> Explanation:
    """Explain the energy of one structure.

    One evaluation, then for every layer one evaluation and one backward pass of its attention alone.

    Args:
        loaded: the model.
        structure: under ``molflt.vocabulary``; a neighbour list is made anew. Of several conformers, the one with
            the lowest energy is explained.
        atom: whose attention to give, counted from 0; None: the one whose learnt part is
            furthest from the median of all, which in a slab is an adsorbate rather than one metal atom of many.
        device: where to compute.

    Raises:
        InputError: there is no such atom, or the structure cannot be computed.
    """
    n_atoms = int(structure.num_nodes)
    if atom is not None and not 0 <= atom < n_atoms:
        raise InputError(
            f"{structure.name}: has no atom {atom}; its {n_atoms} atoms are counted from 0 to {n_atoms - 1}"
        )
    structure = unlabelled(lowest_of(loaded, structure, choose_device(str(device))))
    model = loaded.model.to(choose_device(str(device)))
    collate = StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
    batch = collate([structure]).to(model.device)
    output, calls = recorded_forward(model, batch)
    energy = float(output.energy)
    if not np.isfinite(energy):
        raise InputError(
            f"{structure.name}: the model's energy is not finite; check the structure for overlapping atoms"
        )
    statistics = model.standardiser
    reference = statistics.references[batch.atomic_numbers]
    learnt = (output.atomic_energies - reference).cpu().numpy()
    chosen = int(np.abs(learnt - np.median(learnt)).argmax()) if atom is None else atom
    rows = [attention_row(call, chosen).cpu() for call in track(calls, "attention", len(calls))]
    return Explanation(
        structure=structure,
        target=loaded.metadata.target,
        energy=energy,
        mean=float(statistics.mean),
        reference=reference.cpu().numpy(),
        learnt=learnt,
        atom=chosen,
        attention=torch.stack(rows).to(torch.float64).numpy(),
        distance=_distances(structure, chosen),
    )


def _distances(structure: Data, atom: int) -> np.ndarray:
    positions = structure.positions.numpy()
    cell, pbc = structure.cell[0].numpy(), structure.pbc[0].numpy()
    here = np.broadcast_to(positions[atom], positions.shape)
    nearest = nearest_image(here, positions, cell, pbc, str(structure.name))
    return np.asarray(np.linalg.norm(nearest - here, axis=1))
