"""Stores results of runs, and ends the assignments whose runs have all ended."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.judgement import Judge, Verdict
from services.buffer.domain.results import AssignmentView, Result
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import (
    OPEN_ASSIGNMENT,
    AssignmentKind,
    AssignmentState,
    AttemptState,
    ExperienceState,
    Fate,
    RunState,
)
from services.buffer.handlers.ending import finish_if_done
from services.buffer.handlers.evaluating import close_evaluation
from services.buffer.handlers.feedback import by_awaited
from services.buffer.store.assignments import end_assignments
from services.buffer.store.database import SCOPES_TOPIC, notify, stage_topics, unanswered
from services.buffer.store.experiences import insert_experiences
from services.buffer.store.feedback import hold_scopes
from services.buffer.store.progress import log_event
from services.buffer.store.runs import (
    insert_attempts,
    load_known,
    load_views,
    update_open_counts,
    update_runs,
)
from services.buffer.store.scopes import open_scopes
from services.buffer.store.segments import Held, grow_segment, open_segment
from services.buffer.store.stages import lock_stages, update_stage
from trinity.types import StageKey

FEW_ROWS = 8
"""Of attempts and samples: for so few no stream is begun, which takes ways to the database."""
KEPT_AS = {
    AttemptState.SUPERSEDED: ExperienceState.SUPERSEDED,
    AttemptState.LATE: ExperienceState.LATE,
}


@dataclass(frozen=True, slots=True)
class Settler:
    """Settles a bunch of results in the caller's transaction."""

    segment_max_rows: int
    segment_max_bytes: int

    async def settle(self, connection: AsyncConnection, results: Sequence[Result]) -> list[Verdict]:
        """Judge and store results; everything that follows from them happens with them."""
        by_stage: dict[StageKey, list[Result]] = defaultdict(list)
        for result in results:
            by_stage[result.key].append(result)
        stages = await lock_stages(connection, by_stage)
        verdicts = [_unknown(result) for result in results if result.key not in stages]
        for key, stage in stages.items():
            verdicts += await self._settle_stage(connection, stage, by_stage[key])
        return verdicts

    async def _settle_stage(
        self, connection: AsyncConnection, stage: Stage, results: Sequence[Result]
    ) -> list[Verdict]:
        key = stage.key
        ids = {result.assignment_id for result in results}
        async with unanswered(connection):
            views, known = await asyncio.gather(
                load_views(connection, key, ids), load_known(connection, key, results)
            )
        judge = Judge(
            assignments=views,
            known=known,
            stage_is_open=stage.is_open,
            max_attempts=stage.max_attempts,
        )
        verdicts = [judge.judge(result) for result in results]
        new = [verdict for verdict in verdicts if verdict.state is not None]
        touched = [views[one] for one in {verdict.result.assignment_id: None for verdict in new}]
        held = await _store(connection, stage, new, touched)
        if held.num_rows >= self.segment_max_rows or held.num_bytes >= self.segment_max_bytes:
            segment_id = await open_segment(connection, key)
            await update_stage(connection, key, segment_id=segment_id)
        await _end_evaluations(connection, stage, [one for one in touched if _has_ended(one)])
        return verdicts


async def _store(
    connection: AsyncConnection,
    stage: Stage,
    new: Sequence[Verdict],
    touched: Sequence[AssignmentView],
) -> Held:
    """Store attempts with their samples, and what follows from them; answers the segment's fill.

    Many rows are streamed, and what follows goes together; few rows go with it.
    """
    views = {view.assignment_id: view for view in touched}
    samples = [part for verdict in new for part in _samples(stage, verdict, views)]
    are_few = len(new) + sum(len(one.experiences) for one, _ in samples) <= FEW_ROWS
    async with AsyncExitStack() as together:
        if are_few:
            await together.enter_async_context(unanswered(connection))
        await insert_attempts(connection, stage.key, new)
        await insert_experiences(connection, stage.key, stage.segment_id, samples)
        if not are_few:
            await together.enter_async_context(unanswered(connection))
        await _store_runs(connection, stage, new, touched)
        await _close(connection, stage, [view for view in touched if _has_ended(view)])
        return await _grow(connection, stage, samples)


def _samples(
    stage: Stage, verdict: Verdict, views: Mapping[str, AssignmentView]
) -> Iterable[tuple[Result, ExperienceState]]:
    """What is stored of a result, with its state."""
    if not verdict.result.experiences:
        return ()
    state = _state_of(verdict, views[verdict.result.assignment_id])
    return by_awaited(stage, verdict.result, state)


