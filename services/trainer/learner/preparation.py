"""Prepares a batch for its losses: forward passes, then advantages."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from services.trainer.estimation import EstimationFunctions, actor_outputs, has_teacher
from services.trainer.learner.advantages import (
    STUDENT,
    AdvantageEstimate,
    RolloutRows,
    estimate_advantages,
    estimate_anew,
    select_tokens,
    token_selection,
)
from services.trainer.learner.prepared_batch import (
    AdvantageInputs,
    CriticTargets,
    PreparedBatch,
)
from services.trainer.types import TrainBatch
from trinity.algorithm.rollout_correction.correction import CorrectionResult
from trinity.algorithm.token_advantage.token_batch import FloatMatrix, IntVector, TokenAdvantages
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:  # verl takes seconds to import
    from services.trainer.learner.roles import Roles

ScalarT = TypeVar("ScalarT", bound=np.generic)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutputs:
    """The results of the forward passes, [B, ScalarT]."""

    policy: Mapping[str, FloatMatrix]
    """Computed before the step: log-probabilities, and other inputs of the advantage."""
    reference_BT: FloatMatrix | None
    values_BT: FloatMatrix | None
    metrics: Mapping[str, float]


class BatchPreparation:
    """Prepares the batches of a stage. Collective.

    prepared = preparation.prepare_batch(batch, kl_coef=0.001)
    """

    def __init__(self, *, plan: StagePlan, roles: "Roles") -> None:
        self._has_rollout = plan.has_rollouts
        # A user-defined class declares its inputs once it is loaded.
        self._functions = EstimationFunctions.from_plan(plan)
        self._actor_outputs = actor_outputs(plan)
        self._has_teacher = has_teacher(plan)
        self._select_tokens = token_selection(plan.algorithm)
        self._seed = plan.config.seed
        self._roles = roles

    def prepare_batch(self, batch: TrainBatch, *, kl_coef: float) -> PreparedBatch:
        """Computes the inputs of the step before weights change; `kl_coef` is the reward penalty's.

        Raises: UserError when an advantage needs data that the batch does not have.
        """
        prepared = PreparedBatch.from_batch(batch)
        outputs = self._forward_passes(prepared)
        prepared = replace(
            prepared,
            policy=outputs.policy,
            reference_logprobs_BT=outputs.reference_BT,
            metrics=outputs.metrics,
        )
        if not self._has_rollout and self._select_tokens is not None:
            selected_BT = select_tokens(self._select_tokens, prepared, self._seed)
            return replace(prepared, selected_BT=selected_BT)
        if not self._has_rollout or prepared.is_expert_B.all():
            return prepared
        return self._with_advantages(prepared, outputs.values_BT, kl_coef)

    def _with_advantages(
        self, prepared: PreparedBatch, values_BT: FloatMatrix | None, kl_coef: float
    ) -> PreparedBatch:
        started = time.perf_counter()
        rollouts = RolloutRows.from_prepared(prepared, values_BT)
        estimate = estimate_advantages(self._functions, rollouts, kl_coef)
        estimated = _with_estimate(prepared, rollouts.numbers, estimate, values_BT)
        if self._functions.follows_policy:
            inputs = _advantage_inputs(estimated, rollouts.numbers, estimate)
            estimated = replace(estimated, advantage_inputs=inputs)
        if self._select_tokens is not None:
            selected_BT = select_tokens(self._select_tokens, estimated, self._seed)
            estimated = replace(estimated, selected_BT=selected_BT)
        seconds = {"time/adv": time.perf_counter() - started}
        return replace(estimated, metrics={**prepared.metrics, **estimate.metrics, **seconds})

    def for_update(self, prepared: PreparedBatch, number: int) -> PreparedBatch:
        """Returns an update's rows with advantages and selected tokens of the current policy.

        `number` counts the updates of the step from 0. Update 0 uses the policy's outputs from
        before the step, each later one runs another forward pass.
        """
        makes_anew = self._functions.follows_policy or self._functions.corrects_in_loss
        if not (makes_anew or self._select_tokens) or prepared.is_expert_B.all():
            return prepared
        if number:
            prepared = replace(prepared, policy=self._outputs_now(prepared))
        if makes_anew:
            prepared = _made_anew(prepared, *estimate_anew(self._functions, prepared))
        if self._select_tokens is not None:
            selected_BT = select_tokens(self._select_tokens, prepared, self._seed, number)
            prepared = replace(prepared, selected_BT=selected_BT)
        return prepared

    def _outputs_now(self, prepared: PreparedBatch) -> Mapping[str, FloatMatrix]:
        """Computes the policy's outputs for the rows that an update trains or compares."""
        mask_BT, inputs = prepared.mask_BT, prepared.advantage_inputs
        if self._functions.corrects_in_loss:
            mask_BT = prepared.original_mask_BT
        elif inputs is not None:
            mask_BT = inputs.mask_BT
        return self._policy_outputs(replace(prepared, mask_BT=mask_BT))[0]

    def _policy_outputs(
        self, prepared: PreparedBatch
    ) -> tuple[Mapping[str, FloatMatrix], dict[str, float]]:
        """Computes the policy's outputs that are needed, and the seconds of each pass."""
        actor, names = self._roles.actor, self._actor_outputs
        metrics: dict[str, float] = {}
        policy: Mapping[str, FloatMatrix] = {}
        if names:
            policy, metrics["time/old_log_prob"] = _timed(
                lambda: actor.compute_outputs(prepared, names)
            )
        if self._has_teacher and any(row.temperature != 1.0 for row in prepared.rows):
            student, metrics["time/student"] = _timed(
                lambda: actor.compute_outputs(_at_temperature_1(prepared), ("logprobs",))
            )
            policy = {**policy, STUDENT: student["logprobs"]}
        return policy, metrics

    def _forward_passes(self, prepared: PreparedBatch) -> ForwardOutputs:
        """Runs the forward passes that are needed, and times each."""
        roles = self._roles
        policy, metrics = self._policy_outputs(prepared)
        reference_BT = values_BT = None
        if (reference := roles.reference) is not None:
            reference_BT, metrics["time/ref"] = _timed(lambda: reference.logprobs(prepared))
        if (critic := roles.critic) is not None:
            values_BT, metrics["time/values"] = _timed(lambda: critic.values(prepared))
        return ForwardOutputs(
            policy=policy, reference_BT=reference_BT, values_BT=values_BT, metrics=metrics
        )


