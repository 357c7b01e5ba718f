"""The models of a stage by role: actor, reference and critic."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.backend.verl_worker import build_critic, build_reference, without_replay
from services.trainer.checkpoints.lora import LoraAdapter
from services.trainer.checkpoints.worker_state import load_weights, save_weights
from services.trainer.collectives import MetricSums
from services.trainer.learner.actor import Actor
from services.trainer.learner.microbatches import MicroBatchLimits
from services.trainer.learner.prepared_batch import CriticTargets, PreparedBatch, with_tokens
from services.trainer.learner.resume_source import (
    CheckpointContents,
    load_former_run,
    load_own_checkpoint,
    save_checkpoint,
)
from services.trainer.learner.verl_calls import (
    EngineOutputs,
    Matrix,
    VocabularyTeacher,
    WorkerCalls,
    on_device,
)
from services.trainer.types import Metrics, mean_over_passes
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix
from trinity.algorithm.value_loss import ValueInputs, value_loss
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.trainer import CriticConfig

DIRECTORY = "critic"
"""Subdirectory of its state in a checkpoint."""
logger = logging.getLogger(__name__)
REFERENCE_DIRECTORY = "reference"
"""Folder of a checkpoint with the reference, if that moves."""


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
        """Takes `num_updates` optimizer steps for each pass, each on its share of the rows.

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
        load_own_checkpoint(self._worker, directory / DIRECTORY, self._calls, self._contents.loaded)

    def load_former_run(self, directory: Path) -> None:
        """Loads the critic of a former run."""
        load_former_run(self._worker, directory, self._calls, self._contents.loaded)


def _critic_mask(prepared: PreparedBatch) -> BoolMatrix:
    return prepared.mask_BT if prepared.critic is None else prepared.critic.mask_BT


class AdapterDisabledReference:
    """The policy's own model with its adapter off, so that it is in memory only once."""

    def __init__(
        self, worker: TinkerTrainingWorker, adapter: LoraAdapter, calls: WorkerCalls
    ) -> None:
        self._worker = worker
        self._adapter = adapter
        self._calls = calls

    def logprobs(self, prepared: PreparedBatch) -> FloatMatrix:
        """Computes log-probabilities of the tokens, [B, T]."""
        with self._adapter.disabled(), without_replay(self._worker):
            return self._calls.compute_outputs(self._worker, prepared, ["logprobs"])["logprobs"]


class Reference:
    """A policy that only computes log-probabilities. Collective."""

    def __init__(self, plan: StagePlan, model_directory: Path, calls: WorkerCalls) -> None:
        self._calls = calls
        self._worker = build_reference(plan, model_directory)

    def logprobs(self, prepared: PreparedBatch) -> FloatMatrix:
        """Computes log-probabilities of the tokens, [B, T]."""
        return self._calls.compute_outputs(self._worker, prepared, ["logprobs"])["logprobs"]


class MovingReference(Reference):
    """A reference that follows the policy: every `interval` steps it keeps a share of itself.

    It is part of a checkpoint, so that a stage that goes on compares with the same weights.
    """

    def __init__(self, plan: StagePlan, model_directory: Path, calls: WorkerCalls) -> None:
        super().__init__(plan, model_directory, calls)
        self._interval = plan.config.algorithm.reference_interval
        self._decay = plan.config.algorithm.reference_decay

    def follow(self, actor: TinkerTrainingWorker, step: int) -> None:
        """Moves after the steps that `interval` divides, each rank its own part of the weights."""
        if step % self._interval:
            return
        with torch.no_grad(), on_device(actor), on_device(self._worker):
            policy = _own_parts(actor)
            for name, reference in _own_parts(self._worker).items():
                own = policy[name].to(reference.device)  # a reference may be kept on the host
                reference.lerp_(own, 1.0 - self._decay)

    def save(self, directory: Path) -> None:
        """Writes this rank's part into a checkpoint."""
        folder = directory / REFERENCE_DIRECTORY
        folder.mkdir(exist_ok=True)
        with on_device(self._worker):
            module, calls = self._worker.engine.module, self._calls
            save_weights(module, folder, calls.ranks.rank, calls.life)

    def load(self, directory: Path) -> None:
        """Loads this rank's part of a checkpoint; absent if the reference did not move yet."""
        folder = directory / REFERENCE_DIRECTORY
        if not folder.is_dir():
            logger.warning(
                "the reference begins to move from the model that the stage started from",
                extra={"checkpoint": str(directory)},
            )
            return
        with on_device(self._worker):
            load_weights(self._worker.engine.module, folder, self._calls.life)


def _own_parts(worker: TinkerTrainingWorker) -> dict[str, torch.Tensor]:
    """Returns the parts of the parameters that this rank holds, by name."""
    return {
        name: parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
        for name, parameter in worker.engine.module.named_parameters()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The models, all sharded over the same ranks."""

    actor: Actor
    reference: Reference | AdapterDisabledReference | None
    critic: Critic | None

    @property
    def trained_workers(self) -> tuple[TinkerTrainingWorker, ...]:
        """The workers with an optimizer; a reference's weights are on the host between uses."""
        critic = () if self.critic is None else (self.critic.worker,)
        return (self.actor.worker, *critic)

    @property
    def moving(self) -> MovingReference | None:
        """The reference, if it follows the policy."""
        return self.reference if isinstance(self.reference, MovingReference) else None

    def move_reference(self, step: int) -> None:
        """Lets the reference follow the policy after a step, if it does."""
        if self.moving is not None:
            self.moving.follow(self.actor.worker, step)

    @classmethod
    def load(
        cls,
        plan: StagePlan,
        *,
        model_directory: Path,
        policy_directory: Path,
        critic_directory: Path,
        teacher_directory: Path | None,
        calls: WorkerCalls,
    ) -> "Roles":
        """Loads them at the stage's start; the reference is the model, wherever the policy begins.

        Raises: UserError when a model cannot be read.
        """
        actor = Actor(plan, policy_directory, calls)
        reference: Reference | AdapterDisabledReference | None = None
        if plan.needs_reference and actor.adapter and policy_directory == model_directory:
            reference = AdapterDisabledReference(actor.worker, actor.adapter, calls)
        elif plan.needs_reference:
            kind = MovingReference if plan.moves_reference else Reference
            reference = kind(plan, model_directory, calls)
        if teacher_directory is not None:
            actor.teacher = VocabularyTeacher(plan, teacher_directory)
            actor.teacher.check_rows(actor.worker)
        critic = None
        if plan.needs_critic:
            of_critic = calls.limited_to(MicroBatchLimits.of_critic(plan))
            critic = Critic(plan, critic_directory, of_critic)
        return cls(actor=actor, reference=reference, critic=critic)
