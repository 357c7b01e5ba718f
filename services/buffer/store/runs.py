"""Statements on runs and the attempts at them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.domain.results import (
    AssignmentView,
    CommitDecision,
    Result,
    RunProgress,
    StoredAttempt,
)
from services.buffer.domain.stage import (
    AssignmentKind,
    AssignmentState,
    AttemptState,
    RunState,
    Stage,
)
from services.buffer.domain.turns import ReceivedTurn
from services.buffer.store.database import (
    BIGINTS,
    INTEGERS,
    UUIDS,
    decode_numbers,
    encode_numbers,
    id_in,
    in_stage,
    insert_rows,
    key_columns,
    of_stage,
    one_of,
    stage_params,
    value_of,
)
from services.buffer.store.schema import STAGE_KEY, assignment, run, run_attempt
from services.buffer.store.segments import FILL, SegmentSize
from services.buffer.store.stages import locking, stage_of
from services.buffer.store.turns import KNOWN as KNOWN_TURNS
from services.buffer.store.turns import TOKENS
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

RUN_COLUMNS = ("run", "state", "num_failed", "reason")


# A subquery per assignment: a join might compare every run with every assignment.
_RUNS = (
    sa.select(sa.func.json_agg(sa.func.json_build_array(*(run.c[name] for name in RUN_COLUMNS))))
    .where(*(run.c[name] == assignment.c[name] for name in (*STAGE_KEY, "assignment_id")))
    .scalar_subquery()
)
_VIEWS = sa.select(assignment, _RUNS.label("runs")).where(
    of_stage(assignment), id_in(assignment.c.assignment_id)
)
_KNOWN = sa.select(
    *(run_attempt.c[name] for name in ("assignment_id", "run", "attempt")),
    *(run_attempt.c[name] for name in ("producer", "sequence", "content_hash", "state")),
)
_BY_PLACE_OR_SEQUENCE = sa.union_all(
    _KNOWN.where(in_stage(run_attempt), id_in(run_attempt.c.assignment_id)),
    _KNOWN.where(
        run_attempt.c.producer == sa.bindparam("given_producer"),
        run_attempt.c.sequence == sa.any_(sa.bindparam("sequences", type_=BIGINTS)),
    ),
)
# Serializes commits of results of the same assignments; the fixed order avoids deadlocks.
_HOLD = sa.select(sa.func.count()).select_from(
    sa.select(assignment.c.assignment_id)
    .where(of_stage(assignment), id_in(assignment.c.assignment_id))
    .order_by(assignment.c.assignment_id)
    .with_for_update(key_share=True)
    .subquery("held")
)
# The ids find the rows by index, the places select among them. `IN (SELECT ...) IS TRUE` makes
# Postgres hash the places: it would scan an array for each row, and the plan of a join varies.
_PLACES = sa.select(
    sa.func.unnest(sa.bindparam("run_ids", type_=UUIDS)),
    sa.func.unnest(sa.bindparam("run_numbers", type_=INTEGERS)),
)
_UPDATE_RUNS = (
    sa.update(run)
    .where(
        in_stage(run),
        id_in(run.c.assignment_id),
        sa.tuple_(run.c.assignment_id, run.c.run).in_(_PLACES).is_(sa.true()),
    )
    .values(
        state=sa.bindparam("new_state"),
        num_failed=sa.bindparam("new_num_failed"),
        reason=sa.bindparam("new_reason"),
    )
)
_NUM_OPEN_RUNS = (
    sa.select(sa.func.count())
    .select_from(run)
    .where(*(run.c[name] == assignment.c[name] for name in (*STAGE_KEY, "assignment_id")))
    .where(run.c.state == RunState.OPEN)
    .scalar_subquery()
)
_UPDATE_OPEN_COUNTS = (
    sa.update(assignment)
    .where(of_stage(assignment), id_in(assignment.c.assignment_id))
    .values(num_open_runs=_NUM_OPEN_RUNS)
)
_OF_KIND = sa.and_(
    in_stage(assignment), assignment.c.kind == sa.bindparam("given_kind", type_=sa.Text)
)
_COUNT = sa.func.count()
_FIRST_STEP = (
    sa.select(sa.func.min(assignment.c.explore_step))
    .where(_OF_KIND, assignment.c.is_open)
    .correlate(None)
    .scalar_subquery()
)
_OLDEST_OPEN = sa.select(
    sa.func.min(assignment.c.explore_step).label("explore_step"),
    _COUNT.filter(assignment.c.is_open).label("num_open"),
    _COUNT.filter(assignment.c.state == AssignmentState.PENDING).label("num_pending"),
    _COUNT.label("num_all"),
    sa.func.array_agg(sa.distinct(assignment.c.leased_by))
    .filter(assignment.c.state == AssignmentState.LEASED)
    .label("holders"),
    sa.func.max(assignment.c.required_version).label("required_version"),
).where(_OF_KIND, assignment.c.explore_step == _FIRST_STEP)
_WON_RUNS = (
    sa.select(
        run_attempt.c.assignment_id,
        run_attempt.c.run,
        run_attempt.c.metrics,
        run_attempt.c.duration_seconds,
    )
    .where(
        in_stage(run_attempt),
        id_in(run_attempt.c.assignment_id),
        one_of(run_attempt.c.state, [AttemptState.WON]),
    )
    .order_by(run_attempt.c.assignment_id, run_attempt.c.run)
)


def _view(row: Row) -> AssignmentView:
    return value_of(
        AssignmentView,
        row,
        kind=AssignmentKind(row.kind),
        state=AssignmentState(row.state),
        runs={
            number: RunProgress(state=RunState(state), num_failed=num_failed, reason=reason)
            for number, state, num_failed, reason in row.runs or ()
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitContext:
    """The stored state that decisions on results depend on."""

    stage: Stage
    views: dict[str, AssignmentView]
    """Assignments of the results, with the state of each run."""
    known: list[StoredAttempt]
    """Stored attempts with the place or the sequence of any of the results."""
    segment_size: SegmentSize
    """Contents of the segment that takes their samples."""
    known_turns: dict[str, bytes]
    """Hashes of the stored ones among the given turns and their parents, by id."""
    client_tokens: dict[str, str]
    """Tokens of the clients' sessions of the turns, by id."""


