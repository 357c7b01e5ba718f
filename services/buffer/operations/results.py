"""Stores results of runs and turns of their sessions, and ends assignments with their last run."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from services.buffer.domain.results import (
    AssignmentView,
    CommitDecision,
    ReceivedSample,
    Result,
    ResultDeduplicator,
    StoredAttempt,
)
from services.buffer.domain.stage import (
    OPEN_ASSIGNMENT,
    AssignmentKind,
    AssignmentState,
    AttemptState,
    CommitStatus,
    ExperienceState,
    RunState,
    Stage,
)
from services.buffer.domain.turns import ReceivedTurn, TurnDecision, decide_turns
from services.buffer.operations.evaluation import close_evaluation, finish_if_done
from services.buffer.store.assignments import end_assignments
from services.buffer.store.database import SCOPES_TOPIC, notify, stage_topics
from services.buffer.store.experiences import insert_experiences
from services.buffer.store.media import hold_media, segment_user, use_media
from services.buffer.store.pipeline import hold_scopes, open_scopes
from services.buffer.store.reports import log_notice
from services.buffer.store.runs import (
    CommitContext,
    insert_attempts,
    load_commit_context,
    update_runs,
)
from services.buffer.store.segments import SegmentSize, grow_segment, open_segment
from services.buffer.store.stages import in_order, update_stage
from services.buffer.store.turns import insert_turns
from trinity.runtime.sql import Connection
from trinity.types import FinishReason, StageKey

UNREWARDED = (FinishReason.ABORT, FinishReason.PROMPT_TRUNCATED)
"""Samples with these reasons are never trained on, so their rewards are not awaited."""
STORED_STATES = {
    AttemptState.SUPERSEDED: ExperienceState.SUPERSEDED,
    AttemptState.LATE: ExperienceState.LATE,
}


class NeedsExclusiveStage(Exception):
    """Raised when consequences of these results need an exclusive lock on their stage."""


@dataclass(frozen=True, slots=True)
class _StageDecisions:
    """Decisions on a stage's results, and the results to store."""

    stage: Stage
    decisions: Sequence[CommitDecision]
    touched: Sequence[AssignmentView]
    samples: Sequence[tuple[Result, ExperienceState]]
    turns: Sequence[TurnDecision]
    before: SegmentSize
    """Size of the segment without these samples and turns."""

    @property
    def segment_size(self) -> SegmentSize:
        """Size of the segment including these samples and turns."""
        before, sizes = self.before, self.sizes
        return SegmentSize(before.num_rows + len(sizes), before.num_bytes + sum(sizes))

    @property
    def new(self) -> list[CommitDecision]:
        """Decisions on results that are stored."""
        return [decision for decision in self.decisions if decision.state is not None]

    @property
    def sizes(self) -> list[int]:
        """Sizes of the samples and turns to store, in bytes."""
        return [
            *(len(sample.body) for result, _ in self.samples for sample in result.experiences),
            *(len(received.body) for received in self.new_turns),
        ]

    @property
    def media(self) -> set[bytes]:
        """Hashes of the images of the samples and turns to store."""
        stored = [result for result, _ in self.samples]
        return _media_of(stored, self.new_turns)

    @property
    def new_turns(self) -> list[ReceivedTurn]:
        """The turns to store."""
        return [decision.turn for decision in self.turns if decision.is_new]

    @property
    def ended(self) -> list[AssignmentView]:
        """Assignments whose runs have all ended."""
        return [view for view in self.touched if _has_ended(view)]


@dataclass(frozen=True, slots=True)
class WrittenResults:
    """The decisions on results and turns."""

    results: list[CommitDecision]
    turns: list[TurnDecision]


