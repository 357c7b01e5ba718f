"""Prepares a batch for its losses: forward passes, then advantages."""

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from services.trainer.learner.prepared_batch import CriticTargets, PreparedBatch
from services.trainer.learner.rollouts import STUDENT, RolloutRows
from services.trainer.types import TrainBatch, mean_max_min
from trinity.algorithm.kl.penalty import KlPenalty, kl_penalty
from trinity.algorithm.rollout_correction.correction import CorrectionResult, correct_rollout
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES, needs_of
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatMatrix,
    IntVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.algorithm.token_selection.selection_batch import SelectionBatch
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

if TYPE_CHECKING:
    from services.trainer.learner.roles import Roles


DISTRIBUTION_NEEDS = ("collision", "discriminator")
"""Further data that advantages may need, besides entropies, which are nearly free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimationFunctions:
    """The functions and settings that turn rollouts into advantages."""

    bypass: bool
    """True if ratios are taken to the rollout policy; otherwise to the proximal one."""
    correction: CorrectionSettings | None
    penalty: str
    """Name of the divergence's estimator, or none."""
    advantage: Callable[[TokenBatch], TokenAdvantages] | None
    """None where the buffer has computed advantages."""

    @classmethod
    def from_plan(cls, plan: StagePlan) -> "EstimationFunctions":
        """Chooses the functions from the plan.

        Raises: UserError when a function given by its path cannot be loaded.
        """
        algorithm = plan.algorithm
        advantage = None
        if algorithm.advantage_in_trainer:
            function = TOKEN_ADVANTAGES.get(algorithm.advantage_fn)
            advantage = partial(function, **algorithm.advantage_fn_args)
        settings = algorithm.rollout_correction
        return cls(
            bypass=algorithm.bypass_old_logprobs,
            correction=settings if settings.is_on else None,
            penalty=algorithm.kl_penalty_fn,
            advantage=advantage,
        )


def actor_outputs(plan: StagePlan) -> tuple[str, ...]:
    """Returns the names of the outputs to compute before the policy changes; empty if none."""
    if not plan.has_rollouts:
        return ()
    algorithm = plan.algorithm
    needs = needs_of(algorithm.advantage_fn) if algorithm.advantage_in_trainer else frozenset()
    wanted = [name for name in DISTRIBUTION_NEEDS if name in needs]
    if not wanted and "entropies" not in needs and not algorithm.needs_proximal:
        return ()
    return ("logprobs", "entropies", *wanted)


def has_teacher(plan: StagePlan) -> bool:
    """Returns true if the advantage compares the policy with a teacher's log-probabilities."""
    algorithm = plan.algorithm
    return algorithm.advantage_in_trainer and "teacher" in needs_of(algorithm.advantage_fn)


