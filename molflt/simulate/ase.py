"""A model as an ASE calculator: energy, forces and stress.

The numerical method of the far field is held while atoms move. It is chosen by counting, and the grid of a mesh
follows the size of the cell. Both change in integer steps as a structure changes, and the energy then jumps by up to
the model's tolerance ε. A relaxation, dynamics or a finite difference needs one smooth function: the first choice is
kept (DESIGN §3, "Smoothness"). Other discrete quantities, such as the neighbour list, affect only rounding, and are
kept until an atom has moved too far.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes
from ase.stress import full_3x3_to_voigt_6_stress
from torch import Tensor
from torch_geometric.data import Batch, Data

from molflt.attention.layout import Plan
from molflt.data.ase import charge_of, formula_of, from_atoms, refuse_charges
from molflt.data.batch import collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.quality.domain import GEOMETRIC
from molflt.data.reading import ReadOptions
from molflt.errors import InputError, renamed, warn_caller
from molflt.model.charges import dipoles
from molflt.model.compiled import compile_model, is_wanted
from molflt.model.derivatives import derivatives
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel
from molflt.prediction.members import ModelPath
from molflt.prediction.model import Model, load
from molflt.prediction.predict import choose_device, domain_violations, doubt_of_forces, why_no_forces
from molflt.simulate.replay import Replay
from molflt.vocabulary import DIFFERENTIABLE, Compile, TagConvention

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_ENERGIES, _DERIVATIVES = ("energy", "free_energy"), ("forces", "stress")
LONG = 1_000
"""Steps of dynamics after which compiling the model pays off."""


class MolFLTCalculator(Calculator):
    """Energy, forces and stress of a model, or of an ensemble: the mean over its members.

        from molflt import MolFLTCalculator

        atoms.calc = MolFLTCalculator("runs/first", dtype="float64")
        BFGS(FrechetCellFilter(atoms)).run(fmax=0.01)

    Single precision leaves a noise of about 1e-5 eV/Å in the forces: good enough for dynamics, too much for a tight
    relaxation or for finite displacements (phonons, vibrations), which need ``dtype="float64"``.

    A model trained on relaxed energies (``y_relaxed``) offers ``energy`` and ``free_energy`` only. Per-atom energies
    are not offered: a model may add a mean per structure, which belongs to no atom.

    The numerical method of the far field is chosen for a structure when it is first seen and kept while its atoms
    move, so that the energy is one smooth function. Where that method is the mesh (large structures), forces are the
    derivative of the energy and add up to zero to the model's tolerance only.

    Ions and open shells are refused, also when a charge or moment is set after a calculation: see
    :func:`molflt.data.ase.refuse_charges`.

    Args:
        model: a model file, a run directory, the directory of an ensemble, a list of these, a
            :class:`molflt.Model`, or a loaded model file.
        device: auto (a GPU where there is one; for a ``molflt.Model``, where it is), cpu or cuda.
        dtype: precision to compute in, "float32", "float64" or the same of torch; None: as trained.
        tags: how to read the tags of atoms, see :func:`molflt.data.ase.from_atoms`.
        allow_charged: take ions and open shells as if they were neutral and closed-shell.
        compile: whether the model is compiled, which takes half a minute: off, on, or auto, which does so on a GPU
            after 1,000 steps, if there is a C compiler.

    Attributes:
        model: the model in use; a given one is not changed.
        uncertainty_eV: of the last energy: the half-width of the 68 % interval if the model's file states it; else
            the standard deviation over the members of an ensemble (n − 1 in the denominator), or None for one model.
            It is unreliable outside the model's domain, as warnings say. In ``results`` it would break ASE's writers.
        forces_std: (n_atoms, 3) eV/Å, the standard deviation over the members of an ensemble, of every component of
            the forces; None for one model, or where they were not computed.

    Raises:
        InputError: the model cannot be used; in a calculation: a structure that cannot be computed.
        PropertyNotImplementedError: in a calculation: forces or stress that do not exist.
    """

    name = "molflt"
    # Both are compared at every request, and neither is used.
    ignored_changes = {"initial_magmoms", "initial_charges"}  # noqa: RUF012 (as ASE declares it)
    energy_std = renamed("energy_std", "uncertainty_eV")

    def __init__(
        self,
        model: ModelPath | Sequence[ModelPath] | Model | LoadedModel,
        device: str = "auto",
        dtype: str | torch.dtype | None = None,
        tags: TagConvention = "auto",
        allow_charged: bool = False,
        compile: Compile = "off",
    ) -> None:
        super().__init__()
        self.model = as_model(model, device, dtype)
        self._n_steps, self._steps_before = 0, 0 if compile == "on" else LONG
        self._compiles = is_wanted(compile, self.model.device)
        self.tags = tags
        self._options = ReadOptions(allow_charged, charges=self.model.members[0].model.config.takes_ions, tags=tags)
        charges = ("charges", "dipole") if all(m.model.config.partial_charges for m in self.model.members) else ()
        self.implemented_properties = [*_ENERGIES, *(_DERIVATIVES if self._differentiable else ()), *charges]
        self.uncertainty_eV: float | None = None
        self.forces_std: np.ndarray | None = None
        self._moving = MovingBatch(self.model)
        # A given model stays as it was if these are compiled.
        self._models = [copy.copy(member.model) for member in self.model.members]
        self._replay = Replay(partial(values_of, self._models))
        self._warnings, self._broken, self._stress = DomainWarnings(), set[str](), False
        self._tags_seen: tuple[bytes, bytes] | None = None
        self._tags_meant: np.ndarray | None = None

    @property
    def _differentiable(self) -> bool:
        return self.model.target in DIFFERENTIABLE

    def get_property(self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True) -> Any:
        """Return a property of atoms: energy, free_energy (the same), forces or stress; see ASE."""
        if name in _DERIVATIVES and (reason := why_no_forces(self.model.target)):
            raise PropertyNotImplementedError(f"no {name}: this model {reason}")
        return super().get_property(name, atoms, allow_calculation)

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return the changes since the last calculation, unlike ASE with tags and charge."""
        refuse_charges(atoms, formula_of(atoms), self._options)
        changes: list[str] = super().check_state(atoms, tol)
        name = formula_of(atoms)
        if self.atoms is not None and charge_of(self.atoms, name, self._options) != charge_of(
            atoms, name, self._options
        ):
            changes.append("charge")
        if self.atoms is not None and not np.array_equal(self.atoms.get_tags(), atoms.get_tags()):
            changes.append("tags")
        return changes

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Compute the requested properties; an energy alone takes no gradient. See ASE."""
        super().calculate(atoms, properties, system_changes)
        if self.atoms is None:
            raise InputError("the calculator has seen no atoms yet; give some")
        name = formula_of(self.atoms)
        has_volume = self.atoms.pbc.any() and self.atoms.cell.rank == 3
        if "stress" in properties and not has_volume:
            raise PropertyNotImplementedError(
                f"no stress for {name}: it is an energy per volume, and needs a periodic direction and three lattice "
                "vectors; set pbc and the cell, or relax positions only"
            )
        # Whoever asks for forces and then for the stress will do so at the next step, where one pass gives both.
        self._stress = has_volume and (self._stress or "stress" in properties)
        derived = not {"forces", "stress"}.isdisjoint(properties)
        batch = self._batch(self.atoms, name)
        if self._compiles and self._n_steps == self._steps_before:
            for model in self._models:
                compile_model(model, print)
            self._replay = Replay(partial(values_of, self._models))
        self._n_steps += 1
        if derived and (text := doubt_of_forces(self.model.metadata)):
            self._warnings.say(text, "forces")
        values = _on_host(self._replay(batch, derived, derived and self._stress))
        refuse_not_finite({key: np.isfinite(each).all() for key, each in values.items()}, name)
        energy = float(values["energy"].mean())
        self.results.update({"energy": energy, "free_energy": energy})
        if "forces" in values:
            self.results["forces"] = values["forces"].mean(axis=0)
        if "charges" in values:
            self.results["charges"] = values["charges"].mean(axis=0)
            self.results |= {} if self.atoms.pbc.any() else {"dipole": values["dipole"].mean(axis=0)[0]}
        if "stress" in values:
            self.results["stress"] = full_3x3_to_voigt_6_stress(values["stress"].mean(axis=0)[0])
        std = {key: each.std(axis=0, ddof=1) for key, each in values.items()} if len(self._models) > 1 else {}
        spread, known = std.get("energy"), self.model.uncertainty
        if known is not None:
            spread = known.half_width(np.zeros(1) if spread is None else spread, broken=[self._broken])
        self.uncertainty_eV = None if spread is None else float(spread[0])
        self.forces_std = std.get("forces")

    def _batch(self, atoms: Atoms, name: str) -> Batch:
        """Return one structure on the model's device with its present neighbour list."""
        refuse_charges(atoms, name, self._options)
        numbers, tags = atoms.numbers.tobytes(), atoms.get_tags().tobytes()
        charge = charge_of(atoms, name, self._options)

        def make() -> list[Data]:
            # Other data that the user keeps with the atoms, such as old labels, must not affect a calculation.
            bare = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc, tags=atoms.get_tags())
            bare.info = {key: value for key, value in atoms.info.items() if key == "occupancy"}
            if charge:
                bare.info["charge"] = charge
            # The meaning of tags is inferred once from the heights of the atoms and must not change while they move.
            if (numbers, tags) == self._tags_seen:
                bare.set_tags(self._tags_meant)
                data = from_atoms(bare, name, replace(self._options, tags="oc20"))
            else:
                data = from_atoms(bare, name, self._options)
                self._tags_seen, self._tags_meant = (numbers, tags), data.tags.numpy()
            self._broken = self._warnings.ask(self.model.members[0], data)
            return [data]

        same = numbers, tags, charge, atoms.pbc.tobytes()
        return self._moving(same, atoms.cell.array, atoms.positions, make)