@dataclass(frozen=True, slots=True)
class ResultWriter:
    """Stores batches of results in the caller's transaction.

    Several transactions may do so concurrently, even for one stage, unless they have results of the
    same assignments. All other operations on the stage are exclusive with them.
    """

    segment_max_rows: int
    segment_max_bytes: int

    async def write_results(
        self,
        connection: Connection,
        results: Sequence[Result],
        turns: Sequence[ReceivedTurn] = (),
        *,
        is_alone: bool,
    ) -> WrittenResults:
        """Decides on results and turns and stores them, together with everything that follows.

        Raises: NeedsExclusiveStage when another transaction must do it with `is_alone`.
        """
        decided = await _decide_all(connection, results, turns, is_alone=is_alone)
        if not is_alone and any(self._needs_exclusive(part) for part in decided):
            raise NeedsExclusiveStage
        known = {part.stage.key for part in decided}
        decisions = [
            CommitDecision(result=own, status=CommitStatus.REJECTED, reason=_unknown(own.key))
            for own in results
            if own.key not in known
        ]
        decisions += [decision for part in decided for decision in part.decisions]
        of_turns = [
            TurnDecision(turn=own, reason=_unknown(own.key))
            for own in turns
            if own.key not in known
        ]
        of_turns += [decision for part in decided for decision in part.turns]
        await _write(connection, decided)
        if is_alone:
            for part in decided:
                await self._finish_consequences(connection, part)
        return WrittenResults(decisions, of_turns)

    def _is_full(self, size: SegmentSize) -> bool:
        return size.num_rows >= self.segment_max_rows or size.num_bytes >= self.segment_max_bytes

    def _needs_exclusive(self, decided: _StageDecisions) -> bool:
        """Returns whether the consequences need to read results of the database."""
        return self._is_full(decided.segment_size) or bool(_measured(decided.ended))

    async def _finish_consequences(self, connection: Connection, decided: _StageDecisions) -> None:
        key = decided.stage.key
        if self._is_full(decided.segment_size):
            await update_stage(connection, key, segment_id=await open_segment(connection, key))
        await _end_evaluations(connection, decided.stage, decided.ended)


async def _decide_all(
    connection: Connection,
    results: Sequence[Result],
    turns: Sequence[ReceivedTurn],
    *,
    is_alone: bool,
) -> list[_StageDecisions]:
    """Decides on the results and turns of existing stages."""
    by_stage: dict[StageKey, tuple[list[Result], list[ReceivedTurn]]] = defaultdict(
        lambda: ([], [])
    )
    for result in results:
        by_stage[result.key][0].append(result)
    for turn in turns:
        by_stage[turn.key][1].append(turn)
    decided = []
    earlier: list[StoredAttempt] = []  # attempts of the previous stages
    for key in in_order(by_stage):
        own, own_turns = by_stage[key]
        before = await load_commit_context(connection, key, own, own_turns, is_alone=is_alone)
        if before is None:
            continue
        media = await hold_media(connection, key.tenant, _media_of(own, own_turns))
        decided.append(_decide(before, own, own_turns, earlier, media))
    return decided


def _media_of(results: Iterable[Result], turns: Iterable[ReceivedTurn]) -> set[bytes]:
    return set().union(*(own.media for own in results), *(own.media for own in turns))


def _decide(
    before: CommitContext,
    results: Sequence[Result],
    turns: Sequence[ReceivedTurn],
    earlier: list[StoredAttempt],
    media: Set[bytes],
) -> _StageDecisions:
    stage = before.stage
    of_turns = decide_turns(
        turns,
        views=before.views,
        known=before.known_turns,
        stage_is_open=stage.is_open,
        media=media,
        clients=before.client_tokens,
    )
    deduplicator = ResultDeduplicator(
        assignments=before.views,
        known=[*before.known, *earlier],
        stage_is_open=stage.is_open,
        max_attempts=stage.max_attempts,
        newest_version=stage.recorded_step,
        media=media,
    )
    decisions = [deduplicator.decide(result) for result in results]
    earlier += deduplicator.stored
    new = [decision for decision in decisions if decision.state is not None]
    ids = {decision.result.assignment_id: None for decision in new}
    samples = [part for decision in new for part in _samples(stage, decision, before.views)]
    return _StageDecisions(
        stage=stage,
        decisions=decisions,
        touched=[before.views[assignment_id] for assignment_id in ids],
        samples=samples,
        turns=of_turns,
        before=before.segment_size,
    )


async def _write(connection: Connection, decided: Sequence[_StageDecisions]) -> None:
    """Stores attempts with their samples, and their consequences."""
    for part in decided:
        key = part.stage.key
        await insert_attempts(connection, key, part.new)
        await insert_experiences(connection, key, part.stage.segment_id, part.samples)
        await insert_turns(connection, key, part.stage.segment_id, part.new_turns)
        await use_media(connection, key.tenant, segment_user(part.stage.segment_id), part.media)
    for part in decided:
        await _store_runs(connection, part)
    # Rows that results of other assignments lock too are locked last, in a fixed order.
    for part in decided:
        stage, sizes = part.stage, part.sizes
        if sizes:
            await grow_segment(connection, stage.key, stage.segment_id, len(sizes), sum(sizes))
    for part in decided:
        await _close(connection, part.stage, part.ended)


