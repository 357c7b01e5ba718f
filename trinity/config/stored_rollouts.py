"""Which stage of mode explore made what a stage of mode train takes."""

from collections.abc import Sequence

from trinity.config.plan import StagePlan, StoredRollouts
from trinity.errors import UserError


def with_stored_rollouts(stages: Sequence[StagePlan]) -> tuple[StagePlan, ...]:
    """The plans, of which those that train on rollouts without an explorer name their source.

    Raises: UserError where there is none, or it has prepared its rows otherwise.
    """
    return tuple(
        _completed(stage, stages[:index]) if _takes_stored(stage) else stage
        for index, stage in enumerate(stages)
    )


def _takes_stored(stage: StagePlan) -> bool:
    return stage.mode == "train" and stage.algorithm.row_schema == "experience"


def _completed(stage: StagePlan, before: Sequence[StagePlan]) -> StagePlan:
    source = next((one for one in reversed(before) if one.mode == "explore"), None)
    if source is None:
        raise UserError(
            f"stage `{stage.name}`: `mode: train` with `algorithm_type: {stage.algorithm_type}` "
            "trains on the experiences of an earlier stage of `mode: explore`, and there is none: "
            "write one in front of it in `stages`, or give `mode: both`"
        )
    if source.external_model is not None:
        raise UserError(
            f"stage `{stage.name}`: stage `{source.name}` explores with a model that others serve "
            "(`model.external_model.enable`), which tells no log-probabilities to train on: "
            "explore with a model of your own, or leave the training out"
        )
    _check_rows(stage, source)
    return stage.model_copy(update={"stored_rollouts": StoredRollouts(stage=source.name)})


def _check_rows(stage: StagePlan, source: StagePlan) -> None:
    """The buffer makes advantages where rows are made; the trainer makes its own of any rows."""
    own, made = stage.algorithm, source.algorithm
    if own.sampling.expert_buffer is not None or stage.replay is not None:
        raise UserError(
            f"stage `{stage.name}`: stored experiences are trained in order, without "
            "`replay_buffer.enable` and without a `sample_strategy` that mixes rows of data in: "
            "remove it, or give `mode: both`"
        )
    if own.advantage_in_trainer and made.advantage_in_trainer:
        return
    if (own.advantage_fn, own.advantage_fn_args) != (made.advantage_fn, made.advantage_fn_args):
        raise UserError(
            f"stage `{stage.name}`: `algorithm.advantage_fn: {own.advantage_fn}` with its "
            f"arguments is not that of stage `{source.name}` (`{made.advantage_fn}`), whose "
            "experiences have their advantages already: give both stages the same"
        )
