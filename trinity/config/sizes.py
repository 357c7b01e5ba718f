"""Size of a train step: its rows, its ranks and its micro-batches."""

from typing import NamedTuple

from trinity.config.gathered import Gathered
from trinity.config.lengths import Lengths
from trinity.config.mode import EXPLORING
from trinity.config.over_rollout import needed_tasks
from trinity.config.plan_parts import ResolvedAlgorithm
from trinity.config.ranks import Rollout, resolve_rank_num
from trinity.config.root import Config
from trinity.config.sampling import count_expert_rows
from trinity.errors import UserError

LEAST_TOKENS_ON_CPU = 16384


class Sizes(NamedTuple):
    """Sizes of each train step, and of the explore steps before it."""

    train_batch: int
    expert_rows: int
    """How many of them come from data."""
    explore_rows: int
    """0 without an explorer."""
    ranks: int
    max_token_len: int


def resolve_sizes(
    config: Config,
    algorithm: ResolvedAlgorithm,
    lengths: Lengths | None,
    stage: str,
    rollout: Rollout,
) -> Sizes:
    """Derives the sizes; raises UserError with a line for each impossible one."""
    rows_of_tasks = needed_tasks(config) * algorithm.repeat_times
    explore_rows = rows_of_tasks if config.mode in EXPLORING else 0
    has_rollouts = algorithm.row_schema == "experience"
    batch = _train_batch_size(config, rows_of_tasks if has_rollouts else 0, stage)
    errors = Gathered()
    expert_rows = errors.of(lambda: count_expert_rows(algorithm, batch, stage))
    ranks = errors.of(lambda: resolve_rank_num(config, batch, stage, rollout))
    tokens = errors.of(lambda: _max_token_len(config, lengths, algorithm, stage))
    errors.raise_all()
    return Sizes(batch, expert_rows or 0, explore_rows, ranks or 1, tokens or 0)


def _train_batch_size(config: Config, rows_per_explore_step: int, stage: str) -> int:
    configured = config.buffer.train_batch_size
    if configured == 0 and not rows_per_explore_step and config.mode == "train":
        raise UserError(
            f"stage `{stage}`: `buffer.train_batch_size` is missing: `mode: train` has no "
            "explore step to derive it from, give the rows of one train step"
        )
    return configured or max(rows_per_explore_step, 1)


def _max_token_len(
    config: Config, lengths: Lengths | None, algorithm: ResolvedAlgorithm, stage: str
) -> int:
    configured = config.trainer.max_token_len_per_gpu
    if lengths is None:
        return configured or 0
    is_paired = algorithm.row_schema == "dpo"
    least = 2 * lengths.model if is_paired else lengths.model
    if configured is not None and configured < least:
        what = (
            f"a pair of sequences of {lengths.model}" if is_paired else f"one sequence of {least}"
        )
        raise UserError(
            f"stage `{stage}`: `trainer.max_token_len_per_gpu: {configured}` is less than {what} "
            f"tokens: give {least} or more"
        )
    return configured or _usual_token_len(config, lengths)


def _usual_token_len(config: Config, lengths: Lengths) -> int:
    """Two of the longest sequences, for which a GPU's memory is planned.

    Without a GPU, small micro-batches are dominated by their fixed cost.
    """
    two = 2 * lengths.model
    return two if config.cluster.gpu_per_node else max(two, LEAST_TOKENS_ON_CPU)
