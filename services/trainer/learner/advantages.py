"""The rollouts of a batch: their advantages, the KL terms' coefficients, and token selection."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from services.trainer.estimation import EstimationFunctions
from services.trainer.learner.prepared_batch import PreparedBatch, ResponseLayout
from services.trainer.types import TrainRow, mean_max_min
from trinity.algorithm.kl.controller import KlController, kl_controller
from trinity.algorithm.kl.penalty import KlPenalty, kl_penalty
from trinity.algorithm.rollout_correction.correction import CorrectionResult, correct_rollout
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatMatrix,
    FloatVector,
    IntMatrix,
    IntVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.algorithm.token_selection.selection_batch import SelectionBatch
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.base import Args
from trinity.errors import UserError

STUDENT = "student"
"""The policy's log-probabilities at temperature 1, as a teacher's are."""
FILE_NAME = "kl.json"
TokenSelection = Callable[[SelectionBatch], BoolMatrix | FloatMatrix]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRows:
    """Shapes: N of the batch's rows, T response tokens."""

    numbers: IntVector
    """Row numbers in the batch."""
    rows: Sequence[TrainRow]
    layout: ResponseLayout
    mask_NT: BoolMatrix
    rollout_NT: FloatMatrix
    advantages_NT: FloatMatrix
    """Computed by the buffer."""
    policy: Mapping[str, FloatMatrix]
    """Outputs of the policy before it changes: logprobs, entropies..."""
    reference_NT: FloatMatrix | None
    values_NT: FloatMatrix | None

    @classmethod
    def from_prepared(cls, prepared: PreparedBatch, values_BT: FloatMatrix | None) -> "RolloutRows":
        """Selects all rows but the training data among them."""
        numbers = np.flatnonzero(~prepared.is_expert_B)
        rows = [prepared.rows[number] for number in numbers]
        reference_BT = prepared.reference_logprobs_BT
        return cls(
            numbers=numbers,
            rows=rows,
            layout=prepared.layout.select_rows(numbers),
            mask_NT=prepared.mask_BT[numbers],
            rollout_NT=prepared.rollout_logprobs_BT[numbers],
            advantages_NT=prepared.advantages_BT[numbers],
            policy={name: matrix_BT[numbers] for name, matrix_BT in prepared.policy.items()},
            reference_NT=None if reference_BT is None else reference_BT[numbers],
            values_NT=None if values_BT is None else values_BT[numbers],
        )

    @property
    def proximal_NT(self) -> FloatMatrix:
        """Log-probabilities by the policy before the step, else by the rollout policy."""
        return self.policy.get("logprobs", self.rollout_NT)

    def token_batch(
        self, mask_NT: BoolMatrix, rewards_NT: FloatMatrix, weights_NT: FloatMatrix | None
    ) -> TokenBatch:
        """Returns the input of token advantages."""
        return TokenBatch(
            rewards_BT=rewards_NT,
            mask_BT=mask_NT,
            lengths_B=self.layout.lengths_B,
            groups_B=group_ids(self.rows),
            runs_B=run_ids(self.rows),
            logprobs_BT=self.proximal_NT,
            rollout_logprobs_BT=self.rollout_NT,
            rollout_is_weights_BT=weights_NT,
            values_BT=self.values_NT,
            entropies_BT=self.policy.get("entropies"),
            collision_BT=self.policy.get("collision"),
            discriminator_BT=self.policy.get("discriminator"),
            teacher_logprobs_BT=self._teacher(),
            reference_logprobs_BT=self.reference_NT,
            student_logprobs_BT=self.policy.get(STUDENT),
            baselines_B=self._baselines(),
            reward_parts=self._reward_parts(),
            unpenalised_B=self.rewards(mask_NT).sum(-1),
        )

    def _teacher(self) -> FloatMatrix | None:
        logprobs = [row.teacher_logprobs for row in self.rows if row.teacher_logprobs is not None]
        if len(logprobs) < len(self.rows) or not logprobs:
            return None
        return self.layout.stack(logprobs, np.float64)

    def _baselines(self) -> FloatVector | None:
        baselines = [row.reward_baseline for row in self.rows if row.reward_baseline is not None]
        return np.array(baselines) if baselines and len(baselines) == len(self.rows) else None

    def _reward_parts(self) -> Mapping[str, FloatVector]:
        """Returns a vector for every name that any row has; NaN where a row has not."""
        parts = [{} if row.run_reward is None else row.run_reward.parts for row in self.rows]
        names = sorted({name for of_row in parts for name in of_row})
        return {
            name: np.array([of_row.get(name, np.nan) for of_row in parts], dtype=np.float64)
            for name in names
        }

    def rewards(self, mask_NT: BoolMatrix) -> FloatMatrix:
        """Computes rewards per token.

        A run's reward goes to its last trained token, where recursions over the mask see it; tokens
        that a workflow rewarded itself keep those rewards.
        """
        rewards_NT = self.layout.stack(
            (
                np.zeros(row.response_length) if row.token_rewards is None else row.token_rewards
                for row in self.rows
            ),
            np.float64,
        )
        ends_N = np.array([_reward_at_the_end(row) for row in self.rows])
        last_N = mask_NT.shape[1] - 1 - mask_NT[:, ::-1].argmax(-1)
        last_N = np.where(mask_NT.any(-1), last_N, np.maximum(self.layout.lengths_B - 1, 0))
        rewards_NT[np.arange(len(self.rows)), last_N] += ends_N
        return rewards_NT


