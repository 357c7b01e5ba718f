"""The models of a stage by role: actor, reference and critic."""

from dataclasses import dataclass
from pathlib import Path

from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.backend.verl_worker import build_reference, without_replay
from services.trainer.checkpoints.lora import LoraAdapter
from services.trainer.learner.actor import Actor
from services.trainer.learner.critic import Critic
from services.trainer.learner.microbatches import MicroBatchLimits
from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.learner.verl_calls import WorkerCalls
from trinity.algorithm.token_advantage.token_batch import FloatMatrix
from trinity.config.plan.stage_plan import StagePlan


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

    @classmethod
    def load(
        cls,
        plan: StagePlan,
        *,
        model_directory: Path,
        policy_directory: Path,
        critic_directory: Path,
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
            reference = Reference(plan, model_directory, calls)
        critic = None
        if plan.needs_critic:
            of_critic = calls.limited_to(MicroBatchLimits.of_critic(plan))
            critic = Critic(plan, critic_directory, of_critic)
        return cls(actor=actor, reference=reference, critic=critic)