def _at_temperature_1(prepared: PreparedBatch) -> PreparedBatch:
    rows = [replace(row, temperature=1.0) for row in prepared.rows]
    return PreparedBatch.from_batch(replace(prepared.batch, rows=rows))


def _advantage_inputs(
    prepared: PreparedBatch, numbers: IntVector, estimate: AdvantageEstimate
) -> AdvantageInputs:
    zeros_BT = prepared.layout.zeros()
    return AdvantageInputs(
        rewards_BT=_with_rows_replaced(zeros_BT, numbers, estimate.rewards_NT),
        mask_BT=_with_rows_replaced(prepared.mask_BT, numbers, estimate.critic_mask_NT),
        old_logprobs_BT=_with_rows_replaced(zeros_BT, numbers, estimate.old_NT),
    )


def _made_anew(
    prepared: PreparedBatch,
    rollouts: RolloutRows,
    correction: CorrectionResult,
    found: TokenAdvantages,
) -> PreparedBatch:
    """Writes the recomputed values of an update into its rollouts' rows."""
    numbers, corrections_BT = rollouts.numbers, prepared.corrections_BT
    mask_NT = correction.mask_BT if found.mask_BT is None else found.mask_BT
    if corrections_BT is not None and correction.weights_BT is not None:
        corrections_BT = _with_rows_replaced(corrections_BT, numbers, correction.weights_BT)
    inputs, old_BT = prepared.advantage_inputs, prepared.old_logprobs_BT
    if inputs is not None:
        old_NT = np.where(mask_NT, inputs.old_logprobs_BT[numbers], 0.0)
        old_BT = _with_rows_replaced(old_BT, numbers, old_NT)
    advantages_NT = np.where(mask_NT, found.advantages_BT, 0.0)
    return replace(
        prepared,
        mask_BT=_with_rows_replaced(prepared.mask_BT, numbers, mask_NT),
        old_logprobs_BT=old_BT,
        advantages_BT=_with_rows_replaced(prepared.advantages_BT, numbers, advantages_NT),
        corrections_BT=corrections_BT,
    )


def _with_estimate(
    prepared: PreparedBatch,
    numbers: IntVector,
    estimate: AdvantageEstimate,
    values_BT: FloatMatrix | None,
) -> PreparedBatch:
    """Writes the estimates into the rollouts' rows; the other rows stay as they are."""
    corrections_BT = None
    if estimate.corrections_NT is not None:
        ones_BT = np.ones(prepared.layout.shape)
        corrections_BT = _with_rows_replaced(ones_BT, numbers, estimate.corrections_NT)
    return replace(
        prepared,
        mask_BT=_with_rows_replaced(prepared.mask_BT, numbers, estimate.mask_NT),
        old_logprobs_BT=_with_rows_replaced(
            prepared.old_logprobs_BT, numbers, np.where(estimate.mask_NT, estimate.old_NT, 0.0)
        ),
        advantages_BT=_with_rows_replaced(prepared.advantages_BT, numbers, estimate.advantages_NT),
        corrections_BT=corrections_BT,
        critic=_critic_targets(numbers, estimate, values_BT),
        kl=estimate.kl,
    )


def _critic_targets(
    numbers: IntVector, estimate: AdvantageEstimate, values_BT: FloatMatrix | None
) -> CriticTargets | None:
    if values_BT is None or estimate.returns_NT is None:
        return None
    zeros_BT = np.zeros_like(values_BT)
    return CriticTargets(
        old_values_BT=values_BT,
        returns_BT=_with_rows_replaced(zeros_BT, numbers, estimate.returns_NT),
        mask_BT=_with_rows_replaced(zeros_BT.astype(np.bool_), numbers, estimate.critic_mask_NT),
    )


def _with_rows_replaced(
    matrix_BT: npt.NDArray[ScalarT], numbers: IntVector, rows_NT: npt.NDArray[ScalarT]
) -> npt.NDArray[ScalarT]:
    result_BT = matrix_BT.copy()
    result_BT[numbers] = rows_NT
    return result_BT


def _timed(compute: Callable[[], ResultT]) -> tuple[ResultT, float]:
    started = time.perf_counter()
    result = compute()
    return result, time.perf_counter() - started
