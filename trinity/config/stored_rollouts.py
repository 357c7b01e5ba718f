"""Whose experiences a stage of mode train takes: an earlier stage's, or another run's."""

from collections.abc import Sequence

from trinity.config.plan import StagePlan
from trinity.config.plan_parts import StoredRollouts
from trinity.errors import UserError

UNKNOWN = "00000000-0000-0000-0000-000000000000"
"""The id of an experiment until the stack runs that knows it."""


def with_stored_rollouts(stages: Sequence[StagePlan]) -> tuple[StagePlan, ...]:
    """The plans, of which those that train on rollouts without an explorer name their source.

    Raises: UserError where there is none, or it has prepared its rows otherwise.
    """
    return tuple(_sourced(stage, stages[:index]) for index, stage in enumerate(stages))


def _sourced(stage: StagePlan, before: Sequence[StagePlan]) -> StagePlan:
    given = stage.config.buffer.trainer_input.experience_buffer
    if not _takes_stored(stage):
        if given.source_run or given.source_stage:
            raise UserError(
                f"stage `{stage.name}`: `experience_buffer.source_run` goes with `mode: train` and "
                "an algorithm that trains on rollouts, as grpo: remove it, or change these"
            )
        return stage
    if given.source_stage and not given.source_run:
        raise UserError(
            f"stage `{stage.name}`: `experience_buffer.source_stage` is a stage of another run: "
            "name that with `source_run`"
        )
    if given.source_run:
        return _of_another_run(stage, given.source_run)
    return _of_earlier_stage(stage, before)


def _takes_stored(stage: StagePlan) -> bool:
    return stage.mode == "train" and stage.algorithm.row_schema == "experience"


def _of_earlier_stage(stage: StagePlan, before: Sequence[StagePlan]) -> StagePlan:
    source = next((one for one in reversed(before) if one.mode == "explore"), None)
    if source is None:
        raise UserError(
            f"stage `{stage.name}`: `mode: train` with `algorithm_type: {stage.algorithm_type}` "
            "trains on the experiences of an earlier stage of `mode: explore`, and there is none: "
            "write one in front of it in `stages`, name another run with "
            "`buffer.trainer_input.experience_buffer.source_run`, or give `mode: both`"
        )
    _check_order(stage)
    if source.external_model is not None:
        raise UserError(
            f"stage `{stage.name}`: stage `{source.name}` explores with a model that others serve "
            "(`model.external_model.enable`), which tells no log-probabilities to train on: "
            "explore with a model of your own, or leave the training out"
        )
    stored = StoredRollouts(stage=source.name)
    check_rows(stage, source, stored)
    return stage.model_copy(update={"stored_rollouts": stored})


def _of_another_run(stage: StagePlan, run: str) -> StagePlan:
    """What that run is, only its directory or the running stack knows."""
    config = stage.config
    label = label_of(run, config.project, config.group)
    if label == "/".join(part for part in (config.project, config.group, config.name) if part):
        raise UserError(
            f"stage `{stage.name}`: `experience_buffer.source_run: {run}` is this run itself: name "
            "another one, or write a stage of `mode: explore` in front of this one"
        )
    _check_order(stage)
    named = config.buffer.trainer_input.experience_buffer.source_stage
    stored = StoredRollouts(experiment_id=UNKNOWN, stage=named, run=label)
    return stage.model_copy(update={"stored_rollouts": stored})


def label_of(run: str, project: str, group: str) -> str:
    """A name alone is one of the same project and group."""
    return run if "/" in run else "/".join(part for part in (project, group, run) if part)


def _check_order(stage: StagePlan) -> None:
    if stage.algorithm.sampling.expert_buffer is not None or stage.replay is not None:
        raise UserError(
            f"stage `{stage.name}`: stored experiences are trained in order, without "
            "`replay_buffer.enable` and without a `sample_strategy` that mixes rows of data in: "
            "remove it, or give `mode: both`"
        )


def check_rows(stage: StagePlan, source: StagePlan, stored: StoredRollouts) -> None:
    """The buffer makes advantages where rows are made; the trainer makes its own of any rows.

    Raises: UserError when those of `source` have other ones.
    """
    own, made = stage.algorithm, source.algorithm
    if own.advantage_in_trainer and made.advantage_in_trainer:
        return
    if (own.advantage_fn, own.advantage_fn_args) != (made.advantage_fn, made.advantage_fn_args):
        raise UserError(
            f"stage `{stage.name}`: `algorithm.advantage_fn: {own.advantage_fn}` with its "
            f"arguments is not that of {stored.words} (`{made.advantage_fn}`), whose "
            "experiences have their advantages already: give both the same"
        )