async def load_commit_context(
    connection: Connection,
    key: StageKey,
    results: Sequence[Result],
    turns: Sequence[ReceivedTurn],
    *,
    is_alone: bool,
) -> CommitContext | None:
    """Loads the state that decisions on a stage's results and turns depend on; None without one.

    It is locked until the transaction ends: the assignments exclusively, the stage shared, or
    exclusively too with `is_alone`.

    Raises: UnreadablePlan.
    """
    of_turns = (own.assignment_id for own in turns if own.assignment_id is not None)
    ids = list({*(own.assignment_id for own in results), *of_turns})
    clients = list({own.session_id for own in turns if own.assignment_id is None})
    turn_ids = {turn_id for own in turns for turn_id in (own.turn_id, own.parent_id) if turn_id}
    of_runs = [(_HOLD, stage_params(key, ids=ids)), (_VIEWS, stage_params(key, ids=ids))]
    _, stages, fill, *found = await connection.fetch_together(
        *locking(key, is_shared=not is_alone),
        (FILL, stage_params(key)),
        *(of_runs if ids else []),
        *((_BY_PLACE_OR_SEQUENCE, values) for values in _by_producer(key, results)),
        *([(KNOWN_TURNS, stage_params(key, ids=list(turn_ids)))] if turn_ids else []),
        *([(TOKENS, stage_params(key, ids=clients))] if clients else []),
    )
    tokens = found.pop() if clients else []
    known_turns = found.pop() if turn_ids else []
    views, attempts = (found[1], found[2:]) if ids else ([], [])
    if (stage := stage_of(stages)) is None:
        return None
    known = [
        value_of(StoredAttempt, row, place=(row.assignment_id, row.run, row.attempt))
        for rows in attempts
        for row in rows
    ]
    return CommitContext(
        stage=stage,
        views={row.assignment_id: _view(row) for row in views},
        known=known,
        segment_size=SegmentSize(fill[0].num_rows, fill[0].num_bytes),
        known_turns={row.turn_id: row.content_hash for row in known_turns},
        client_tokens={row.session_id: row.token for row in tokens},
    )


