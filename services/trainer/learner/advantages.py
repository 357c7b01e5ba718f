"""Computes advantages of rollouts and the KL terms' coefficients, and selects tokens."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from services.trainer.estimation import EstimationFunctions
from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.learner.rollouts import RolloutRows
from services.trainer.types import mean_max_min
from trinity.algorithm.kl.controller import KlController, kl_controller
from trinity.algorithm.kl.penalty import KlPenalty, kl_penalty
from trinity.algorithm.rollout_correction.correction import CorrectionResult, correct_rollout
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, TokenAdvantages
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.algorithm.token_selection.selection_batch import SelectionBatch
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.base import Args
from trinity.errors import UserError

FILE_NAME = "kl.json"


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
