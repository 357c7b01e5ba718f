"""Statements on commit reports to producers, dead letters, blobs and progress events."""

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.dialects.postgresql import insert

from services.buffer.domain.stage import CommitStatus
from services.buffer.domain.tasks import (
    KINDS,
    Event,
    NoticeEvent,
    SamplesEvent,
    SettingChange,
    SettingsChanged,
)
from services.buffer.store.database import (
    BIGINTS,
    CHANNEL,
    columns_of,
    count_rows,
    encode_numbers,
    in_stage,
    insert_bodies,
    key_columns,
    notify,
    number_in,
    producer_topic,
    progress_topic,
    value_of,
)
from services.buffer.store.schema import NOW, blob, commit_report, dead_letter, progress
from trinity.runtime.sql import Connection, Row
from trinity.types import JsonValue, StageKey

MAX_DEAD_LETTERS = 10_000
"""Only the newest are kept, so that messages that cannot be stored do not fill the disk."""
MAX_BODY_BYTES = 64 * 1024
"""Limit of the body that a dead letter keeps."""
MAX_SUBJECT_LENGTH = 500
"""Limited because it is in an index."""
TOLD = timedelta(hours=1)
"""Time for which a producer can ask for the status of a result without sending it again."""
TAKEN = timedelta(days=1)
"""Time for which it is known that a blob was taken out."""
ABANDONED = timedelta(days=7)
"""Time after which an unused blob is deleted; messages wait for a much shorter time."""

MAX_LISTED_CHANGES = 100
"""Most changed settings of one event, and of one answer."""

