"""What is learnt and how it is judged: the Lightning module with losses and validation metrics."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_geometric.data import Batch
from torchmetrics import MeanAbsoluteError, MeanMetric, MeanSquaredError, Metric, MetricCollection

from molflt.attention.config import KernelKeys
from molflt.attention.far.ways import FarPlan
from molflt.attention.layout import Plan
from molflt.errors import InputError, fitting
from molflt.model.derivatives import derivatives
from molflt.model.energy_model import EnergyModel, ModelOutput
from molflt.prediction.metrics import EWT_THRESHOLD
from molflt.training.config import TrainConfig
from molflt.training.optimisation import auxiliary_weight, learning_rate_factor, make_optimiser, move_averages
from molflt.training.parts import StepLoss, loss_in_parts, split
from molflt.training.run_directory import record_bad_batch
from molflt.training.training_set import TrainingSet

EXPLODING = 10.0
"""A gradient longer than so many times what it is clipped to is a sign of a learning rate that is too high."""
MOST_IN_A_ROW = 20
"""Training stops at so many bad batches one after another, though it was told to leave them out."""


class EnergyTask(lightning.LightningModule):
    """Learns ``config.data.target``; the scales of the losses are those of the training set.

    Attributes:
        validated: metrics of the last validation in double precision, which loggers do not keep.
        n_left_out: batches that were left out because their loss or gradient was not a number.
        n_steps, n_exploding: steps of this epoch whose gradient may be clipped, and those of them whose gradient was
            longer than :data:`EXPLODING` times the clip.
        n_in_parts: batches that did not fit into memory and were computed in parts.
    """

    def __init__(
        self, config: TrainConfig, model: EnergyModel, split_names: list[str], training_set: TrainingSet
    ) -> None:
        super().__init__()
        self.config = config
        self.training_set = training_set
        self.forces = config.loss.forces
        self.force_weight = training_set.force_weight(config.loss.force_weight)
        self.model = model
        if self.forces:
            # Narrower ones fit the forces of the training set, and turn round where its bonds end.
            for parameter in (model.radial.centres, model.radial.log_widths):
                parameter.requires_grad_(False)
        self.validated: dict[str, float] = {}
        self.n_left_out = self.n_in_parts = 0
        self.n_steps = self.n_exploding = 0
        self._in_a_row = 0
        self._left_out = False
        self._planned: tuple[int, FarPlan] | None = None
        self._last: tuple[Batch, Tensor, tuple[float, float]]
        self.average: EnergyModel | None = None
        if config.optimiser.ema_decay > 0:
            self.average = copy.deepcopy(model).requires_grad_(False)
        self.split_names = split_names
        self.metrics = nn.ModuleList(_metrics(self.forces) for _ in split_names)

    @property
    def evaluated_model(self) -> EnergyModel:
        """What is validated and saved: the moving average where there is one."""
        return self.model if self.average is None else self.average

    def plan_of_epoch(self) -> Plan:
        """How training batches of this epoch are laid out: with the widths at its start, also in a resumed run."""
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
        """Make everything random a function of seed and step, and dropout one of rank too: a resumed run repeats it.

        This happens at every step, not once an epoch: loaders draw from the same generator, and after a resume they
        do so at another moment.
        """
        self._left_out = False
        attention = self.config.model.attention
        every = attention.redraw_every if isinstance(attention, KernelKeys) else 0
        if every and self.global_step and self.global_step % every == 0:
            for model in (self.model, self.average):
                if model is not None:
                    model.redraw_features(hash((self.config.seed, self.global_step)) % 2**63)
        torch.manual_seed(hash((self.config.seed, self.global_step, self.global_rank)) % 2**63)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """L1 on the standardised energy, the force loss, and the scheduled displacement loss.

        Each is a mean over the batches of all ranks. DDP takes the mean of the ranks' losses; so these are sums over
        the rank's own batch, divided by what a rank has on average. None leaves a batch out.

        Raises:
            InputError: the loss is not a number.
        """
        counts = self._mean_counts(batch)
        whole = fitting(lambda: self._loss(batch, counts))
        found = whole[0] if whole else self._in_parts(batch, counts)
        logged = {**found.logged, "loss": found.loss.detach()}
        values = self._mean_over_ranks(torch.stack([value.to(torch.float64) for value in logged.values()]))
        self._last = batch, found.energy, counts
        # The same number on all ranks, which thus stop together: one alone would leave the others waiting.
        if not torch.isfinite(values[-1]):
            self._leave_out("the loss", float(values[-1]))
            return None
        for name, value in zip(logged, values, strict=True):
            # The mean over an epoch counts structures, of which all ranks together had so many.
            self._log(f"train/{name}", value, round(counts[0] * self.trainer.world_size))
        return found.loss.to(torch.float32)

    def _loss(self, batch: Batch, counts: tuple[float, float]) -> StepLoss:
        """The loss of a batch or of a part of one; like all that is logged, a sum over what a rank has on average."""
        n_structures, n_free = counts
        output, forces = self._evaluate(self.model, batch)
        absolute = (output.energy - batch[self.config.data.target]).abs()
        logged = {"energy_mae": absolute.detach().sum() / n_structures}
        if self.config.loss.energy_per == "atom":
            # Relative to the mean size, so that the loss keeps its scale.
            absolute = absolute * (self.training_set.mean_n_atoms / (batch.ptr[1:] - batch.ptr[:-1]))
        loss = absolute.sum() / n_structures / self.training_set.statistics.spread
        if forces is not None:
            error = (forces - batch.forces)[~batch.fixed]
            logged["force_mae"] = error.detach().abs().sum() / (3 * n_free)
            loss = loss + self.force_weight * _norms(error) / n_free / self.training_set.force_std
        if output.displacement is not None:
            displacement_loss = self._displacement_sum(output.displacement, batch) / (3 * n_free)
            loss_config = self.config.loss
            weight = auxiliary_weight(
                self.global_step, self._total_steps(), loss_config.auxiliary_start, loss_config.auxiliary_end
            )
            logged["displacement_loss"] = displacement_loss.detach()
            loss = loss + weight * displacement_loss
        return StepLoss(loss, logged, output.energy.detach())

    def _in_parts(self, batch: Batch, counts: tuple[float, float]) -> StepLoss:
        self.n_in_parts += 1
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return loss_in_parts(batch, lambda part: self._loss(part, counts), parameters)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Differentiate the loss, in parts if there is not enough memory for the whole.

        Raises:
            InputError: there is not enough on one of several processes, or for a single structure.
        """
        if fitting(lambda: loss.backward(*args, **kwargs)):
            return
        batch, _, counts = self._last
        if self.trainer.world_size > 1:
            # The others may have their share of these gradients already.
            raise InputError(
                f"out of memory with a batch of {batch.num_nodes:,} atoms, while gradients are shared by processes; "
                "go on with a smaller data.max_atoms"
            )
        # The graph hangs on the loss, which others refer to as well.
        loss.detach_()
        for parameter in self.model.parameters():
            parameter.grad = None
        self._in_parts(batch, counts).loss.backward()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm, which is logged; a gradient that is not a number is not followed."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if not parameters:
            return
        # The losses of energy and forces add up to a gradient that grows with the weight of the latter.
        longest = (gradient_clip_val or math.inf) * (1 + self.force_weight)
        norm = nn.utils.clip_grad_norm_(parameters, longest)
        if not torch.isfinite(norm):
            optimizer.zero_grad(set_to_none=True)
            self._leave_out("the gradient", float(norm))
            return
        if gradient_clip_val:
            self.n_steps += 1
            self.n_exploding += bool(norm > EXPLODING * longest)
        self.log("train/grad_norm", norm, on_step=False, on_epoch=True, batch_size=1)
        self.log("train/grad_norm_max", norm, on_step=False, on_epoch=True, reduce_fx="max")

    def _leave_out(self, name: str, value: float) -> None:
        """Write down which batch it was, and go on without it if that is wanted.

        Raises:
            InputError: it is not wanted, or one batch after another is bad.
        """
        batch, energy, _ = self._last
        self._left_out = True
        self.n_left_out += 1
        self._in_a_row += 1
        path = record_bad_batch(
            Path(self.trainer.default_root_dir),
            batch,
            energy,
            batch[self.config.data.target],
            epoch=self.trainer.current_epoch + 1,
            step=self.global_step,
            seed=self.config.seed,
            rank=self.global_rank,
            why=f"{name} became {value}",
        )
        message = diverged(name, value, self.trainer)
        if self.config.trainer.on_bad_batch == "stop":
            raise InputError(f"{message}. The batch is in {path}")
        if self._in_a_row >= MOST_IN_A_ROW:
            raise InputError(f"{message}. {MOST_IN_A_ROW} batches in a row were bad; they are in {path}")

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Move the average towards the new weights."""
        if self._left_out:
            return
        self._in_a_row = 0
        if self.average is not None:
            decay = self.config.optimiser.ema_decay
            move_averages(self.average.parameters(), self.model.parameters(), self.global_step, decay)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect the errors of the evaluated model for each split."""
        if not fitting(lambda: self._validate(batch, dataloader_idx)):
            self.n_in_parts += 1
            for part in split(batch):
                self.validation_step(part, batch_idx, dataloader_idx)

    def _validate(self, batch: Batch, split_index: int) -> None:
        output, forces = self._evaluate(self.evaluated_model, batch)
        energy = output.energy.detach()
        target = batch[self.config.data.target]
        metrics = self._metrics_of(split_index)
        metrics["energy"].update(energy, target)
        metrics["ewt"].update(((energy - target).abs() < EWT_THRESHOLD).to(energy.dtype))
        if forces is not None:
            free = ~batch.fixed
            metrics["forces"].update(forces[free].detach(), batch.forces[free])

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of every split by its name, and begin them anew."""
        self.validated = {}
        for i, name in enumerate(self.split_names):
            for key, metric in self._metrics_of(i).items():
                found = metric.compute()
                values = found if isinstance(found, dict) else {key: found}
                self.validated |= {f"{name}/{key}": float(value) for key, value in values.items()}
                metric.reset()
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

    def _mean_counts(self, batch: Batch) -> tuple[float, float]:
        """Structures and free atoms that a rank has on average in this step; never zero."""
        free = (~batch.fixed).sum().to(torch.float64)
        counts = self._mean_over_ranks(torch.stack([torch.full_like(free, batch.num_graphs), free]))
        n_structures, n_free = counts.tolist()
        return n_structures, n_free or 1.0

    def _mean_over_ranks(self, values: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return values
        # A copy: ranks are summed in place.
        reduced = self.trainer.strategy.reduce(values.clone(), reduce_op="mean")
        assert isinstance(reduced, Tensor)
        return reduced

    def _metrics_of(self, split: int) -> dict[str, Metric | MetricCollection]:
        metrics = self.metrics[split]
        assert isinstance(metrics, nn.ModuleDict)
        return dict(metrics.items())  # type: ignore[arg-type]

    def _total_steps(self) -> int:
        return int(self.trainer.estimated_stepping_batches)

    def _log(self, name: str, value: Tensor, n: int) -> None:
        self.log(name, value.to(torch.float32), on_step=False, on_epoch=True, batch_size=n)


def _norms(vectors: Tensor) -> Tensor:
    """Sum of the lengths of vectors (n, 3): invariant under rotation, as a sum over components is not."""
    # The length has no derivative at zero, which a force that symmetry forbids attains.
    return (vectors.square().sum(dim=-1) + 1e-16).sqrt().sum()


def diverged(name: str, value: float, trainer: lightning.Trainer) -> str:
    """What to say when a loss or metric is not a number any more."""
    return (
        f"training diverged: {name} became {value} in epoch {trainer.current_epoch + 1}, step {trainer.global_step}. "
        "Model files in the run directory are those of the last good epoch. Try again in another run directory with "
        "a lower optimiser.lr or optimiser.clip_norm, or a longer optimiser.warmup_steps"
    )


def _metrics(forces: bool) -> nn.ModuleDict:
    """What is measured on a validation split, in double precision: errors are a few meV on energies of many eV."""
    energy = MetricCollection({"energy_mae": MeanAbsoluteError(), "energy_rmse": MeanSquaredError(squared=False)})
    found: dict[str, Any] = {"energy": energy, "ewt": MeanMetric()}
    if forces:
        found["forces"] = MetricCollection(
            {"force_mae": MeanAbsoluteError(), "force_rmse": MeanSquaredError(squared=False)}
        )
    return nn.ModuleDict({name: metric.set_dtype(torch.float64) for name, metric in found.items()})
