"""A model for torch-sim, which simulates many structures in one batch (arXiv 2508.06628)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from ase import Atoms
from torch import Tensor
from torch_geometric.data import Data

from molflt.data.ase import from_atoms
from molflt.data.reading import ReadOptions
from molflt.errors import InputError, warn_caller
from molflt.model.file import LoadedModel
from molflt.prediction.members import ModelPath
from molflt.prediction.model import Model
from molflt.prediction.predict import doubt_of_forces, why_no_forces
from molflt.simulate.ase import DomainWarnings, MovingBatch, as_model, refuse_not_finite, values_of
from molflt.simulate.replay import Replay

try:
    from torch_sim.models.interface import ModelInterface
except ImportError:
    ModelInterface = torch.nn.Module


class MolFLTModel(ModelInterface):
    """Energies, forces and stresses of structures; for an ensemble, means over its members.

        import torch_sim as ts
        from molflt.simulate.torch_sim import MolFLTModel

        relaxed = ts.optimize(system=frames, model=MolFLTModel("runs/first"), optimizer=ts.optimizers.fire)

    The numerical method of the far field is held while systems move, as in the ASE calculator, and chosen anew when
    systems come or go. torch-sim knows no total charge, so every structure is taken as neutral.

    Args:
        model: see :class:`molflt.MolFLTCalculator`; it must have been trained on energies whose derivatives are
            forces.
        device: auto, cpu or cuda.
        dtype: precision to compute in; None: as trained. Positions are float64 until distances are known.
        stress: whether stresses are computed.

    Raises:
        InputError: torch-sim is not installed, or the model cannot be used or has no forces; in a call: structures
            that cannot be computed.
    """

    def __init__(
        self,
        model: ModelPath | Sequence[ModelPath] | Model | LoadedModel,
        device: str = "auto",
        dtype: str | torch.dtype | None = None,
        stress: bool = True,
    ) -> None:
        super().__init__()
        if ModelInterface is torch.nn.Module:
            raise InputError("torch-sim is not installed: pip install 'molflt[torch-sim]'")
        self.model = as_model(model, device, dtype)
        if reason := why_no_forces(self.model.target):
            raise InputError(f"no forces: this model {reason}")
        if text := doubt_of_forces(self.model.metadata):
            warn_caller(text, UserWarning)
        self._device, self._dtype = self.model.device, torch.float64
        self._compute_forces, self._compute_stress = True, stress
        self._warnings = DomainWarnings()
        self._moving = MovingBatch(self.model)
        self._replay = Replay(partial(values_of, [member.model for member in self.model.members]))

    def forward(self, state: Any, **_: Any) -> dict[str, Tensor]:
        """Return energies and their derivatives.

        Args:
            state: ``SimState`` of torch-sim, or a dictionary with the same names: Å, cells as column vectors.

        Returns:
            energy (n_systems,) eV; forces (n_atoms, 3) eV/Å; stress (n_systems, 3, 3) eV/Å³, positive under tension,
            zero where nothing is periodic.
        """
        of = state.__getitem__ if isinstance(state, dict) else lambda name: getattr(state, name)
        positions, numbers, owner = (
            of(name).detach().cpu().numpy() for name in ("positions", "atomic_numbers", "system_idx")
        )
        cells = of("cell").detach().mT.cpu().numpy()
        pbc = np.broadcast_to(np.asarray(torch.as_tensor(of("pbc")).cpu()), 3)

        def make() -> list[Data]:
            structures = []
            for k, cell in enumerate(cells):
                atoms = Atoms(numbers[owner == k], positions[owner == k], cell=cell, pbc=pbc)
                structures.append(
                    from_atoms(atoms, f"{atoms.get_chemical_formula()} (system {k})", ReadOptions(tags="oc20"))
                )
                self._warnings.ask(self.model.members[0], structures[-1], f"{structures[-1].name}: ")
            return structures

        batch = self._moving((numbers.tobytes(), owner.tobytes(), pbc.tobytes()), cells, positions, make)
        found = self._replay(batch, True, self.compute_stress)
        finite = torch.stack([each.isfinite().all() for each in found.values()]).tolist()
        refuse_not_finite(dict(zip(found, finite, strict=True)), f"{len(cells)} systems")
        # Copies, since a replayed call would overwrite what torch-sim keeps.
        return {quantity: each.mean(0) for quantity, each in found.items()}