TokenSelection = Callable[[SelectionBatch], BoolMatrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageEstimate:
    """The result of the estimation."""

    mask_NT: BoolMatrix
    """Tokens that the policy's loss is computed on."""
    critic_mask_NT: BoolMatrix
    """Tokens that the critic learns from."""
    old_NT: FloatMatrix
    corrections_NT: FloatMatrix | None
    advantages_NT: FloatMatrix
    returns_NT: FloatMatrix | None
    kl: float | None
    metrics: Mapping[str, float]


def estimate_advantages(
    functions: EstimationFunctions, rollouts: RolloutRows, kl_coef: float
) -> AdvantageEstimate:
    """Applies the functions that are set; the others are skipped.

    Raises: UserError when an advantage needs data that the rollouts do not have.
    """
    correction = _correction(functions, rollouts)
    old_NT = rollouts.rollout_NT if functions.bypass else rollouts.proximal_NT
    penalised = _penalised(functions, rollouts, correction.mask_BT, old_NT, kl_coef)
    found = _advantages(functions, rollouts, penalised.rewards_BT, correction)
    mask_NT = correction.mask_BT if found.mask_BT is None else found.mask_BT
    return AdvantageEstimate(
        mask_NT=mask_NT,
        critic_mask_NT=correction.mask_BT,
        old_NT=np.where(mask_NT, old_NT, 0.0),
        corrections_NT=correction.weights_BT,
        advantages_NT=np.where(mask_NT, found.advantages_BT, 0.0),
        returns_NT=found.returns_BT,
        kl=None if functions.penalty == "none" else penalised.kl,
        metrics={
            **correction.metrics,
            **{f"advantage/{name}": value for name, value in penalised.metrics.items()},
            **{f"advantage/{name}": value for name, value in found.metrics.items()},
            **_reward_metrics(rollouts, penalised.rewards_BT, found, mask_NT),
        },
    )


def _correction(functions: EstimationFunctions, rollouts: RolloutRows) -> CorrectionResult:
    if functions.correction is None:
        return CorrectionResult(weights_BT=None, mask_BT=rollouts.mask_NT)
    return correct_rollout(
        proximal_logprobs_BT=rollouts.proximal_NT,
        rollout_logprobs_BT=rollouts.rollout_NT,
        mask_BT=rollouts.mask_NT,
        settings=functions.correction,
    )


def _penalised(
    functions: EstimationFunctions,
    rollouts: RolloutRows,
    mask_NT: BoolMatrix,
    old_NT: FloatMatrix,
    kl_coef: float,
) -> KlPenalty:
    rewards_NT = rollouts.rewards(mask_NT)
    if functions.penalty == "none":
        return KlPenalty(rewards_BT=rewards_NT, kl=0.0, metrics={})
    assert rollouts.reference_NT is not None
    return kl_penalty(
        rewards_NT,
        estimator=functions.penalty,
        coef=kl_coef,
        logprobs_BT=old_NT,
        reference_logprobs_BT=rollouts.reference_NT,
        mask_BT=mask_NT,
        rollout_logprobs_BT=rollouts.rollout_NT,
    )


def _advantages(
    functions: EstimationFunctions,
    rollouts: RolloutRows,
    rewards_NT: FloatMatrix,
    correction: CorrectionResult,
) -> TokenAdvantages:
    if functions.advantage is None:
        return TokenAdvantages(advantages_BT=rollouts.advantages_NT)
    batch = rollouts.token_batch(correction.mask_BT, rewards_NT, correction.weights_BT)
    estimated = functions.advantage(batch)
    if rollouts.values_NT is not None and estimated.returns_BT is None:
        raise UserError(
            "`algorithm.advantage_fn` gives no returns for the critic to learn from: choose one "
            "that does, such as ppo, or an algorithm_type without a critic"
        )
    return estimated


def _reward_metrics(
    rollouts: RolloutRows, rewards_NT: FloatMatrix, found: TokenAdvantages, mask_NT: BoolMatrix
) -> dict[str, float]:
    """Returns spreads over rows; for advantages, returns and values, spreads of the rows' means.

    Without a critic the returns are the advantages, as in verl.
    """
    scores = [row.run_reward.reward for row in rollouts.rows if row.run_reward is not None]
    metrics = mean_max_min("critic/score", scores) | mean_max_min(
        "critic/rewards", rewards_NT.sum(-1)
    )
    returns_NT = found.advantages_BT if found.returns_BT is None else found.returns_BT
    means = {"advantages": found.advantages_BT, "returns": returns_NT}
    if rollouts.values_NT is not None:
        means["values"] = rollouts.values_NT
    for name, matrix_NT in means.items():
        metrics |= mean_max_min(f"critic/{name}", row_means(matrix_NT, mask_NT))
    return metrics


def row_means(matrix_NT: FloatMatrix, mask_NT: BoolMatrix) -> FloatMatrix:
    """Returns the mean over the trained tokens of each row that has some, [M]."""
    trained_N = mask_NT.any(-1)
    sums_M = np.where(mask_NT, matrix_NT, 0.0)[trained_N].sum(-1)
    means_M: FloatMatrix = sums_M / mask_NT[trained_N].sum(-1)
    return means_M


def token_selection(algorithm: ResolvedAlgorithm) -> TokenSelection | None:
    """Returns the loss's token selection, with its arguments bound; None for most losses."""
    if algorithm.policy_loss_fn not in TOKEN_SELECTIONS.names():
        return None
    select = TOKEN_SELECTIONS.get(algorithm.policy_loss_fn)
    taken = inspect.signature(select).parameters
    arguments = algorithm.policy_loss_fn_args
    return partial(select, **{name: arguments[name] for name in arguments if name in taken})


def select_tokens(select: TokenSelection, prepared: PreparedBatch, seed: int) -> BoolMatrix:
    """Selects tokens of the whole batch, [B, T]; the same each time this step is trained."""
    return select(
        SelectionBatch(
            logprobs_BT=prepared.policy["logprobs"],
            old_logprobs_BT=prepared.old_logprobs_BT,
            advantages_BT=prepared.advantages_BT,
            mask_BT=prepared.mask_BT,
            lots_BT=_uniform_per_token(prepared, seed),
        )
    )


def _uniform_per_token(prepared: PreparedBatch, seed: int) -> FloatMatrix:
    """Draws uniform numbers per row that depend only on seed, step and position."""
    step = prepared.batch.step
    lots = (
        np.random.default_rng((seed, step, row.position)).random(row.response_length)
        for row in prepared.rows
    )
    return prepared.layout.stack(lots, np.float64)


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
        self._actor_outputs = actor_outputs(plan)
        self._has_teacher = has_teacher(plan)
        self._functions = EstimationFunctions.from_plan(plan)
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
