"""The Lightning module: losses, moving average, bad batches, validation metrics."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_geometric.data import Batch

from molflt.attention.config import KernelKeys
from molflt.attention.far.ways import FarPlan
from molflt.attention.layout import Plan
from molflt.errors import InputError
from molflt.model.derivatives import derivatives
from molflt.model.energy import EnergyModel, ModelOutput
from molflt.prediction.metrics import EWT_THRESHOLD
from molflt.training.config import TrainConfig
from molflt.training.optimisation import auxiliary_weight, learning_rate_factor, make_optimiser, move_averages
from molflt.training.run_dir import record_bad_batch
from molflt.training.training_set import TrainingSet
from molflt.training.training_structures import PARTIAL_CHARGES, SIGN

EXPLODING = 10.0
"""A gradient longer than so many times what it is clipped to is a sign of a learning rate that is too high."""
LOOK_EVERY = 50
"""Steps after which flags of bad batches are read from the device: doing so at every step would make it wait."""
MOST_IN_A_ROW = 20
"""Training stops at so many bad batches one after another, though it was told to leave them out."""


@dataclass
class Step:
    """Facts of a step that are kept until flags are read.

    Attributes:
        number: of the step in the run.
        structures: names, sids, numbers of atoms, and energies in eV, predicted and true; None where there are none.
        loss, norm: of all ranks, and of the gradient.
    """

    number: int
    structures: dict[str, list[str] | Tensor | None]
    loss: Tensor
    norm: Tensor


class EnergyTask(lightning.LightningModule):
    """Learns ``config.data.target``; the scales of the losses are those of the training set.

    No step waits for a number from the device. A batch whose loss or gradient is not finite changes nothing: a flag
    on the device keeps the optimiser and the moving average where they are. Every :data:`LOOK_EVERY` steps flags are
    read, and such batches are written down.

    Attributes:
        trained, validated: metrics of the epoch and of the last validation in double precision, which loggers do not
            keep.
        n_left_out: batches of this epoch that were left out because their loss or gradient was not a number.
        n_steps, n_exploding: steps of this epoch whose gradient may be clipped, and those of them whose gradient was
            longer than :data:`EXPLODING` times the clip.
        current: the batch that is computed.
    """

    def __init__(
        self, config: TrainConfig, model: EnergyModel, split_names: list[str], training_set: TrainingSet
    ) -> None:
        super().__init__()
        self.config = config
        self.training_set = training_set
        self.forces = config.loss.forces
        self.force_weight = training_set.force_weight(config.loss.force_weight, config.loss.squared)
        self.model = model
        if self.forces:
            # Narrower ones fit the forces of the training set, and turn round where its bonds end.
            for parameter in (model.radial.centres, model.radial.log_widths):
                parameter.requires_grad_(False)
        self.trained: dict[str, float] = {}
        self.validated: dict[str, float] = {}
        self.n_left_out = self.n_steps = self.n_exploding = 0
        self.current: Batch | None = None
        self._in_a_row = 0
        self._steps: list[Step] = []
        self._sums: Tensor | None = None
        self._planned: tuple[int, FarPlan] | None = None
        self.average: EnergyModel | None = None
        if config.optimiser.ema_decay > 0:
            self.average = copy.deepcopy(model).requires_grad_(False)
        self.split_names = split_names
        self._errors: dict[int, Tensor] = {}

    @property
    def evaluated_model(self) -> EnergyModel:
        """The model that is validated and saved: the moving average where there is one."""
        return self.model if self.average is None else self.average

    def plan_of_epoch(self) -> Plan:
        """Lay out training batches by the widths at the epoch's start, also in a resumed run."""
        epoch, plan = self.current_epoch, self.model.plan()
        if plan.far is None:
            return plan
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, plan.far
        return dataclasses.replace(plan, far=self._planned[1])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the plan: another one would change rounding."""
        checkpoint["far_plan"] = self._planned and (self._planned[0], dataclasses.astuple(self._planned[1]))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it up again."""
        if (kept := checkpoint.get("far_plan")) is not None:
            self._planned = kept[0], FarPlan(*kept[1])

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Make everything random a function of seed and step, and dropout one of rank too.

        So a resumed run repeats it. This happens at every step, not once an epoch: loaders draw from the same
        generator, and after a resume they do so at another moment.
        """
        attention = self.config.model.attention
        every = attention.redraw_every if isinstance(attention, KernelKeys) else 0
        if every and self.global_step and self.global_step % every == 0:
            for model in (self.model, self.average):
                if model is not None:
                    model.redraw_features(hash((self.config.seed, self.global_step)) % 2**63)
        torch.manual_seed(hash((self.config.seed, self.global_step, self.global_rank)) % 2**63)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The losses of energies and forces, and the scheduled displacement loss.

        Each is a mean over the batches of all ranks. DDP takes the mean of the ranks' losses; so these are sums over
        the rank's own batch, divided by what a rank has on average.
        """
        self.current = batch
        target = batch[self.config.data.target]
        free = ~batch.fixed
        n_structures, n_free = self._mean_counts(batch)
        output, forces = self._evaluate(self.model, batch)
        wrong = output.energy - target
        logged = {"energy_mae": wrong.detach().abs().sum() / n_structures}
        facts, config = self.training_set, self.config.loss
        loss = wrong.new_zeros(())
        if config.interaction_weight:
            loss = facts.interaction_loss(wrong, batch[SIGN], config.squared, self.forces) / n_structures
            logged["interaction_loss"] = loss.detach()
            loss = config.interaction_weight * loss
        if config.energy_per == "atom":
            # Relative to the mean size, so that the loss keeps its scale.
            wrong = wrong * (self.training_set.mean_n_atoms / (batch.ptr[1:] - batch.ptr[:-1]))
        loss = loss + facts.energy_loss(wrong, config.squared, self.forces).sum() / n_structures
        if forces is not None:
            error = torch.where(free[:, None], forces - batch.forces, 0.0)
            logged["force_mae"] = error.detach().abs().sum() / (3 * n_free)
            sizes = facts.force_loss(error, config.squared) * free
            loss = loss + self.force_weight * sizes.sum() / n_free
        if config.charge_weight:
            charge_loss = facts.charge_loss(output, batch[PARTIAL_CHARGES], batch.positions, batch.ptr) / n_structures
            logged["charge_loss"] = charge_loss.detach()
            loss = loss + config.charge_weight * charge_loss
        if output.displacement is not None:
            displacement_loss = self._displacement_sum(output.displacement, batch) / (3 * n_free)
            weight = auxiliary_weight(
                self.global_step, self._total_steps(), config.auxiliary_start, config.auxiliary_end
            )
            logged["displacement_loss"] = displacement_loss.detach()
            loss = loss + weight * displacement_loss
        logged["loss"] = loss.detach()
        values = self._mean_over_ranks(torch.stack([value.to(torch.float64) for value in logged.values()]))
        # The mean over an epoch counts structures.
        self._logged = {name: value * n_structures for name, value in zip(logged, values, strict=True)}
        self._logged["structures"] = n_structures
        structures = {
            "name": batch.get("name"),
            "sid": batch.get("sid"),
            "n_atoms": batch.ptr.diff(),
            "predicted": output.energy.detach(),
            "label": target,
        }
        self._steps.append(Step(self.global_step, structures, values[-1], values[-1]))
        return loss.to(torch.float32)

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by the norm, and flag a loss or gradient that is not finite, on all ranks alike."""
        # The losses of energy and forces add up to a gradient that grows with the weight of the latter.
        longest = (gradient_clip_val or math.inf) * (1 + self.force_weight)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), longest)
        step = self._steps[-1]
        step.norm = norm
        self._bad = ~(torch.isfinite(step.loss) & torch.isfinite(norm))
        # Fused optimisers leave everything as it is where this is one.
        optimizer.found_inf = self._bad.to(torch.float32)  # type: ignore[attr-defined]
        self._logged |= {"exploding": norm > EXPLODING * longest, "steps": torch.ones_like(norm), "norm": norm}
        values = torch.stack([value.to(torch.float64) for value in self._logged.values()])
        values = torch.where(self._bad, 0.0, values)
        if self._sums is None:
            self._sums, self._longest = torch.zeros_like(values), torch.zeros_like(values[-1])
        self._sums, self._longest = self._sums + values, torch.maximum(self._longest, values[-1])

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Move the average towards the new weights, and now and then look for bad batches."""
        if self.average is not None:
            decay = self.config.optimiser.ema_decay
            move_averages(self.average.parameters(), self.model.parameters(), self.global_step, decay, ~self._bad)
        if len(self._steps) >= LOOK_EVERY:
            self.look()

    def look(self) -> None:
        """Read which of the last batches were bad, and write them down.

        Raises:
            InputError: one was, and it is not wanted that it is left out; or one after another was.
        """
        steps, self._steps = self._steps, []
        if not steps:
            return
        found = torch.stack([number.to(torch.float64) for step in steps for number in (step.loss, step.norm)])
        numbers = found.tolist()
        for step, loss, norm in zip(steps, numbers[::2], numbers[1::2], strict=True):
            if math.isfinite(loss) and math.isfinite(norm):
                self._in_a_row = 0
            else:
                self._leave_out(step, *(("the gradient", norm) if math.isfinite(loss) else ("the loss", loss)))

    def _leave_out(self, step: Step, name: str, value: float) -> None:
        self.n_left_out += 1
        self._in_a_row += 1
        epoch = self.current_epoch + 1
        path = record_bad_batch(
            Path(self.trainer.default_root_dir),
            step.structures,
            epoch=epoch,
            step=step.number,
            seed=self.config.seed,
            rank=self.global_rank,
            why=f"{name} became {value}",
        )
        message = diverged(name, value, epoch, step.number)
        if self.config.trainer.on_bad_batch == "stop":
            raise InputError(f"{message}. The batch is in {path}")
        if self._in_a_row >= MOST_IN_A_ROW:
            raise InputError(f"{message}. {MOST_IN_A_ROW} batches in a row were bad; they are in {path}")

    def read_epoch(self) -> None:
        """Read what the steps of an epoch added up to, and log it.

        Raises:
            InputError: as :meth:`look`.
        """
        self.look()
        self.trained = {}
        if self._sums is None:
            return
        *sums, longest = torch.cat([self._sums, self._longest[None]]).tolist()
        found, self._sums = dict(zip(self._logged, sums, strict=True)), None
        n_steps, norm, n_structures, n_exploding = map(found.pop, ("steps", "norm", "structures", "exploding"))
        if n_steps == 0:
            return
        if self.config.optimiser.clip_norm:
            self.n_steps, self.n_exploding = round(n_steps), round(n_exploding)
        self.trained = {f"train/{name}": total / n_structures for name, total in found.items()}
        self.trained |= {"train/grad_norm": norm / n_steps, "train/grad_norm_max": longest}
        self.log_dict(self.trained)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add up the errors of the evaluated model for each split."""
        self.current = batch
        output, forces = self._evaluate(self.evaluated_model, batch)
        error = (output.energy.detach() - batch[self.config.data.target]).to(torch.float64).abs()
        within = (error < EWT_THRESHOLD).sum()
        sums = [torch.full_like(error[0], len(error)), error.sum(), error.square().sum(), within]
        if forces is not None:
            free = ~batch.fixed[:, None]
            wrong = torch.where(free, forces.detach() - batch.forces, 0.0).to(torch.float64)
            sums += [3 * free.sum(), wrong.abs().sum(), wrong.square().sum()]
        found = torch.stack([value.to(torch.float64) for value in sums])
        self._errors[dataloader_idx] = self._errors.get(dataloader_idx, 0.0) + found

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of every split by its name."""
        errors, self._errors, self.validated = self._errors, {}, {}
        for i, name in enumerate(self.split_names):
            n, absolute, squared, within, *of_forces = self._mean_over_ranks(errors[i]).tolist()
            found = {"energy_mae": absolute / n, "energy_rmse": math.sqrt(squared / n), "ewt": within / n}
            if of_forces:
                n, absolute, squared = of_forces
                n = n or math.nan
                found |= {"force_mae": absolute / n, "force_rmse": math.sqrt(squared / n)}
            self.validated |= {f"{name}/{key}": value for key, value in found.items()}
        self.log_dict(self.validated)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam or AdamW; decay on matrices only; the schedule counts steps."""
        config, total = self.config.optimiser, self._total_steps()
        optimiser = make_optimiser(self.model, config)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: learning_rate_factor(step, config.warmup_steps, total, config.schedule)
        )
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _evaluate(self, model: EnergyModel, batch: Batch) -> tuple[ModelOutput, Tensor | None]:
        """The model's output for a batch, and forces (n_atoms, 3) eV/Å where they are learnt."""
        if not self.forces:
            return model(batch), None
        found = derivatives(model, batch, create_graph=model.training)
        return found.output, found.forces

    def _displacement_sum(self, predicted: Tensor, batch: Batch) -> Tensor:
        """Sum of the standardised errors over the components of free atoms."""
        target = (batch.positions_relaxed - batch.positions).to(predicted.dtype)
        free = (~batch.fixed).to(predicted.dtype)[:, None]
        scale = self.model.standardiser.displacement_std.to(predicted.dtype)
        return ((predicted - target).abs() * free).sum() / scale

    def _mean_counts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Structures and free atoms that a rank has on average in this step; never zero."""
        n_free = (~batch.fixed).sum(dtype=torch.float64)
        counts = self._mean_over_ranks(torch.stack([torch.full_like(n_free, batch.num_graphs), n_free]))
        # Of no free atoms every sum is zero.
        return counts[0], counts[1].clamp(min=1 / self.trainer.world_size)

    def _mean_over_ranks(self, values: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return values
        # Ranks are summed in place.
        values = values.clone()
        torch.distributed.all_reduce(values)
        return values / self.trainer.world_size

    def _total_steps(self) -> int:
        return int(self.trainer.estimated_stepping_batches)


def diverged(name: str, value: float, epoch: int, step: int) -> str:
    """Explain that a loss or metric is not a number any more; epochs are counted from one."""
    return (
        f"training diverged: {name} became {value} in epoch {epoch}, step {step}. "
        "Model files in the run directory are those of the last good epoch. Try again in another run directory with "
        "a lower optimiser.lr or optimiser.clip_norm, or a longer optimiser.warmup_steps"
    )