def values_of(models: Iterable[EnergyModel], batch: Batch, forces: bool, stress: bool) -> dict[str, Tensor]:
    """Compute the output of each model for a batch, on its device.

    These are energy (n_models, n_structures), forces (n_models, n_atoms, 3), stress (n_models, n_structures, 3, 3),
    and of models of partial charges these, (n_models, n_atoms) e, and dipole, (n_models, n_structures, 3) e Å.
    """
    found: dict[str, list[Tensor]] = {}
    for model in models:
        if forces:
            derived = derivatives(model, batch, stress)
            output, more = derived.output, {"forces": derived.forces}
            more |= {} if derived.stress is None else {"stress": derived.stress}
        else:
            with torch.no_grad():
                output, more = model(batch), {}
        each = {"energy": output.energy, **more}
        if model.config.partial_charges and output.charges is not None:
            each["charges"] = output.charges[:, 0]
            each["dipole"] = dipoles(each["charges"], batch.positions, batch.batch, len(output.energy))
        for name, tensor in each.items():
            found.setdefault(name, []).append(tensor.detach())
    return {name: torch.stack(tensors) for name, tensors in found.items()}


def refuse_not_finite(finite: Mapping[str, Any], name: str) -> None:
    """Raise InputError for the first quantity that is not finite; ``name``: of the structures."""
    for quantity, is_finite in finite.items():
        if not is_finite:
            raise InputError(
                f"{name}: the model's {quantity} is not finite; check the structure for atoms that overlap"
            )


