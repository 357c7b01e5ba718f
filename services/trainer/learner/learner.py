"""The learner: the models of a stage on one rank, and the order of work in a train step."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from services.trainer.backend.vision import VisionInputs
from services.trainer.checkpoints.split import NamedSplits
from services.trainer.collectives import Ranks
from services.trainer.learner.actor import ActorUpdate
from services.trainer.learner.advantages import KlCoefficients, row_means, staleness_of
from services.trainer.learner.microbatches import MicroBatchLimits, MicroBatchSplitter
from services.trainer.learner.preparation import BatchPreparation
from services.trainer.learner.prepared_batch import PreparedBatch, with_token_values
from services.trainer.learner.roles import Roles
from services.trainer.learner.utilization import Utilization
from services.trainer.learner.verl_calls import (
    WorkerCalls,
    enter_device,
    free_device_memory,
    leave_device,
)
from services.trainer.types import Metrics, RowStatistics, StepOutcome, TrainBatch
from trinity.algorithm.rollout_correction.metrics import off_policy_metrics
from trinity.algorithm.token_advantage.token_batch import FloatMatrix
from trinity.config.plan.arithmetic import model_keys
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import StartCheckpoint

MAX_LOG_RATIO = 20.0


class Learner:
    """The models of a stage, and the order of work in a step. Every method is collective.

    learner = Learner(plan=plan, model_directory=start, ranks=ranks)
    outcome = learner.train_step(batch, learning_rate=plan.learning_rate(batch.step))
    tensors = learner.weights()
    """

    def __init__(
        self,
        *,
        plan: StagePlan,
        model_directory: Path,
        ranks: Ranks,
        critic_directory: Path | None = None,
        teacher_directory: Path | None = None,
        start_checkpoint: StartCheckpoint | None = None,
        on_micro_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Loads the models; without its own model the critic starts from the actor's.

        With `start_checkpoint`, policy and critic continue from a checkpoint of a former run.
        """
        seed_everything(plan.config.seed)
        self._has_rollout = plan.has_rollouts
        self._num_updates = plan.num_updates
        self._critic_warmup = plan.config.trainer.critic_warmup if plan.needs_critic else 0
        self._kl_coefficients = KlCoefficients.from_plan(plan)
        self._ranks = ranks
        self._roles = Roles.load(
            plan,
            model_directory=model_directory,
            policy_directory=_whole_policy(start_checkpoint) or model_directory,
            critic_directory=critic_directory or model_directory,
            teacher_directory=teacher_directory,
            calls=_worker_calls(plan, ranks, on_micro_batch, model_directory),
        )
        self._token_share = plan.config.trainer.recorded_token_share
        self._preparation = BatchPreparation(plan=plan, roles=self._roles)
        self._utilization = Utilization(
            config=self._roles.actor.model_config,
            num_ranks=ranks.num_ranks,
            num_passes=plan.config.trainer.ppo_epochs,
        )
        if start_checkpoint is not None and not start_checkpoint.is_whole:
            self._load_former_run(start_checkpoint)

    def train_step(
        self, batch: TrainBatch, learning_rate: float, critic_learning_rate: float = 0.0
    ) -> StepOutcome:
        """Prepares the batch, updates the critic, then the actor unless the critic warms up."""
        prepared = self._preparation.prepare_batch(
            batch, kl_coef=self._kl_coefficients.penalty.coef
        )
        metrics = dict(prepared.metrics)
        num_updates = self._num_updates(len(batch.rows))
        if self._roles.critic is not None and prepared.critic is not None:
            metrics |= self._roles.critic.update(prepared, critic_learning_rate, num_updates)
        update = None
        if batch.step > self._critic_warmup:
            update = self._roles.actor.update(
                prepared,
                learning_rate=learning_rate,
                kl_coef=self._kl_coefficients.loss.coef,
                num_updates=num_updates,
                before_update=self._preparation.for_update,
            )
            metrics |= update.metrics
        self._roles.move_reference(batch.step)
        metrics |= self._update_kl_coefficients(prepared, metrics.get("actor/kl"))
        lengths = [row.length for row in batch.rows]
        image_tokens = [row.num_image_tokens for row in batch.rows]
        metrics |= self._utilization.mfu_metrics(lengths, metrics, image_tokens)
        return self._outcome(prepared, update, metrics)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the actor's weights whole, by Hugging Face name; they alias the live ones."""
        return self._roles.actor.weights()

    def split_weights(self) -> NamedSplits | None:
        """Yields the same tensors as the ranks hold them; None where they are only had whole."""
        return self._roles.actor.split_weights()

    def adapter_base(self) -> bytes | None:
        """Hashes the base model of the actor's adapter, on all ranks; None without an adapter."""
        adapter = self._roles.actor.adapter
        return adapter.base_hash(self._ranks) if adapter is not None else None

    def save(self, directory: Path, step: int) -> None:
        """Writes this rank's part of the state, as far as `trainer.save_contents` names it."""
        self._roles.actor.save(directory, step)
        if self._roles.critic is not None:
            self._roles.critic.save(directory, step)
        if self._roles.moving is not None:
            self._roles.moving.save(directory)
        if self._ranks.is_first:
            self._kl_coefficients.save(directory)

    def load(self, directory: Path) -> None:
        """Continues from a checkpoint; its manifest must have been verified."""
        self._roles.actor.load(directory)
        if self._roles.critic is not None:
            self._roles.critic.load(directory)
        if self._roles.moving is not None:
            self._roles.moving.load(directory)
        self._kl_coefficients = self._kl_coefficients.load(directory)

    def enter_device(self) -> None:
        """Moves policy and critic to the device; the reference passes through it as it computes."""
        for worker in self._roles.trained_workers:
            enter_device(worker)

    def leave_device(self) -> None:
        """Drops the gradients and moves parameters and optimizer state to the host's memory.

        When it returns, the copies are complete and the GPU memory is free for the engine.
        """
        for worker in self._roles.trained_workers:
            leave_device(worker)
        free_device_memory()

    def _load_former_run(self, checkpoint: StartCheckpoint) -> None:
        self._roles.actor.load_former_run(checkpoint.policy)
        if self._roles.critic is not None and checkpoint.critic is not None:
            self._roles.critic.load_former_run(checkpoint.critic)

    def _update_kl_coefficients(self, prepared: PreparedBatch, kl_in_loss: float | None) -> Metrics:
        """Updates the coefficients from the step's divergences; returns the coefficient it used."""
        used = {} if kl_in_loss is None else {"actor/kl_coef": self._kl_coefficients.loss.coef}
        self._kl_coefficients = self._kl_coefficients.after_step(
            penalised=prepared.kl, in_loss=kl_in_loss, num_rows=len(prepared.rows)
        )
        return used

    def _outcome(
        self, prepared: PreparedBatch, update: ActorUpdate | None, metrics: Metrics
    ) -> StepOutcome:
        """Adds statistics of the rows, if they are rollouts.

        Rows without outputs from before the first update are left out: a policy that this step
        already changed cannot be compared with the rollouts.
        """
        of_update = update.outputs_before_update if update is not None else {}
        outputs = {**of_update, **prepared.policy}
        if not self._has_rollout or "logprobs" not in outputs:
            return StepOutcome(metrics=metrics, rows={})
        statistics = row_statistics(prepared, outputs["logprobs"])
        statistics = with_token_values(statistics, prepared, outputs["logprobs"], self._token_share)
        has_more = update is not None and len(update.first_rows) < len(prepared.rows)
        if update is not None and has_more and "logprobs" not in prepared.policy:
            prepared = prepared.select_rows(update.first_rows)
            outputs = {name: matrix_BT[update.first_rows] for name, matrix_BT in outputs.items()}
        metrics |= off_policy_gap_metrics(prepared, outputs)
        return StepOutcome(metrics=metrics, rows=statistics)


