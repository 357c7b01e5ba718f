"""The data of a batch before any weight changes, the same on every rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.trainer.layout import Layout
from services.trainer.rows import TrainBatch, TrainRow
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix

BoolVector = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticTargets:
    """The inputs of the critic's loss."""

    old_values_BT: FloatMatrix
    returns_BT: FloatMatrix
    mask_BT: BoolMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """B rows of T response tokens; what the algorithm does not need is None."""

    batch: TrainBatch
    layout: Layout
    mask_BT: BoolMatrix
    """Tokens that the policy's loss is computed on."""
    given_mask_BT: BoolMatrix
    """The same before correction and advantage."""
    old_logprobs_BT: FloatMatrix
    """By the policy in the denominator of ratios."""
    rollout_logprobs_BT: FloatMatrix
    """By the policy that generated the tokens."""
    advantages_BT: FloatMatrix
    policy: Mapping[str, FloatMatrix] = field(default_factory=dict)
    """Outputs of the policy that the step starts from: log-probabilities and others."""
    corrections_BT: FloatMatrix | None = None
    """Factors on the policy's losses."""
    reference_logprobs_BT: FloatMatrix | None = None
    chosen_BT: BoolMatrix | None = None
    """Tokens that the policy's loss treats differently."""
    critic: CriticTargets | None = None
    kl: float | None = None
    """The divergence that the rewards were penalised for."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: TrainBatch) -> "PreparedBatch":
        """Returns the batch before any computation."""
        layout = Layout(batch.rows)
        mask_BT = layout.stack((row.mask for row in batch.rows), np.bool_)
        rollout_BT = layout.stack((row.rollout_logprobs for row in batch.rows), np.float64)
        rollout_BT = np.where(mask_BT, rollout_BT, 0.0)
        advantages_BT = layout.stack((row.advantages for row in batch.rows), np.float64)
        return cls(
            batch=batch,
            layout=layout,
            mask_BT=mask_BT,
            given_mask_BT=mask_BT,
            old_logprobs_BT=rollout_BT,
            rollout_logprobs_BT=rollout_BT,
            advantages_BT=np.where(mask_BT, advantages_BT, 0.0),
        )

    @property
    def rows(self) -> Sequence[TrainRow]:
        """The batch's rows, in order."""
        return self.batch.rows

    @property
    def is_expert_B(self) -> BoolVector:
        """True for training data among rollouts."""
        return np.array([row.is_expert for row in self.rows], dtype=np.bool_)

    def totals(self, mask_BT: BoolMatrix, max_response_tokens: int) -> BatchTotals:
        """Counts rows and tokens over the whole batch."""
        return BatchTotals.of(
            mask_BT.sum(-1),
            max_response_tokens=max_response_tokens,
            is_expert_B=self.is_expert_B,
        )