def _on_host(found: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Copy results in one piece: on a GPU it is what a step waits for."""
    flat = torch.cat([tensor.flatten() for tensor in found.values()]).cpu()
    parts = flat.split([tensor.numel() for tensor in found.values()])
    return {name: part.view(tensor.shape).numpy() for (name, tensor), part in zip(found.items(), parts, strict=True)}


def as_model(model: Any, device: str, dtype: str | torch.dtype | None) -> Model:
    """Return a model for a calculator, see :class:`MolFLTCalculator`; a given one is unchanged."""
    precision = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and precision not in _DTYPES.values():
        raise InputError(f"dtype={dtype!r}: choose 'float32', 'float64' or None, which is as trained")
    if isinstance(model, LoadedModel):
        return Model([copy.deepcopy(model)], device, precision)
    if isinstance(model, Model):
        same_device = device == "auto" or choose_device(device) == model.device
        if same_device and precision in (None, model.members[0].model.dtype):
            return model
        return Model(copy.deepcopy(model.members), str(model.device) if device == "auto" else device, precision)
    return load(model, device, precision)


class MovingBatch:
    """Batch of structures that move in small steps, laid out anew when one moves too far.

    The ways and grids of the far field are kept as long as structures consist of the same atoms.

    Args:
        model: whose plan is made once, at its present weights.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._plan = Plan.covering([member.model.plan() for member in model.members])
        if not self._plan.wide:
            self._plan = replace(self._plan, skin=SKIN[model.device.type])
        self._kept: tuple[tuple[Any, ...], bytes, np.ndarray, Plan, Batch] | None = None

    def __call__(
        self, atoms: tuple[Any, ...], cells: np.ndarray, positions: np.ndarray, make: Callable[[], Sequence[Data]]
    ) -> Batch:
        """Return the batch with the atoms at their present positions.

        Args:
            atoms: identifies the structures, independently of positions.
            cells: (n_structures, 3, 3) Å.
            positions: (n_atoms, 3) Å.
            make: returns the structures as they are now.
        """
        plan = self._plan
        if self._kept is not None and self._kept[0] == atoms:
            _, of_cells, origin, plan, batch = self._kept
            # Also false for NaN.
            near = ((positions - origin) ** 2).sum(axis=1).max(initial=0.0) <= plan.skin**2
            if near and of_cells == cells.tobytes():
                moved = copy.copy(batch)
                moved.positions = torch.from_numpy(positions.copy()).to(self._model.device, non_blocking=True)
                return moved
        config = self._model.members[0].model.config
        reach = config.neighbour_cutoff + 2 * plan.skin
        batch = collate([attach_neighbours(data, reach, config.all_pairs_if_isolated) for data in make()], plan)
        plan = plan.holding(batch.layout)
        batch = batch.to(self._model.device)
        self._kept = atoms, cells.tobytes(), positions.copy(), plan, batch
        return batch


SKIN = {"cpu": 0.1, "cuda": 0.3}
"""Å that an atom may move before structures are laid out anew. Twice that is added to the reach of the neighbour
list: on a CPU every additional neighbour takes time, whereas a GPU would wait for the layout."""


class DomainWarnings:
    """Warnings that are given once per reason, even if dynamics meet it at every step.

    A reason that states a distance differs at every step, and is given once for each composition.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def ask(self, loaded: LoadedModel, data: Data, where: str = "") -> set[str]:
        """Return the rules that a structure breaks, and warn of new reasons; ``where`` tells it from others."""
        reasons = domain_violations(loaded, data)
        for rule, text in reasons:
            atoms = data.atomic_numbers.sort().values.tolist()
            what = f"{rule} {atoms}" if rule in GEOMETRIC else text
            remedy = "energies and forces are unreliable: check the structure, or train on others like it"
            self.say(f"outside the model's domain: {where}{text}; {remedy}", what)
        return {rule for rule, _ in reasons}

    def say(self, text: str, what: str) -> None:
        """Warn unless there was a warning of ``what`` before."""
        if what not in self._said:
            self._said.add(what)
            warn_caller(text, UserWarning)
