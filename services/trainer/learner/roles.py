"""The models of a stage by role: actor, reference and critic."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.backend.verl_worker import build_reference, without_replay
from services.trainer.checkpoints.lora import LoraAdapter
from services.trainer.checkpoints.worker_state import load_weights, save_weights
from services.trainer.learner.actor import Actor
from services.trainer.learner.critic import Critic
from services.trainer.learner.microbatches import MicroBatchLimits
from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.learner.teacher import VocabularyTeacher
from services.trainer.learner.verl_calls import WorkerCalls, on_device
from trinity.algorithm.token_advantage.token_batch import FloatMatrix
from trinity.config.plan.stage_plan import StagePlan

logger = logging.getLogger(__name__)

REFERENCE_DIRECTORY = "reference"
"""Folder of a checkpoint with the reference, if that moves."""


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
        """Reads what `save` wrote; a stage whose reference did not move until now has nothing."""
        folder = directory / REFERENCE_DIRECTORY
        if not folder.is_dir():
            logger.warning(
                "the reference begins to move from the model that the stage started from",
                extra={"checkpoint": str(directory)},
            )
            return
        with on_device(self._worker):
            load_weights(self._worker.engine.module, folder)


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