def _by_producer(key: StageKey, results: Sequence[Result]) -> Iterator[dict[str, object]]:
    by_producer: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_producer[result.producer].append(result)
    for producer, own in by_producer.items():
        ids = list({result.assignment_id for result in own})
        sequences = [result.sequence for result in own]
        yield stage_params(key, ids=ids, given_producer=producer, sequences=sequences)


async def insert_attempts(
    connection: Connection, key: StageKey, decisions: Sequence[CommitDecision]
) -> None:
    """Inserts new attempts."""
    rows = [
        {
            **key_columns(key),
            "assignment_id": decision.result.assignment_id,
            "run": decision.result.run,
            "attempt": decision.result.attempt,
            "producer": decision.result.producer,
            "sequence": decision.result.sequence,
            "state": decision.state,
            "reason": decision.result.reason,
            "content_hash": decision.result.content_hash,
            "metrics": encode_numbers(decision.result.metrics),
            "duration_seconds": decision.result.duration_seconds,
        }
        for decision in decisions
    ]
    await insert_rows(connection, run_attempt, rows)


async def update_runs(
    connection: Connection, key: StageKey, changed: Sequence[tuple[str, int, RunProgress]]
) -> None:
    """Stores the state of runs after decisions on their results, and how many are still open.

    Equal ones share a statement.
    """
    alike: dict[tuple[RunState, int, str], list[tuple[str, int]]] = defaultdict(list)
    for own_id, number, open_run in changed:
        alike[open_run.state, open_run.num_failed, open_run.reason].append((own_id, number))
    for (state, num_failed, reason), runs in alike.items():
        values = {"new_state": state, "new_num_failed": num_failed, "new_reason": reason}
        run_ids, numbers = zip(*runs, strict=True)
        ids = list(set(run_ids))
        places = {"ids": ids, "run_ids": run_ids, "run_numbers": numbers}
        await connection.execute(_UPDATE_RUNS, stage_params(key, **places, **values))
    if own_ids := sorted({own_id for own_id, *_ in changed}):
        await connection.execute(_UPDATE_OPEN_COUNTS, stage_params(key, ids=own_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """Assignments of an explore step that have not ended."""

    explore_step: int
    num_open: int
    num_pending: int
    num_all: int
    holders: tuple[str, ...]
    required_version: int
    """The newest weights that any of them needs."""


async def most_common_failure(connection: Connection, key: StageKey) -> str:
    """Returns the most frequent reason of runs that were given up; empty without any."""
    counted = (
        sa.select(run.c.reason)
        .where(in_stage(run, key), run.c.state == RunState.GIVEN_UP, run.c.reason != "")
        .group_by(run.c.reason)
        .order_by(sa.func.count().desc(), run.c.reason)
        .limit(1)
    )
    return await connection.fetch_value(counted) or ""


async def oldest_open_work(
    connection: Connection, key: StageKey, *kinds: AssignmentKind
) -> list[OpenWork | None]:
    """Returns, for each kind, the first explore step (evaluations: version) with open work."""
    asked = [(_OLDEST_OPEN, stage_params(key, given_kind=kind)) for kind in kinds]
    return [_open_work(row) for [row] in await connection.fetch_together(*asked)]


def _open_work(row: Row) -> OpenWork | None:
    if row.explore_step is None:
        return None
    return value_of(OpenWork, row, holders=tuple(row.holders or ()))


@dataclass(frozen=True, slots=True)
class WonRun:
    """A run by its winning attempt."""

    metrics: dict[str, float]
    duration_seconds: float


async def won_runs(
    connection: Connection, key: StageKey, assignment_ids: Iterable[str]
) -> dict[tuple[str, int], WonRun]:
    """Returns won runs by assignment and run."""
    rows = await connection.fetch(_WON_RUNS, stage_params(key, ids=list(assignment_ids)))
    return {
        (row.assignment_id, row.run): WonRun(decode_numbers(row.metrics), row.duration_seconds)
        for row in rows
    }