def _reward_at_the_end(row: TrainRow) -> float:
    """Returns the reward for the last token; 0 for a row without tokens."""
    if row.token_rewards is not None or row.run_reward is None or not row.response_length:
        return 0.0
    return row.run_reward.reward


def group_ids(rows: Sequence[TrainRow]) -> IntVector:
    """Numbers the groups: runs of one task in one explore step; a row without a run is alone."""
    return _numbered(
        f"row {number}" if row.run_reward is None else row.run_reward.assignment_id
        for number, row in enumerate(rows)
    )


def run_ids(rows: Sequence[TrainRow]) -> IntVector:
    """Numbers the runs, of which a row may be one of several samples; without a run it is alone."""
    return _numbered(
        f"row {number}"
        if row.run_reward is None
        else f"run {row.run_reward.run} of {row.run_reward.assignment_id}"
        for number, row in enumerate(rows)
    )


def _numbered(names: Iterable[str]) -> IntVector:
    numbers: IntVector = np.unique(list(names), return_inverse=True)[1].astype(np.int64)
    return numbers


def staleness_of(rows: Sequence[TrainRow], step: int, width: int) -> IntMatrix | None:
    """Returns how many steps older each token's weights are than those of the step, [N, T].

    Returns None if a row has no versions.
    """
    lags_NT: IntMatrix = np.zeros((len(rows), width), dtype=np.int64)
    for lags_T, row in zip(lags_NT, rows, strict=True):
        if row.versions is None:
            return None
        lags_T[: row.response_length] = np.maximum(step - 1 - row.versions, 0)
    return lags_NT


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCoefficients:
    """Coefficients of the penalty on rewards and of the term in the loss.

    control = KlCoefficients.from_plan(plan)
    control = control.after_step(penalised=0.02, in_loss=None, num_rows=64)
    """

    penalty: KlController
    loss: KlController

    @classmethod
    def from_plan(cls, plan: StagePlan) -> "KlCoefficients":
        """Returns the coefficients at the beginning of the stage.

        Raises: UserError when an argument that adaptation needs is missing.
        """
        algorithm = plan.algorithm
        return cls(
            penalty=_controller(algorithm.kl_penalty_fn_args),
            loss=_controller(algorithm.kl_loss_fn_args),
        )

    def after_step(
        self, *, penalised: float | None, in_loss: float | None, num_rows: int
    ) -> "KlCoefficients":
        """Returns the coefficients after a step that measured these divergences; None: not
        measured.
        """
        return KlCoefficients(
            penalty=_updated(self.penalty, penalised, num_rows),
            loss=_updated(self.loss, in_loss, num_rows),
        )

    def save(self, directory: Path) -> None:
        """Writes the state into a checkpoint."""
        state = {"penalty": self.penalty.state(), "loss": self.loss.state()}
        (directory / FILE_NAME).write_text(json.dumps(state, indent=1, sort_keys=True))

    def load(self, directory: Path) -> "KlCoefficients":
        """Returns the saved state; checkpoints from before KL control have no such file."""
        path = directory / FILE_NAME
        if not path.exists():
            return self
        state = json.loads(path.read_text())
        return replace(
            self,
            penalty=self.penalty.from_state(state["penalty"]),
            loss=self.loss.from_state(state["loss"]),
        )


