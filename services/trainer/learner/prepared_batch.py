"""A batch as matrices: the layout of its response tokens, and all data that losses need."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from services.trainer.types import RowStatistics, TrainBatch, TrainedTokens, TrainRow
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatMatrix,
    FloatVector,
    IntVector,
)
from trinity.types import FloatArray

MicroBatch = Sequence[int]
"""The row numbers of a micro-batch."""

RowUnit = Sequence[int]
"""Rows that are never separated: a single row, or the two of a pair."""
ScalarT = TypeVar("ScalarT", bound=np.generic)
BoolVector = npt.NDArray[np.bool_]
MAX_RECORDED_TOKENS = 2**17
"""Limit for a step: 1 MiB of values."""


def row_units(rows: Sequence[TrainRow]) -> list[RowUnit]:
    """Returns the units of all rows, in order."""
    return [
        (number, number + 1) if row.side == "chosen" else (number,)
        for number, row in enumerate(rows)
        if row.side != "rejected"
    ]


def group_units(rows: Sequence[TrainRow]) -> list[RowUnit]:
    """Returns the rows of each task, in the order of its first; a row without a run is alone."""
    groups: dict[str | int, list[int]] = {}
    for number, row in enumerate(rows):
        key = number if row.run_reward is None else row.run_reward.assignment_id
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def units_of_rank(units: Sequence[RowUnit], rank: int, num_ranks: int) -> Sequence[RowUnit]:
    """Returns the rank's contiguous share of units; shares differ by one unit at most."""
    return units[len(units) * rank // num_ranks : len(units) * (rank + 1) // num_ranks]


class ResponseLayout:
    """The places of the response tokens in a batch's rows.

    layout = ResponseLayout(batch.rows)
    mask_BT = layout.stack((row.mask for row in batch.rows), np.bool_)
    mask_NC = layout.gather_part(mask_BT, part)
    layout.scatter_part(values_NC, part, into=values_BT)
    """

    def __init__(self, rows: Sequence[TrainRow]) -> None:
        self.lengths_B: IntVector = np.array([row.response_length for row in rows], dtype=np.int64)
        self._prompts_B: IntVector = np.array([row.prompt_length for row in rows], dtype=np.int64)
        columns_T = np.arange(int(self.lengths_B.max(initial=1)))
        self.is_token_BT: BoolMatrix = columns_T < self.lengths_B[:, None]
        """False after the end of a row."""

    def select_rows(self, numbers: IntVector) -> "ResponseLayout":
        """Returns the layout of some of the rows, with the same number of columns."""
        layout = copy.copy(self)
        layout.lengths_B = self.lengths_B[numbers]
        layout._prompts_B = self._prompts_B[numbers]
        layout.is_token_BT = self.is_token_BT[numbers]
        return layout

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        num_rows, num_columns = self.is_token_BT.shape
        return num_rows, num_columns

    def zeros(self) -> FloatMatrix:
        """Returns a matrix of zeros."""
        return np.zeros(self.shape)

    def stack(self, arrays: Iterable[npt.ArrayLike], dtype: type[ScalarT]) -> npt.NDArray[ScalarT]:
        """Stacks one array per row, with one entry per response token; 0 after the end of a row."""
        matrix_BT = np.zeros(self.shape, dtype=dtype)
        matrix_BT[self.is_token_BT] = np.concatenate([np.asarray(array) for array in arrays])
        return matrix_BT

    def first_token(self, part: MicroBatch) -> int:
        """Returns the place in the sequence at which the columns of a micro-batch begin."""
        return int(self._prompts_B[list(part)].min()) if len(part) else 1

    def num_columns(self, part: MicroBatch) -> int:
        """Returns C of a micro-batch."""
        if not len(part):
            return 1
        numbers = list(part)
        longest = int((self._prompts_B[numbers] + self.lengths_B[numbers]).max())
        return longest - self.first_token(part)

    def gather_part(
        self, matrix_BT: npt.NDArray[ScalarT], part: MicroBatch
    ) -> npt.NDArray[ScalarT]:
        """Returns the micro-batch's rows of a matrix, aligned to its tensors; padded with 0."""
        placed_NC = np.zeros((len(part), self.num_columns(part)), dtype=matrix_BT.dtype)
        placed_NC[self._is_token_NC(part)] = matrix_BT[list(part)][self.is_token_BT[list(part)]]
        return placed_NC

    def scatter_part(
        self, values_NC: npt.NDArray[ScalarT], part: MicroBatch, *, into: npt.NDArray[ScalarT]
    ) -> None:
        """Writes the values of a micro-batch into the matrix of the batch."""
        if not len(part):
            return
        rows_NT = into[list(part)]
        rows_NT[self.is_token_BT[list(part)]] = values_NC[self._is_token_NC(part)]
        into[list(part)] = rows_NT

    def _is_token_NC(self, part: MicroBatch) -> BoolMatrix:
        numbers = list(part)
        begins_N1 = (self._prompts_B[numbers] - self.first_token(part))[:, None]
        columns_C = np.arange(self.num_columns(part))
        is_token_NC: BoolMatrix = (columns_C >= begins_N1) & (
            columns_C < begins_N1 + self.lengths_B[numbers][:, None]
        )
        return is_token_NC


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticTargets:
    """The inputs of the critic's loss."""

    old_values_BT: FloatMatrix
    returns_BT: FloatMatrix
    mask_BT: BoolMatrix

    def select_rows(self, numbers: IntVector) -> "CriticTargets":
        """Returns the inputs of some of the rows."""
        return CriticTargets(
            old_values_BT=self.old_values_BT[numbers],
            returns_BT=self.returns_BT[numbers],
            mask_BT=self.mask_BT[numbers],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """The fixed inputs of an advantage that each update recomputes."""

    rewards_BT: FloatMatrix
    """With the KL penalty already subtracted."""
    mask_BT: BoolMatrix
    """Tokens that are compared, those that are then left out of the loss too."""
    old_logprobs_BT: FloatMatrix

    def select_rows(self, numbers: IntVector) -> "AdvantageInputs":
        """Returns the inputs of some of the rows."""
        return AdvantageInputs(
            rewards_BT=self.rewards_BT[numbers],
            mask_BT=self.mask_BT[numbers],
            old_logprobs_BT=self.old_logprobs_BT[numbers],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """B rows of T response tokens; inputs that the algorithm does not need are None."""

    batch: TrainBatch
    layout: ResponseLayout
    mask_BT: BoolMatrix
    """Tokens that the policy's loss is computed on."""
    original_mask_BT: BoolMatrix
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
    selected_BT: BoolMatrix | FloatMatrix | None = None
    """Tokens that the policy's loss treats differently."""
    critic: CriticTargets | None = None
    advantage_inputs: AdvantageInputs | None = None
    """Inputs to recompute advantages for each update; None for most algorithms."""
    kl: float | None = None
    """The divergence that the rewards were penalised for."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_batch(cls, batch: TrainBatch) -> "PreparedBatch":
        """Returns the batch before any computation."""
        layout = ResponseLayout(batch.rows)
        mask_BT = layout.stack((row.mask for row in batch.rows), np.bool_)
        rollout_BT = layout.stack((row.rollout_logprobs for row in batch.rows), np.float64)
        rollout_BT = np.where(mask_BT, rollout_BT, 0.0)
        advantages_BT = layout.stack((row.advantages for row in batch.rows), np.float64)
        return cls(
            batch=batch,
            layout=layout,
            mask_BT=mask_BT,
            original_mask_BT=mask_BT,
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

    def select_rows(self, numbers: IntVector) -> "PreparedBatch":
        """Returns the batch with some of its rows alone, with the same number of columns."""

        def rows_of(matrix_BT: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
            return matrix_BT[numbers]

        def rows_if_any(matrix_BT: npt.NDArray[ScalarT] | None) -> npt.NDArray[ScalarT] | None:
            return None if matrix_BT is None else matrix_BT[numbers]

        return replace(
            self,
            batch=replace(self.batch, rows=[self.rows[number] for number in numbers.tolist()]),
            layout=self.layout.select_rows(numbers),
            mask_BT=rows_of(self.mask_BT),
            original_mask_BT=rows_of(self.original_mask_BT),
            old_logprobs_BT=rows_of(self.old_logprobs_BT),
            rollout_logprobs_BT=rows_of(self.rollout_logprobs_BT),
            advantages_BT=rows_of(self.advantages_BT),
            policy={name: rows_of(matrix_BT) for name, matrix_BT in self.policy.items()},
            corrections_BT=rows_if_any(self.corrections_BT),
            reference_logprobs_BT=rows_if_any(self.reference_logprobs_BT),
            selected_BT=None if self.selected_BT is None else self.selected_BT[numbers],
            critic=None if self.critic is None else self.critic.select_rows(numbers),
            advantage_inputs=(
                None
                if self.advantage_inputs is None
                else self.advantage_inputs.select_rows(numbers)
            ),
        )

    def cut(self, num_updates: int) -> list["UpdateRows"]:
        """Returns the rows of each update: neighbours in the batch, in numbers that differ by one.

        All of it where there is one update. Pairs stay together, and so do the rows of a task where
        each update compares them: there are then no more updates than tasks.
        """
        units = row_units(self.rows) if self.advantage_inputs is None else group_units(self.rows)
        if num_updates == 1:
            return [UpdateRows(np.arange(len(self.rows)), self)]
        num_updates = min(num_updates, max(len(units), 1))
        shares = (units_of_rank(units, number, num_updates) for number in range(num_updates))
        numbers = (np.array(sorted(chain(*share)), dtype=np.int64) for share in shares)
        return [UpdateRows(numbers_N, self.select_rows(numbers_N)) for numbers_N in numbers]

    def totals(self, mask_BT: BoolMatrix, max_response_tokens: int) -> BatchTotals:
        """Counts rows and tokens over the whole batch."""
        return BatchTotals.from_counts(
            mask_BT.sum(-1), max_response_tokens=max_response_tokens, is_expert_B=self.is_expert_B
        )


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """The rows of one update of the weights."""

    numbers: IntVector
    """Their places in the batch."""
    prepared: PreparedBatch
    """These rows alone, with their counts."""


def with_tokens(
    parts: Sequence[UpdateRows], mask_of: Callable[[PreparedBatch], BoolMatrix]
) -> list[UpdateRows]:
    """Leaves out updates without a token to train on; keeps the first if all lack them.

    An optimizer's momentum would move the weights even without a gradient.
    """
    return [part for part in parts if mask_of(part.prepared).any()] or list(parts[:1])


def with_token_values(
    statistics: Mapping[int, RowStatistics],
    prepared: PreparedBatch,
    logprobs_BT: FloatMatrix,
    share: float,
) -> dict[int, RowStatistics]:
    """Adds the values of each token to a share of the rows, spread evenly over the batch."""
    found, num_left = dict(statistics), MAX_RECORDED_TOKENS
    for number, row in enumerate(prepared.rows):
        length = row.response_length
        is_recorded = is_recorded_row(row.position, prepared.batch.step, share)
        if not is_recorded or row.position not in found or length > num_left:
            continue
        num_left -= length
        mask_T = prepared.mask_BT[number, :length]
        tokens = TrainedTokens(
            logprobs_T=_of_trained(mask_T, logprobs_BT[number, :length]),
            advantages_T=_of_trained(mask_T, prepared.advantages_BT[number, :length]),
        )
        found[row.position] = replace(found[row.position], tokens=tokens)
    return found


def _of_trained(mask_T: BoolVector, values_T: FloatVector) -> FloatArray:
    return np.where(mask_T, values_T, np.nan).astype(np.float32)


def is_recorded_row(position: int, step: int, share: float) -> bool:
    """Returns True for a share of the rows: evenly spread, and other ones in the next step."""
    place = position + step
    return int((place + 1) * share) > int(place * share)
