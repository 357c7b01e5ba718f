"""Statements on batches and step reports; a batch is composed once and never changed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import Grouping

from services.buffer.domain.stage import Stage
from services.buffer.store.database import (
    FLOATS,
    columns_of,
    decode_numbers,
    encode_numbers,
    id_in,
    in_stage,
    insert_new,
    insert_rows,
    key_columns,
    number_in,
    of_line,
    of_stage,
    of_taskset,
    prefixed_params,
    stage_params,
    value_of,
)
from services.buffer.store.experiences import PLACE, bodies_at, has_content, in_order_of
from services.buffer.store.schema import (
    batch,
    batch_item,
    experience,
    run_attempt,
    stage,
    step_report,
    task,
)
from services.buffer.store.stages import FIND, locking, opened, stage_of
from trinity.runtime.origin import NOTHING_BEFORE, SHA256_BYTES, batch_digest, version_digest
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

Value = TypeVar("Value")
BATCH_ITEM = batch_item.c
_TOKENS = (BATCH_ITEM.token_logprobs, BATCH_ITEM.token_advantages)
_USE = tuple(column for column in BATCH_ITEM if not column.name.startswith("token_"))
"""Without the values of tokens, which may be large."""
_ITEM = ("position", "experience_id", "taskset_id", "row_index", "advantage", "weight")
# A lateral lookup per row: a join might compare every row with every experience.
_SAMPLE = (
    sa.select(*PLACE)
    .where(has_content("samples"), experience.c.experience_id == BATCH_ITEM.experience_id)
    .limit(1)
    .lateral("sample")
)
_ITEMS = (
    sa.select(*(BATCH_ITEM[name] for name in _ITEM), *_SAMPLE.c)
    .join_from(batch_item, _SAMPLE, sa.true(), isouter=True)
    .where(
        in_stage(batch_item),
        BATCH_ITEM.line == sa.bindparam("given_line"),
        BATCH_ITEM.step == sa.bindparam("given_step"),
        BATCH_ITEM.position >= sa.bindparam("first"),
        BATCH_ITEM.position < sa.bindparam("end"),
    )
    .order_by(BATCH_ITEM.position)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """A batch without its rows."""

    step: int
    incarnation: int
    num_rows: int
    metrics: dict[str, float]
    rows_sha256: bytes | None = None
    """Digest of its rows; None if one came by a release without digests."""
    lineage_sha256: bytes | None = None
    """Digest of all batches up to this one; None where `rows_sha256` is."""
    oldest_version: int = 0
    """The oldest weights whose tokens are trained on; 0 for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """A row of a batch: an experience, or a row of training data."""

    advantage: float
    weight: float
    experience_id: str | None = None
    taskset_id: str | None = None
    row_index: int | None = None
    row_sha256: bytes | None = None
    """Digest of its content when the batch is recorded."""

    @property
    def data_row(self) -> tuple[str, int] | None:
        """Taskset and index of a data row; None for an experience."""
        return _data_row(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRow:
    """A row of a batch with its content: wire bytes of a sample, or JSON of a data row."""

    position: int
    advantage: float
    weight: float
    experience_body: bytes | None
    row_json: str | None
    row_index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenValues:
    """One float32 for each token of a response, as the trainer had them."""

    logprobs: bytes
    advantages: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFeedback:
    """Values that the trainer measured for a row."""

    position: int
    mean_ratio: float
    advantage: float
    tokens: TokenValues | None = None


_FIND = sa.select(batch).where(
    in_stage(batch),
    batch.c.line == sa.select(stage.c.line).where(in_stage(stage)).scalar_subquery(),
    batch.c.step == sa.bindparam("given_step"),
)


def _data_row(item: "BatchItem | RecordedItem") -> tuple[str, int] | None:
    if item.taskset_id is None or item.row_index is None:
        return None
    return item.taskset_id, item.row_index


async def find_batch(connection: Connection, key: StageKey, step: int) -> BatchHead | None:
    """Returns the batch of a step, or None if it is not composed yet."""
    return _head_of(await connection.fetch(_FIND, stage_params(key, given_step=step)))


async def find_with_stage(
    connection: Connection, key: StageKey, step: int, *, locks: bool
) -> tuple[Stage, BatchHead | None]:
    """Returns the stage, locked on request, and the batch of a step, if it is composed.

    Raises: NotFound when the stage was never opened.
    """
    found = locking(key) if locks else ((FIND, stage_params(key)),)
    *_, stages, heads = await connection.fetch_together(
        *found, (_FIND, stage_params(key, given_step=step))
    )
    return opened(key, stage_of(stages)), _head_of(heads)


def _head_of(rows: Sequence[Row]) -> BatchHead | None:
    if not rows:
        return None
    return value_of(BatchHead, rows[0], metrics=decode_numbers(rows[0].metrics))


async def lineage_before(connection: Connection, stage: Stage, step: int) -> bytes:
    """Returns the digest of all batches before a step; 32 zero bytes if none has a digest.

    The first batch of a stage that trains stored ones follows those of their stage.
    """
    before = await find_batch(connection, stage.key, step - 1)
    if before is None and stage.plan.stored_batches is not None:
        before = await find_batch(connection, stage.samples_key, step - 1)
    return (before and before.lineage_sha256) or NOTHING_BEFORE


async def with_digests(
    connection: Connection, stage: Stage, head: BatchHead, items: Sequence[BatchItem]
) -> tuple[BatchHead, list[BatchItem]]:
    """Returns a batch and its rows with their digests, before it is recorded."""
    ids = [item.experience_id for item in items if item.experience_id is not None]
    statement = sa.select(experience.c.experience_id, experience.c.turn_sha256).where(
        of_stage(experience, stage.samples_key), id_in(experience.c.experience_id, ids)
    )
    found = await connection.fetch(statement)
    of_sample = {row.experience_id: (row.turn_sha256 or b"")[-SHA256_BYTES:] for row in found}
    drawn = [place for item in items if (place := item.data_row)]
    hashed = sa.func.sha256(sa.func.convert_to(task.c.body, "UTF8"), type_=sa.LargeBinary)
    of_data = await _of_tasks(connection, stage.key.tenant, drawn, hashed)
    digests = [
        of_data.get(place) if (place := item.data_row) else of_sample.get(item.experience_id or "")
        for item in items
    ]
    known = [digest for digest in digests if digest]
    if len(known) < len(items):
        return head, list(items)
    rows = batch_digest(known)
    lineage = version_digest(await lineage_before(connection, stage, head.step), rows)
    return replace(head, rows_sha256=rows, lineage_sha256=lineage), [
        replace(item, row_sha256=digest) for item, digest in zip(items, known, strict=True)
    ]


async def insert_head(connection: Connection, stage: Stage, head: BatchHead) -> None:
    """Inserts a batch; its rows follow in the same transaction."""
    metrics = encode_numbers(head.metrics)
    values = {**_place_of(stage, head), **columns_of(head), "metrics": metrics}
    await insert_rows(connection, batch, [values])


async def insert_items(
    connection: Connection, stage: Stage, head: BatchHead, items: Sequence[BatchItem]
) -> None:
    """Inserts the rows of a batch in order."""
    own = _place_of(stage, head)
    rows = [
        {
            **own,
            **columns_of(item),
            "position": position,
            "source": "data" if item.experience_id is None else "experience",
        }
        for position, item in enumerate(items)
    ]
    await insert_rows(connection, batch_item, rows)


def _place_of(stage: Stage, head: BatchHead) -> dict[str, object]:
    return {**key_columns(stage.key), "line": stage.line, "step": head.step}


async def any_metric_above_zero(connection: Connection, stage: Stage, name: str) -> bool:
    """Returns True if this metric is above zero in any batch of the stage."""
    counted = sa.exists().where(in_stage(batch, stage.key), batch.c.metrics[name].as_float() > 0)
    return bool(await connection.fetch_value(sa.select(counted)))


async def sum_metric(connection: Connection, stage: Stage, name: str) -> float:
    """Returns the sum of a metric over the batches of the line."""
    counted = sa.func.coalesce(sa.func.sum(batch.c.metrics[name].as_float()), 0.0)
    found = sa.select(counted).where(of_line(batch, stage))
    return float(await connection.fetch_value(found))


async def load_rows(
    connection: Connection, stage: Stage, step: int, first: int, count: int
) -> list[LoadedRow]:
    """Returns rows of a batch from position `first` on, in order, with their content."""
    place = stage_params(stage.key, given_line=stage.line, given_step=step)
    place |= prefixed_params("samples", stage.samples_key)
    items = await connection.fetch(_ITEMS, {**place, "first": first, "end": first + count})
    sampled = [item.experience_id for item in items if item.experience_id is not None]
    kept = [item for item in items if item.segment_id is not None]
    found = await bodies_at(connection, stage.samples_key, kept)
    body_of = dict(zip(sampled, in_order_of(sampled, found, stage.samples_key), strict=True))
    drawn = [(item.taskset_id, item.row_index) for item in items if item.taskset_id is not None]
    task_of = await load_tasks(connection, stage.key.tenant, drawn)
    return [
        value_of(
            LoadedRow,
            item,
            experience_body=body_of.get(item.experience_id),
            row_json=task_of.get((item.taskset_id, item.row_index)),
        )
        for item in items
    ]


async def load_tasks(
    connection: Connection, tenant: str, places: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], str]:
    """Returns data rows by their taskset and index."""
    return await _of_tasks(connection, tenant, places, task.c.body)


