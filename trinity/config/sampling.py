"""Number of rows of a train step's batch that do not come from rollouts."""

import math
from decimal import Decimal

from trinity.config.plan_parts import ResolvedAlgorithm
from trinity.errors import UserError


def count_expert_rows(algorithm: ResolvedAlgorithm, train_batch_size: int, stage: str) -> int:
    """Rows of data in each batch, beside the rollouts.

    Raises: UserError if the strategy rejects its arguments, or if no row is left to rollouts.
    """
    try:
        ratio = algorithm.sampling.expert_data_ratio
    except UserError as error:
        raise UserError(f"stage `{stage}`: `algorithm.sample_strategy_args`: {error}") from error
    # Decimal as written: 0.07 of 100 rows are 7; the binary fraction would make them 8.
    num_rows = math.ceil(Decimal(str(ratio)) * train_batch_size)
    if num_rows >= train_batch_size:
        raise UserError(
            f"stage `{stage}`: `expert_data_ratio: {ratio}` of a batch of {train_batch_size} rows "
            "leaves none to rollouts: lower it, or raise `buffer.train_batch_size`"
        )
    return num_rows