REPORT_PAGES = 256
"""Pages per statement when old reports are deleted: two MiB, some 20,000 reports."""
BLOB_PAGES = 16
"""Pages per statement for blobs, whose bodies lie in other pages and are deleted with them."""
_AFTER = (
    sa.select(commit_report)
    .where(
        commit_report.c.producer == sa.bindparam("given_producer"),
        commit_report.c.number > sa.bindparam("after"),
    )
    .order_by(commit_report.c.number)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_OLD_REPORT = commit_report.c.reported_at < NOW - TOLD
_OLD_BLOB = sa.or_(
    sa.and_(blob.c.body.is_(None), blob.c.stored_at < NOW - TAKEN),
    blob.c.stored_at < NOW - ABANDONED,
)
_NUM_PAGES = sa.text(
    "SELECT pg_relation_size(CAST(:name AS regclass)) / CAST(current_setting('block_size') AS int)"
)
_IN_PAGES = sa.text("ctid >= CAST(:first AS tid) AND ctid < CAST(:after AS tid)")
_OF_EXPERIMENT = (
    progress.c.tenant == sa.bindparam("tenant"),
    progress.c.experiment_id == sa.bindparam("experiment_id", type_=progress.c.experiment_id.type),
)
_LOCK = sa.select(
    sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(sa.bindparam("topic", type_=sa.Text), 0))
)
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(progress.c.number), 0)).where(*_OF_EXPERIMENT)
_APPEND = (
    sa.insert(progress)
    .values(
        tenant=sa.bindparam("tenant"),
        experiment_id=sa.bindparam("experiment_id", type_=progress.c.experiment_id.type),
        number=_NEWEST.scalar_subquery() + 1,
        stage=sa.bindparam("stage"),
        kind=sa.bindparam("kind"),
        body=sa.bindparam("body", type_=progress.c.body.type),
    )
    .inline()  # no RETURNING of the number
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReport:
    """The commit status of one result; `number` orders the reports of a producer."""

    producer: str
    sequence: int
    status: CommitStatus
    reason: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message from the stream that cannot be stored."""

    subject: str
    reason: str
    body: bytes
    producer: str | None = None
    sequence: int | None = None


COMMIT_REPORT = commit_report.c
_LOCK_AND_NOTIFY = sa.text(
    "SELECT pg_advisory_xact_lock(hashtextextended(topic, 0)), pg_notify(:channel, topic)"
    " FROM unnest(CAST(:topics AS text[])) AS topic"
)
_INSERT = (
    insert(commit_report)
    .from_select(
        ["producer", "state", "reason", "sequence"],
        sa.select(
            *(
                sa.bindparam(f"own_{name}", type_=COMMIT_REPORT[name].type)
                for name in ("producer", "state")
            ),
            sa.bindparam("own_reason", type_=COMMIT_REPORT.reason.type),
            sa.func.unnest(sa.bindparam("sequences", type_=BIGINTS)),
        ),
    )
    .on_conflict_do_update(
        index_elements=["producer", "sequence"],
        set_={"number": sa.text("DEFAULT"), "reported_at": NOW},
    )
)


async def insert_reports(connection: Connection, reports: Sequence[CommitReport]) -> None:
    """Stores reports; a stored status is never changed. Equal ones share a statement.

    Producers are locked first, so that their reports become visible in order of their numbers.
    """
    if not reports:
        return
    producers = sorted({report.producer for report in reports})
    topics = [producer_topic(producer) for producer in producers]
    await connection.execute(_LOCK_AND_NOTIFY, {"topics": topics, "channel": CHANNEL})
    first: dict[tuple[str, int], CommitReport] = {}
    for report in reports:
        first.setdefault((report.producer, report.sequence), report)
    alike: dict[tuple[str, CommitStatus, str], list[int]] = defaultdict(list)
    for (producer, sequence), report in first.items():
        alike[producer, report.status, report.reason].append(sequence)
    for (producer, fate, reason), sequences in alike.items():
        own = {"own_producer": producer, "own_state": fate, "own_reason": reason}
        await connection.execute(_INSERT, {**own, "sequences": sequences})


async def load_reports(
    connection: Connection, producer: str, *, after: int, limit: int
) -> list[CommitReport]:
    """Returns reports to a producer after a number."""
    values = {"given_producer": producer, "after": after, "limit": limit}
    return _reports(await connection.fetch(_AFTER, values))


async def load_statuses(
    connection: Connection,
    producer: str,
    sequences: Sequence[int],
    *,
    after_sequence: int,
    limit: int,
) -> list[CommitReport]:
    """Returns the status of these results and of all later ones of the producer, page by page.

    Empty without sequences.
    """
    if not sequences:
        return []
    c = commit_report.c
    wanted = sa.or_(number_in(c.sequence, sequences), c.sequence > max(sequences))
    statement = (
        sa.select(commit_report)
        .where(c.producer == producer, c.sequence > after_sequence, wanted)
        .order_by(c.sequence)
        .limit(limit)
    )
    return _reports(await connection.fetch(statement))


async def newest_report(connection: Connection, producer: str) -> int:
    """Returns the number of the last report to a producer, or 0."""
    statement = sa.select(sa.func.max(commit_report.c.number)).where(
        commit_report.c.producer == producer
    )
    return await connection.fetch_value(statement) or 0


def _reports(rows: Iterable[Row]) -> list[CommitReport]:
    return [value_of(CommitReport, row, status=CommitStatus(row.state)) for row in rows]


async def insert_dead_letters(connection: Connection, letters: Iterable[DeadLetter]) -> None:
    """Stores dead letters for inspection by a person; only the newest are kept."""
    rows = [
        {
            **columns_of(letter),
            "subject": letter.subject[:MAX_SUBJECT_LENGTH],
            "body": letter.body[:MAX_BODY_BYTES],
        }
        for letter in letters
    ]
    if not rows:
        return
    await insert_bodies(connection, dead_letter, rows)
    newest = sa.select(sa.func.max(dead_letter.c.number)).scalar_subquery()
    is_old = dead_letter.c.number <= newest - MAX_DEAD_LETTERS
    await connection.execute(sa.delete(dead_letter).where(is_old))


async def count_dead_letters(connection: Connection, subject: str) -> int:
    """Counts the dead letters of a subject."""
    return await count_rows(connection, dead_letter, dead_letter.c.subject == subject)


async def newest_dead_letter(connection: Connection, subject: str) -> str:
    """Returns the reason of the newest dead letter of a subject; empty without one."""
    c = dead_letter.c
    newest = sa.select(c.reason).where(c.subject == subject).order_by(c.number.desc()).limit(1)
    return str(await connection.fetch_value(newest) or "")


async def store_blob(connection: Connection, tenant: str, sha256: bytes, body: bytes) -> None:
    """Stores content under its hash; restores it if it was taken out before."""
    statement = insert(blob).values(tenant=tenant, sha256=sha256, size=len(body), body=body)
    again = statement.on_conflict_do_update(
        index_elements=["tenant", "sha256"],
        set_={"body": statement.excluded.body, "stored_at": NOW},
        where=blob.c.body.is_(None),
    )
    await connection.execute(again)


async def take_blob(connection: Connection, tenant: str, sha256: bytes) -> bytes | None:
    """Takes content out; None if it was never stored, empty if it was taken out before."""
    own = sa.and_(blob.c.tenant == tenant, blob.c.sha256 == sha256)
    found = await connection.fetch_first(sa.select(blob.c.body).where(own).with_for_update())
    if found is None:
        return None
    await connection.execute(sa.update(blob).where(own).values(body=None, stored_at=NOW))
    return bytes(found.body or b"")


async def delete_old_reports(connection: Connection) -> None:
    """Deletes old reports, as `_forget` does.

    A producer that still asks sends its result again and gets the same report.
    """
    await _forget(connection, commit_report, _OLD_REPORT, REPORT_PAGES)


async def delete_old_blobs(connection: Connection) -> None:
    """Deletes old blobs, as `_forget` does."""
    await _forget(connection, blob, _OLD_BLOB, BLOB_PAGES)


async def _forget(
    connection: Connection, table: sa.Table, is_old: sa.ColumnElement[bool], num_pages: int
) -> None:
    """Deletes old rows, `num_pages` pages of the table at a time, on an autocommit connection.

    No index is by age. Each statement is short, however many old rows there are; rows deleted by
    the first statements stay deleted if a later one fails.
    """
    pages = await connection.fetch_value(_NUM_PAGES, {"name": table.name})
    statement = sa.delete(table).where(_IN_PAGES, is_old)
    for first in range(0, pages, num_pages):
        places = {"first": f"({first},0)", "after": f"({first + num_pages},0)"}
        await connection.execute(statement, places)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """A stored event."""

    number: int
    stage: str
    unix_millis: int
    kind: str
    body: Mapping[str, JsonValue]


async def log_event(connection: Connection, key: StageKey, event: Event) -> None:
    """Appends an event; when number n is visible, so are all numbers before it."""
    body = dataclasses.asdict(event)
    if "metrics" in body and isinstance(body["metrics"], dict):
        body["metrics"] = encode_numbers(body["metrics"])
    own = {**key_columns(key), "kind": KINDS[type(event)], "body": body}
    topic = progress_topic(key.tenant, key.experiment_id)
    await connection.execute(_LOCK, {"topic": topic})
    await connection.execute(_APPEND, own)
    await notify(connection, topic)


async def log_notice(connection: Connection, key: StageKey, text: str) -> None:
    """Appends a message for people."""
    await log_event(connection, key, NoticeEvent(text=text))


async def clear_sample_events(connection: Connection, tenant: str, ids: Collection[str]) -> None:
    """Clears the bodies of events with any of these samples, in all experiments of the tenant."""
    c = progress.c
    nothing: dict[str, JsonValue] = {"samples": [], "experience_ids": []}
    told = c.body["experience_ids"].op("?|")(sa.cast(list(ids), pg.ARRAY(sa.Text)))
    await connection.execute(
        sa.update(progress)
        .where(c.tenant == tenant, c.kind == KINDS[SamplesEvent], told)
        .values(body=nothing)
    )


async def load_changes(
    connection: Connection, key: StageKey, *, up_to_step: int | None = None
) -> list[SettingChange]:
    """Returns the newest changed settings of a stage, or those of a step; latest last."""
    c = progress.c
    statement = (
        sa.select(c.body)
        .where(in_stage(progress, key), c.kind == KINDS[SettingsChanged])
        .order_by(c.number)
    )
    rows = await connection.fetch(statement)
    changes = [SettingChange(**change) for row in rows for change in row.body["changes"]]
    holding = [change for change in changes if up_to_step is None or change.from_step <= up_to_step]
    return holding[-MAX_LISTED_CHANGES:]


async def load_events(
    connection: Connection, tenant: str, experiment_id: str, after: int, limit: int
) -> list[LoggedEvent]:
    """Returns events of an experiment after a number, in order."""
    statement = (
        sa.select(progress, (sa.extract("epoch", progress.c.at) * 1000).label("millis"))
        .where(
            progress.c.tenant == tenant,
            progress.c.experiment_id == experiment_id,
            progress.c.number > after,
        )
        .order_by(progress.c.number)
        .limit(limit)
    )
    rows = await connection.fetch(statement)
    return [value_of(LoggedEvent, row, unix_millis=int(row.millis)) for row in rows]
