"""Values of single tokens that the buffer keeps, for a share of a batch's rows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from services.trainer.learner.prepared_batch import BoolVector, PreparedBatch
from services.trainer.types import RowStatistics, TokenValues
from trinity.algorithm.token_advantage.token_batch import FloatMatrix, FloatVector
from trinity.types import FloatArray

MAX_RECORDED_TOKENS = 2**17
"""Of a step: 1 MiB of values."""


def with_tokens(
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
        tokens = TokenValues(
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
