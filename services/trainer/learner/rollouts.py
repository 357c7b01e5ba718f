"""The rollouts among a batch's rows, the input of corrections and advantages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.trainer.learner.prepared_batch import PreparedBatch, ResponseLayout
from services.trainer.types import TrainRow
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatMatrix,
    FloatVector,
    IntVector,
    TokenBatch,
)

STUDENT = "student"
"""The policy's log-probabilities at temperature 1, as a teacher's are."""


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


def staleness_of(rows: Sequence[TrainRow], step: int) -> IntVector | None:
    """Returns how many steps each row's oldest weights lag behind those that the step starts from.

    Returns None if a row has no version.
    """
    versions = [row.oldest_version for row in rows if row.oldest_version is not None]
    if len(versions) < len(rows):
        return None
    lags_N: IntVector = np.maximum(step - 1 - np.array(versions, dtype=np.int64), 0)
    return lags_N