def _worker_calls(
    plan: StagePlan, ranks: Ranks, on_micro_batch: Callable[[], None], model_directory: Path
) -> WorkerCalls:
    splitter = MicroBatchSplitter(
        ranks=replace(ranks, num_sharing=plan.sequence_parallel_size),
        limits=MicroBatchLimits.of_policy(plan),
        keep_order=not plan.algorithm.can_balance_batch,
        deals_tokens=plan.config.trainer.balance_batch,
    )
    return WorkerCalls(
        splitter=splitter,
        inferring=MicroBatchLimits.without_gradients(plan),
        on_micro_batch=on_micro_batch,
        vision=VisionInputs.of_model(model_directory, model_keys(model_directory, {}) or {}),
    )


def _whole_policy(checkpoint: StartCheckpoint | None) -> Path | None:
    """Returns a whole model's directory; None for parts of ranks, which are loaded over a model."""
    return checkpoint.policy if checkpoint is not None and checkpoint.is_whole else None


def row_statistics(prepared: PreparedBatch, logprobs_BT: FloatMatrix) -> dict[int, RowStatistics]:
    """Returns statistics of the rollouts that were trained on, by position in the batch."""
    numbers = np.flatnonzero(prepared.mask_BT.any(-1) & ~prepared.is_expert_B)
    mask_NT = prepared.mask_BT[numbers]
    differences_NT = (logprobs_BT - prepared.rollout_logprobs_BT)[numbers]
    ratios_NT = np.exp(np.clip(differences_NT, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    means = zip(
        numbers.tolist(),
        row_means(ratios_NT, mask_NT).tolist(),
        row_means(prepared.advantages_BT[numbers], mask_NT).tolist(),
        strict=True,
    )
    return {
        prepared.rows[number].position: RowStatistics(mean_ratio=ratio, advantage=advantage)
        for number, ratio, advantage in means
    }


def off_policy_gap_metrics(
    prepared: PreparedBatch, outputs: Mapping[str, FloatMatrix]
) -> dict[str, float]:
    """Compares rollouts with the policy that the step started from, by its outputs."""
    numbers = np.flatnonzero(~prepared.is_expert_B)
    mask_NT = prepared.original_mask_BT[numbers]
    if not mask_NT.any():
        return {}

    def of_rollouts(matrix_BT: FloatMatrix | None) -> FloatMatrix | None:
        return None if matrix_BT is None else matrix_BT[numbers]

    logprobs_NT, rollout_NT = outputs["logprobs"][numbers], prepared.rollout_logprobs_BT[numbers]
    clipped_NT = of_rollouts(outputs.get("clipped"))
    metrics = off_policy_metrics(
        logprobs_BT=logprobs_NT,
        rollout_logprobs_BT=rollout_NT,
        mask_BT=mask_NT,
        entropies_BT=of_rollouts(outputs.get("entropies")),
        weights_BT=of_rollouts(prepared.corrections_BT),
        clipped_BT=None if clipped_NT is None else clipped_NT > 0,
        kept_BT=prepared.mask_BT[numbers],
        lags_BT=staleness_of(
            [prepared.rows[number] for number in numbers], prepared.batch.step, mask_NT.shape[1]
        ),
    )
    gaps = np.abs(logprobs_NT - rollout_NT)[mask_NT]
    return {
        "actor/rollout_logprob_diff": float(gaps.mean()),
        "actor/rollout_logprob_diff_max": float(gaps.max()),
        **metrics,
    }


def seed_everything(seed: int) -> None:
    """Seeds all generators: training uses no random numbers, but user-defined functions may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def make_deterministic(num_threads: int) -> None:
    """Makes arithmetic reproducible, as far as the machine allows; call it once per process.

    Uninitialized memory is not filled, which would take 5 % of a step on a CPU.
    """
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.utils.deterministic.fill_uninitialized_memory = False
