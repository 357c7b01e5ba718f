"""Source of a train stage's experiences: an earlier stage or another run.

Batches refer to the other stage's samples. Copies would double the largest table and give a sample
two ids, of which a person who excludes it finds only one. The other run must have ended, or its
least used rows would depend on when one looks.
"""

from collections.abc import Sequence

from trinity.config.plan.parts import StoredRollouts
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

UNKNOWN = "00000000-0000-0000-0000-000000000000"
"""Placeholder for an experiment's id, until the running stack supplies it."""


def resolve_stored_rollouts(stages: Sequence[StagePlan]) -> tuple[StagePlan, ...]:
    """Returns the plans, with the source of rollouts for stages that train without an explorer.

    Raises: UserError if there is no source, or if its rows were prepared in another way.
    """
    return tuple(_resolve_source(stage, stages[:index]) for index, stage in enumerate(stages))


def _resolve_source(stage: StagePlan, before: Sequence[StagePlan]) -> StagePlan:
    buffer = stage.config.buffer.trainer_input.experience_buffer
    if stage.mode != "train" or stage.algorithm.row_schema != "experience":
        if buffer.source_run or buffer.source_stage:
            raise UserError(
                f"stage `{stage.name}`: `experience_buffer.source_run` goes with `mode: train` and "
                "an algorithm that trains on rollouts, as grpo: remove it, or change these"
            )
        return stage
    if buffer.source_stage and not buffer.source_run:
        raise UserError(
            f"stage `{stage.name}`: `experience_buffer.source_stage` is a stage of another run: "
            "name that with `source_run`"
        )
    if buffer.source_run:
        return _of_another_run(stage, buffer.source_run)
    return _of_earlier_stage(stage, before)


def _of_earlier_stage(stage: StagePlan, before: Sequence[StagePlan]) -> StagePlan:
    source = next((earlier for earlier in reversed(before) if earlier.mode == "explore"), None)
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
    check_stored_advantages(stage, source, stored)
    return stage.model_copy(update={"stored_rollouts": stored})


def _of_another_run(stage: StagePlan, run: str) -> StagePlan:
    """Names the run by its label; its directory or the running stack resolves it later."""
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
    """The label of a run; a name alone is one of the same project and group."""
    return run if "/" in run else "/".join(part for part in (project, group, run) if part)


def _check_order(stage: StagePlan) -> None:
    if stage.algorithm.sampling.expert_buffer is not None or stage.replay is not None:
        raise UserError(
            f"stage `{stage.name}`: stored experiences are trained in order, without "
            "`replay_buffer.enable` and without a `sample_strategy` that mixes rows of data in: "
            "remove it, or give `mode: both`"
        )


def check_stored_advantages(stage: StagePlan, source: StagePlan, stored: StoredRollouts) -> None:
    """Checks that stored rows have the advantages that the stage needs.

    The buffer computes advantages when rows are made; the trainer computes its own for any rows.

    Raises: UserError if the rows of `source` have other ones.
    """
    own, made = stage.algorithm, source.algorithm
    if own.advantage_in_trainer and made.advantage_in_trainer:
        return
    if (own.advantage_fn, own.advantage_fn_args) != (made.advantage_fn, made.advantage_fn_args):
        raise UserError(
            f"stage `{stage.name}`: `algorithm.advantage_fn: {own.advantage_fn}` with its "
            f"arguments is not that of {stored.description} (`{made.advantage_fn}`), whose "
            "experiences have their advantages already: give both the same"
        )
