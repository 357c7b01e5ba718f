"""The critic: its values for a batch, and the update of its weights towards the returns."""

import time
from pathlib import Path

import torch
from tensordict import TensorDict
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.backend.verl_worker import build_critic
from services.trainer.collectives import MetricSums
from services.trainer.learner.metrics import mean_over_passes
from services.trainer.learner.prepared_batch import CriticTargets, PreparedBatch, with_tokens
from services.trainer.learner.resume_source import (
    CheckpointContents,
    load_former_run,
    load_own_checkpoint,
    save_checkpoint,
)
from services.trainer.learner.verl_calls import EngineOutputs, Matrix, WorkerCalls
from services.trainer.types import Metrics
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix
from trinity.algorithm.value_loss import ValueInputs, value_loss
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.trainer import CriticConfig

DIRECTORY = "critic"
"""Subdirectory of its state in a checkpoint."""


class ValueLoss:
    """The critic's loss over the micro-batches of a batch, accumulated as the policy's is."""

    def __init__(self, config: CriticConfig, totals: BatchTotals, num_ranks: int) -> None:
        self._config = config
        self._totals = totals
        self._num_ranks = num_ranks
        self.sums = MetricSums()

    def __call__(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: object
    ) -> tuple[torch.Tensor, Metrics]:
        """Computes the loss for verl's engine; the scale undoes gradient averaging over ranks."""
        del dp_group
        mask_NC = data["loss_mask"]
        inputs = ValueInputs(
            values_BT=torch.where(mask_NC, model_output["values"], 0.0),
            old_values_BT=data["old_values"],
            returns_BT=data["returns"],
            mask_BT=mask_NC,
        )
        value = value_loss(inputs, cliprange_value=self._config.cliprange_value)
        rows_N1 = data["row_weights"][:, None]
        share = loss_contribution(value, inputs, self._totals, self._config.loss_agg_mode, rows_N1)
        self.sums.add_share(value.name, share)
        for name, contribution in metric_contributions(value, inputs, self._totals).items():
            self.sums.add_share(name, contribution)
        return share * self._num_ranks, {}


class Critic:
    """The value model of a stage, one of the models of the ranks. Every method is collective.

    values_BT = critic.values(prepared)
    metrics = critic.update(prepared, learning_rate)
    """

    def __init__(self, plan: StagePlan, model_directory: Path, calls: WorkerCalls) -> None:
        self._config = plan.config.trainer.critic
        self._num_passes = plan.config.trainer.critic.ppo_epochs
        self._loss_scale_factor = plan.loss_scale_factor
        self._calls = calls
        self._contents = CheckpointContents.of_plan(plan)
        self._worker = build_critic(plan, model_directory)

    @property
    def worker(self) -> TinkerTrainingWorker:
        """Its worker."""
        return self._worker

    def values(self, prepared: PreparedBatch) -> FloatMatrix:
        """Returns the value of what precedes each token, [B, T]."""
        return self._calls.compute_outputs(self._worker, prepared, ["values"])["values"]

    def update(
        self, prepared: PreparedBatch, learning_rate: float, num_updates: int = 1
    ) -> Metrics:
        """Takes `num_updates` optimizer steps for each pass, each on rows of its own.

        Returns metrics of the whole batch.
        """
        started = time.perf_counter()
        cut = with_tokens(prepared.cut(num_updates), _critic_mask)
        parts = [part.prepared for part in cut]
        updates = [
            self._update(part, part.critic, learning_rate)
            for _ in range(self._num_passes)
            for part in parts
            if part.critic is not None
        ]
        return {
            **mean_over_passes(updates),
            "critic/lr": learning_rate,
            "critic/num_updates": float(len(updates)),
            "time/update_critic": time.perf_counter() - started,
        }

    def _update(
        self, prepared: PreparedBatch, targets: CriticTargets, learning_rate: float
    ) -> Metrics:
        """Takes one step; returns and old values stay those from before the first pass."""
        totals = prepared.totals(targets.mask_BT, self._loss_scale_factor)
        loss = ValueLoss(self._config, totals, self._calls.ranks.num_ranks)
        matrices: dict[str, Matrix] = {
            "loss_mask": targets.mask_BT,
            "old_values": targets.old_values_BT,
            "returns": targets.returns_BT,
        }
        for _ in self._calls.add_gradients(self._worker, loss, prepared, matrices, EngineOutputs()):
            pass
        step = self._worker.optimizer_step({"lr": float(learning_rate)})
        sums = loss.sums.all_reduce(self._calls.ranks)
        metrics = {f"critic/{name}": value for name, value in sums.items()}
        return {**metrics, "critic/grad_norm": float(step["grad_norm"])}

    def save(self, directory: Path, step: int) -> None:
        """Writes this rank's part of its full state into a checkpoint."""
        save_checkpoint(
            self._worker, directory / DIRECTORY, step, self._calls, self._contents.saved
        )

    def load(self, directory: Path) -> None:
        """Reads what `save` wrote."""
        load_own_checkpoint(
            self._worker, directory / DIRECTORY, self._calls.ranks, self._contents.loaded
        )

    def load_former_run(self, directory: Path) -> None:
        """Loads the critic of a former run."""
        load_former_run(self._worker, directory, self._calls.ranks, self._contents.loaded)


def _critic_mask(prepared: PreparedBatch) -> BoolMatrix:
    return prepared.mask_BT if prepared.critic is None else prepared.critic.mask_BT