async def _grow(
    connection: AsyncConnection, stage: Stage, samples: Sequence[tuple[Result, ExperienceState]]
) -> Held:
    """Count what was stored; answers what the segment holds now."""
    sizes = [len(one.body) for result, _ in samples for one in result.experiences]
    if not sizes:
        return Held(0, 0)
    return await grow_segment(connection, stage.key, stage.segment_id, len(sizes), sum(sizes))


async def _store_runs(
    connection: AsyncConnection,
    stage: Stage,
    new: Sequence[Verdict],
    touched: Sequence[AssignmentView],
) -> None:
    """Keep how the runs stand whose results counted."""
    places = {
        (verdict.result.assignment_id, verdict.result.run)
        for verdict in new
        if verdict.state in (AttemptState.WON, AttemptState.FAILED)
    }
    by_id = {view.assignment_id: view for view in touched}
    changed = [(one, number, by_id[one].runs[number]) for one, number in sorted(places)]
    await update_runs(connection, stage.key, changed)
    await update_open_counts(connection, stage.key, sorted({one for one, _ in places}))


def _unknown(result: Result) -> Verdict:
    reason = f"stage {result.key.stage} of experiment {result.key.experiment_id} is not open"
    return Verdict(result=result, fate=Fate.REJECTED, reason=reason)


def _state_of(verdict: Verdict, view: AssignmentView) -> ExperienceState:
    assert verdict.state is not None
    if verdict.state in KEPT_AS:
        return KEPT_AS[verdict.state]
    return ExperienceState.RAW if view.kind is AssignmentKind.TRAIN else ExperienceState.EVAL


async def _close(
    connection: AsyncConnection, stage: Stage, ended: Sequence[AssignmentView]
) -> None:
    """End assignments all of whose runs have ended, and begin what waits for them."""
    key = stage.key
    closed = [view for view in ended if _has_winner(view)]
    given_up = [view for view in ended if not _has_winner(view)]
    await end_assignments(
        connection, key, [view.assignment_id for view in closed], AssignmentState.CLOSED, ""
    )
    for view in given_up:
        await end_assignments(
            connection, key, [view.assignment_id], AssignmentState.GIVEN_UP, _reason(view)
        )
    await _say_given_up(connection, stage, given_up)
    trained = [view.assignment_id for view in closed if view.kind is AssignmentKind.TRAIN]
    await open_scopes(connection, key, trained)
    if stage.plan.config.buffer.await_feedback:
        await hold_scopes(connection, key, trained)
    if given_up:
        # An explore step that is shaped as a whole may have waited for these alone.
        await notify(connection, SCOPES_TOPIC, *stage_topics(key))


async def _end_evaluations(
    connection: AsyncConnection, stage: Stage, ended: Sequence[AssignmentView]
) -> None:
    """Groups that closed are told of when the pipeline is done with them."""
    measured = {
        (view.explore_step, view.taskset) for view in ended if view.kind is AssignmentKind.EVAL
    }
    for version, taskset in sorted(measured):
        await close_evaluation(connection, stage, version, taskset)
    if measured:
        await finish_if_done(connection, stage)
        await notify(connection, *stage_topics(stage.key))


def _has_ended(view: AssignmentView) -> bool:
    return view.state in OPEN_ASSIGNMENT and all(
        run.state is not RunState.OPEN for run in view.runs.values()
    )


def _has_winner(view: AssignmentView) -> bool:
    return any(run.state is RunState.WON for run in view.runs.values())


def _reason(view: AssignmentView) -> str:
    return next((run.reason for run in view.runs.values() if run.reason), "")


async def _say_given_up(
    connection: AsyncConnection, stage: Stage, views: Sequence[AssignmentView]
) -> None:
    if not views:
        return
    first = views[0]
    what = "evaluation of version" if first.kind is AssignmentKind.EVAL else "explore step"
    text = (
        f"{what} {first.explore_step}: {_given_up(len(views))} "
        f"row {first.task_index} of {first.taskset}: {_reason(first)}"
    )
    await log_event(connection, stage.key, Notice(text=text))


def _given_up(num_tasks: int) -> str:
    """How many there were, before the one whose reason is told."""
    if num_tasks == 1:
        return "1 task was given up, as all of its runs failed:"
    return f"{num_tasks} tasks were given up, as all of their runs failed; one of them,"