async def sizes_of_tasks(
    connection: Connection, tenant: str, places: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Returns the sizes of data rows in bytes, without reading the rows."""
    return await _of_tasks(connection, tenant, places, sa.func.octet_length(task.c.body))


async def _of_tasks(
    connection: Connection,
    tenant: str,
    places: Iterable[tuple[str, int]],
    value: sa.ColumnElement[Value],
) -> dict[tuple[str, int], Value]:
    """Returns the value of an expression for each of these data rows."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for taskset_id, index in places:
        wanted[taskset_id].add(index)
    values = {}
    for taskset_id, indexes in wanted.items():
        statement = sa.select(task.c.index, value).where(
            of_taskset(task, tenant, taskset_id), number_in(task.c.index, indexes)
        )
        for number, own in await connection.fetch(statement):
            values[taskset_id, number] = own
    return values


async def insert_report(
    connection: Connection, stage: Stage, step: int, metrics: dict[str, float]
) -> bool:
    """Records that the newest incarnation trained a step; False if that is already recorded."""
    own = {**key_columns(stage.key), "line": stage.line, "step": step}
    values = {**own, "incarnation": stage.incarnation, "metrics": encode_numbers(metrics)}
    return await insert_new(connection, step_report, values)


async def was_trained_before(connection: Connection, stage: Stage, step: int) -> bool:
    """Returns True if an earlier incarnation trained this step."""
    statement = sa.select(step_report.c.step).where(
        of_line(step_report, stage, step), step_report.c.incarnation < stage.incarnation
    )
    return await connection.fetch_first(statement) is not None


async def store_feedback(
    connection: Connection, stage: Stage, head: BatchHead, rows: Sequence[RowFeedback]
) -> None:
    """Stores the trainer's values for the rows of a batch."""
    known = {row.position: row for row in rows if 0 <= row.position < head.num_rows}
    if not known:
        return
    ordered = [known.get(position) for position in range(head.num_rows)]
    ratios = _floats([row.mean_ratio if row else None for row in ordered])
    advantages = _floats([row.advantage if row else None for row in ordered])
    # A row indexes the array by its position: a join might compare every row with every other.
    place = BATCH_ITEM.position + 1
    statement = (
        sa.update(batch_item)
        .where(of_line(batch_item, stage, head.step), number_in(BATCH_ITEM.position, known))
        .values(mean_ratio=ratios[place], trained_advantage=advantages[place])
    )
    await connection.execute(statement)
    for row in known.values():
        if row.tokens is not None:
            await _store_tokens(connection, stage, head, row.position, row.tokens)


async def _store_tokens(
    connection: Connection, stage: Stage, head: BatchHead, position: int, tokens: TokenValues
) -> None:
    statement = (
        sa.update(batch_item)
        .where(of_line(batch_item, stage, head.step), BATCH_ITEM.position == position)
        .values(token_logprobs=tokens.logprobs, token_advantages=tokens.advantages)
    )
    await connection.execute(statement)


def _floats(values: Sequence[float | None]) -> sa.ColumnElement[Sequence[float]]:
    return Grouping(sa.type_coerce(sa.cast(list(values), FLOATS), ARRAY(sa.Float)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUse:
    """The use of a sample or data row in a batch."""

    line: int
    step: int
    position: int
    advantage: float
    weight: float
    mean_ratio: float | None
    trained_advantage: float | None
    row_sha256: bytes | None
    tokens: TokenValues | None = None
    """If they were recorded and asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedItem:
    """A row of a batch without its content."""

    use: BatchUse
    experience_id: str | None
    taskset_id: str | None
    row_index: int | None

    @property
    def data_row(self) -> tuple[str, int] | None:
        """Taskset and index of a data row; None for an experience."""
        return _data_row(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraining:
    """An incarnation of the trainer that trained the step."""

    incarnation: int
    metrics: Mapping[str, float]


async def load_uses(
    connection: Connection, key: StageKey, ids: Iterable[str], *, with_tokens: bool = False
) -> dict[str, list[BatchUse]]:
    """Returns the uses of each of these samples in batches."""
    statement = (
        sa.select(*_USE, *(_TOKENS if with_tokens else ()))
        .where(
            in_stage(batch_item, key),
            BATCH_ITEM.experience_id.is_not(None),
            id_in(BATCH_ITEM.experience_id, ids),
        )
        .order_by(BATCH_ITEM.line, BATCH_ITEM.step, BATCH_ITEM.position)
    )
    uses: dict[str, list[BatchUse]] = defaultdict(list)
    for row in await connection.fetch(statement):
        tokens = None
        if with_tokens and row.token_logprobs is not None and row.token_advantages is not None:
            tokens = TokenValues(logprobs=row.token_logprobs, advantages=row.token_advantages)
        uses[row.experience_id].append(value_of(BatchUse, row, tokens=tokens))
    return uses


async def load_items(
    connection: Connection, stage: Stage, step: int, *, first: int, count: int
) -> list[RecordedItem]:
    """Returns rows of a batch from position `first` on, in order."""
    statement = (
        sa.select(*_USE)
        .where(
            of_line(batch_item, stage, step),
            BATCH_ITEM.position.between(first, first + count - 1),
        )
        .order_by(BATCH_ITEM.position)
    )
    rows = await connection.fetch(statement)
    return [value_of(RecordedItem, row, use=value_of(BatchUse, row)) for row in rows]


async def times_trained(connection: Connection, stage: Stage, step: int) -> Sequence[StepTraining]:
    """Returns every incarnation that trained a step, earliest first."""
    c = step_report.c
    statement = (
        sa.select(c.incarnation, c.metrics)
        .where(of_line(step_report, stage, step))
        .order_by(c.incarnation)
    )
    return [
        value_of(StepTraining, row, metrics=decode_numbers(row.metrics))
        for row in await connection.fetch(statement)
    ]


async def load_attempt(
    connection: Connection, key: StageKey, assignment_id: str, run: int, attempt: int
) -> tuple[float, dict[str, float]]:
    """Returns the duration of an attempt in seconds, and its metrics."""
    c = run_attempt.c
    statement = sa.select(c.duration_seconds, c.metrics).where(
        in_stage(run_attempt, key),
        c.assignment_id == assignment_id,
        c.run == run,
        c.attempt == attempt,
    )
    row = await connection.fetch_one(statement)
    return row.duration_seconds, decode_numbers(row.metrics)