def _controller(arguments: Args) -> KlController:
    make: Callable[..., KlController] = kl_controller
    return make(**arguments)


def _updated(controller: KlController, kl: float | None, num_rows: int) -> KlController:
    return controller if kl is None else controller.updated(kl=kl, batch_size=num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageEstimate:
    """The result of the estimation."""

    mask_NT: BoolMatrix
    """Tokens that the policy's loss is computed on."""
    critic_mask_NT: BoolMatrix
    """Tokens that the critic learns from."""
    rewards_NT: FloatMatrix
    """With the penalty subtracted."""
    old_NT: FloatMatrix
    """The denominator of ratios, also where the mask is false."""
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
        rewards_NT=penalised.rewards_BT,
        old_NT=old_NT,
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


def estimate_anew(
    functions: EstimationFunctions, prepared: PreparedBatch
) -> tuple[RolloutRows, CorrectionResult, TokenAdvantages]:
    """Recomputes advantages for the rows of an update from the current policy's outputs.

    Rewards, values and old log-probabilities stay those from before the step. A token
    that was rejected before the step stays so.
    """
    values_BT = None if prepared.critic is None else prepared.critic.old_values_BT
    rollouts = RolloutRows.from_prepared(prepared, values_BT)
    inputs, corrections_BT = prepared.advantage_inputs, prepared.corrections_BT
    before_BT = prepared.mask_BT if inputs is None else inputs.mask_BT
    mask_NT = before_BT[rollouts.numbers]
    weights_NT = None if corrections_BT is None else corrections_BT[rollouts.numbers]
    correction = CorrectionResult(weights_BT=weights_NT, mask_BT=mask_NT)
    if functions.corrects_in_loss:
        original_NT = prepared.original_mask_BT[rollouts.numbers]
        found = _correction(functions, replace(rollouts, mask_NT=original_NT))
        correction = replace(found, mask_BT=found.mask_BT & mask_NT)
    if inputs is None:
        return rollouts, correction, TokenAdvantages(advantages_BT=rollouts.advantages_NT)
    rewards_NT = inputs.rewards_BT[rollouts.numbers]
    return rollouts, correction, _advantages(functions, rollouts, rewards_NT, correction)


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


def select_tokens(
    select: TokenSelection, prepared: PreparedBatch, seed: int, number: int = 0
) -> BoolMatrix | FloatMatrix:
    """Selects tokens of all rows of an update, [B, T]; the same each time this step is trained.

    `number` is the update's in the step: others draw other lots.
    """
    return select(
        SelectionBatch(
            logprobs_BT=prepared.policy["logprobs"],
            old_logprobs_BT=prepared.old_logprobs_BT,
            advantages_BT=prepared.advantages_BT,
            mask_BT=prepared.mask_BT,
            reference_logprobs_BT=prepared.reference_logprobs_BT,
            lots_BT=_uniform_per_token(prepared, seed, number),
        )
    )


def _uniform_per_token(prepared: PreparedBatch, seed: int, number: int) -> FloatMatrix:
    """Draws uniform numbers per row that depend only on seed, step, update and position."""
    step, of_update = prepared.batch.step, (number,) if number else ()
    lots = (
        np.random.default_rng((seed, step, row.position, *of_update)).random(row.response_length)
        for row in prepared.rows
    )
    return prepared.layout.stack(lots, np.float64)
