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
    select_tokens,
    token_selection,
)
from services.trainer.learner.prepared_batch import CriticTargets, PreparedBatch
from services.trainer.types import TrainBatch
from trinity.algorithm.token_advantage.token_batch import FloatMatrix, IntVector
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:  # verl takes seconds to import
    from services.trainer.learner.roles import Roles

T = TypeVar("T", bound=np.generic)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutputs:
    """The results of the forward passes, [B, T]."""

    policy: Mapping[str, FloatMatrix]
    """Computed before the step: log-probabilities, and what the advantage needs."""
    reference_BT: FloatMatrix | None
    values_BT: FloatMatrix | None
    metrics: Mapping[str, float]


class BatchPreparation:
    """Prepares the batches of a stage. Collective.

    prepared = preparation.prepare_batch(batch, kl_coef=0.001)
    """

    def __init__(self, *, plan: StagePlan, roles: "Roles") -> None:
        self._has_rollout = plan.has_rollouts
        # A class of a user's says what it needs once it is loaded.
        self._functions = EstimationFunctions.from_plan(plan)
        self._actor_outputs = actor_outputs(plan)
        self._has_teacher = has_teacher(plan)
        self._select_tokens = token_selection(plan.algorithm)
        self._seed = plan.config.seed
        self._roles = roles

    def prepare_batch(self, batch: TrainBatch, *, kl_coef: float) -> PreparedBatch:
        """Computes all that is known before a weight changes; `kl_coef` is the reward penalty's.

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
        if self._select_tokens is not None:
            selected_BT = select_tokens(self._select_tokens, estimated, self._seed)
            estimated = replace(estimated, selected_BT=selected_BT)
        seconds = {"time/adv": time.perf_counter() - started}
        return replace(estimated, metrics={**prepared.metrics, **estimate.metrics, **seconds})

    def _forward_passes(self, prepared: PreparedBatch) -> ForwardOutputs:
        """Runs the forward passes that are needed, and times each."""
        roles, names = self._roles, self._actor_outputs
        metrics: dict[str, float] = {}
        policy: Mapping[str, FloatMatrix] = {}
        reference_BT = values_BT = None
        if names:
            policy, metrics["time/old_log_prob"] = _timed(
                lambda: roles.actor.compute_outputs(prepared, names)
            )
        if self._has_teacher and any(row.temperature != 1.0 for row in prepared.rows):
            student, metrics["time/student"] = _timed(
                lambda: roles.actor.compute_outputs(_at_temperature_1(prepared), ("logprobs",))
            )
            policy = {**policy, STUDENT: student["logprobs"]}
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
        old_logprobs_BT=_with_rows_replaced(prepared.old_logprobs_BT, numbers, estimate.old_NT),
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
    matrix_BT: npt.NDArray[T], numbers: IntVector, rows_NT: npt.NDArray[T]
) -> npt.NDArray[T]:
    result_BT = matrix_BT.copy()
    result_BT[numbers] = rows_NT
    return result_BT


def _timed(compute: Callable[[], R]) -> tuple[R, float]:
    started = time.perf_counter()
    result = compute()
    return result, time.perf_counter() - started