def _samples(
    stage: Stage, decision: CommitDecision, views: Mapping[str, AssignmentView]
) -> Iterator[tuple[Result, ExperienceState]]:
    """Yields the parts of a result to store: the samples that wait for a reward apart."""
    result = decision.result
    if not result.experiences:
        return
    state = _state_of(decision, views[result.assignment_id])
    if state is not ExperienceState.RAW or not stage.plan.config.buffer.await_feedback:
        yield result, state
        return
    awaiting = tuple(sample for sample in result.experiences if _is_awaited(sample))
    others = tuple(sample for sample in result.experiences if not _is_awaited(sample))
    for part, own in ((others, state), (awaiting, ExperienceState.AWAITING)):
        if part:
            yield replace(result, experiences=part), own


def _is_awaited(sample: ReceivedSample) -> bool:
    return sample.reward is None and sample.finish_reason not in UNREWARDED


async def _store_runs(connection: Connection, decided: _StageDecisions) -> None:
    """Stores the state of the runs whose results counted."""
    places = {
        (decision.result.assignment_id, decision.result.run)
        for decision in decided.new
        if decision.state in (AttemptState.WON, AttemptState.FAILED)
    }
    by_id = {view.assignment_id: view for view in decided.touched}
    changed = [
        (assignment_id, number, by_id[assignment_id].runs[number])
        for assignment_id, number in sorted(places)
    ]
    await update_runs(connection, decided.stage.key, changed)


def _unknown(key: StageKey) -> str:
    return f"stage {key.stage} of experiment {key.experiment_id} is not open"


def _state_of(decision: CommitDecision, view: AssignmentView) -> ExperienceState:
    assert decision.state is not None
    if decision.state in STORED_STATES:
        return STORED_STATES[decision.state]
    return ExperienceState.RAW if view.kind is AssignmentKind.TRAIN else ExperienceState.EVAL


async def _close(connection: Connection, stage: Stage, ended: Sequence[AssignmentView]) -> None:
    """Ends assignments after their last run, and starts the work that waits for them."""
    key = stage.key
    closed = [view for view in ended if _has_winner(view)]
    given_up = [view for view in ended if not _has_winner(view)]
    closed_ids = [view.assignment_id for view in closed]
    await end_assignments(connection, key, closed_ids, AssignmentState.CLOSED, "")
    for view in given_up:
        ids, reason = [view.assignment_id], _reason(view)
        await end_assignments(connection, key, ids, AssignmentState.GIVEN_UP, reason)
    await _log_given_up(connection, stage, given_up)
    trained = [view.assignment_id for view in closed if view.kind is AssignmentKind.TRAIN]
    await open_scopes(connection, key, trained)
    if stage.plan.config.buffer.await_feedback:
        await hold_scopes(connection, key, trained)
    if given_up:
        # An explore step that is processed as a whole may have waited for these alone.
        await notify(connection, SCOPES_TOPIC, *stage_topics(key))


async def _end_evaluations(
    connection: Connection, stage: Stage, ended: Sequence[AssignmentView]
) -> None:
    """Closes complete evaluations; for train groups, the pipeline notifies when it is done."""
    measured = _measured(ended)
    for version, taskset in sorted(measured):
        await close_evaluation(connection, stage, version, taskset)
    if measured:
        await finish_if_done(connection, stage)
        await notify(connection, *stage_topics(stage.key))


def _measured(ended: Iterable[AssignmentView]) -> set[tuple[int, str]]:
    """Returns versions and tasksets of evaluations that some of these belong to."""
    return {(view.explore_step, view.taskset) for view in ended if view.kind is AssignmentKind.EVAL}


def _has_ended(view: AssignmentView) -> bool:
    return view.state in OPEN_ASSIGNMENT and all(
        run.state is not RunState.OPEN for run in view.runs.values()
    )


def _has_winner(view: AssignmentView) -> bool:
    return any(run.state is RunState.WON for run in view.runs.values())


def _reason(view: AssignmentView) -> str:
    return next((run.reason for run in view.runs.values() if run.reason), "")


async def _log_given_up(
    connection: Connection, stage: Stage, views: Sequence[AssignmentView]
) -> None:
    if not views:
        return
    first = views[0]
    what = "evaluation of version" if first.kind is AssignmentKind.EVAL else "explore step"
    text = (
        f"{what} {first.explore_step}: tasks given up, as all of their runs failed: {len(views)}, "
        f"first row {first.task_index} of {first.taskset}: {_reason(first)}"
    )  # one wording for all counts: notices that differ in numbers alone are shown once
    await log_notice(connection, stage.key, text)
