"""RPC methods of QueryService that read: stored samples, and the samples of each train step."""

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from services.buffer.domain.stage import ExperienceState, Stage
from services.buffer.servicer.common import Context, by_size
from services.buffer.servicer.convert import (
    parse_name,
    parse_stage_key,
    parse_uuid,
    to_message,
)
from services.buffer.servicer.samples import (
    SamplePage,
    SamplePages,
    count_to_proto,
    cursor_to_text,
    parse_cursor,
    parse_filter,
    record_to_proto,
    sample_change_to_proto,
    turn_to_proto,
    use_to_proto,
)
from services.buffer.store.batches import (
    BatchHead,
    RecordedItem,
    StepTraining,
    find_batch,
    lineage_before,
    load_attempt,
    load_items,
    load_tasks,
    load_uses,
    sizes_of_tasks,
    times_trained,
)
from services.buffer.store.curation import load_sample_changes
from services.buffer.store.database import BufferDatabase
from services.buffer.store.experiences import count_by_reason, find_bodies
from services.buffer.store.queries import StoredExperience, find_by_prefix, load_experiences
from services.buffer.store.reports import load_changes
from services.buffer.store.segments import retired_segments
from services.buffer.store.stages import StoredStage, get_stage, stored_stages
from services.buffer.store.training import newest_version
from services.buffer.store.turns import read_bodies, turns_of
from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.data.codec import stage_key_to_proto
from trinity.errors import InvalidRequest, NotFound
from trinity.runtime.rpc.answers import fair_within, first_within
from trinity.runtime.sql import Connection
from trinity.types import StageKey

HEX_DIGITS = frozenset("0123456789abcdef")
NUM_DIGITS = 32
"""Number of hex digits of a UUID."""
ITEMS_PER_MESSAGE = 256
COUNTS_BYTES = 64 * 1024
"""Limit for the counts of one stage in a list; people give reasons, so there may be many."""
CHANGES_BYTES = 256 * 1024
"""Limit for the changes that people made to one sample, with their reasons."""
TRAINED_BYTES = 2 * 1024 * 1024
"""Limit for the trainers' reports on one step."""
UNLIMITED = 2**62


@dataclass(frozen=True, kw_only=True)
class QueryRpcs:
    """ListStages, ListExperiences, GetExperience, GetSession, GetStep."""

    database: BufferDatabase

    async def ListStages(
        self, request: query_pb2.ListStagesRequest, _: Context
    ) -> query_pb2.ListStagesResponse:
        """Lists the stages with counts of their samples."""
        tenant = parse_name(request.tenant, "tenant") if request.tenant else ""
        experiment = request.experiment_id
        wanted = parse_uuid(experiment, "experiment_id") if experiment else ""
        async with self.database.transaction() as connection:
            stages = await stored_stages(connection, tenant, wanted)
        return stages_response([await self._stage(stage) for stage in stages])

    async def _stage(self, stored: StoredStage) -> query_pb2.StoredStage:
        async with self.database.transaction() as connection:
            counts = await count_by_reason(connection, stored.key)
        told = first_within(map(count_to_proto, counts), COUNTS_BYTES)
        return to_message(
            query_pb2.StoredStage,
            stored,
            key=stage_key_to_proto(stored.key),
            counts=told,
            num_counts_left_out=len(counts) - len(told),
        )

    async def ListExperiences(
        self, request: query_pb2.ListExperiencesRequest, _: Context
    ) -> AsyncIterator[query_pb2.ListExperiencesResponse]:
        """Streams the samples that match the filter."""
        key, wanted = parse_stage_key(request.key), parse_filter(request.filter)
        if request.limit < 0:
            raise InvalidRequest(f"limit is {request.limit}: 0 is for all")
        async with self.database.transaction() as connection:
            stage = await get_stage(connection, key)
        pages = SamplePages(
            database=self.database,
            key=key,
            wanted=wanted,
            with_content=request.with_content,
            latest_first=request.latest_first,
        )
        num_left = request.limit or UNLIMITED
        async for part in pages.read_pages(parse_cursor(request.cursor)):
            async for page in self._pages(stage, part, num_left):
                yield page
            num_left -= len(part.rows)
            if num_left <= 0:
                return

    async def _pages(
        self, stage: Stage, part: SamplePage, most: int
    ) -> AsyncIterator[query_pb2.ListExperiencesResponse]:
        """Yields samples in messages that fit, each with the place to continue from."""
        if not part.rows:
            yield query_pb2.ListExperiencesResponse(
                cursor=cursor_to_text(part.end), num_examined=part.num_examined
            )
            return
        key, rows = stage.key, part.rows[:most]
        async with self.database.transaction() as connection:
            uses = await load_uses(connection, key, [row.experience_id for row in rows])
            removed = await _removed(connection, stage, rows)
        records = [
            record_to_proto(
                key.stage,
                row,
                uses.get(row.experience_id, []),
                part.bodies.get(row.experience_id),
                removed.get(row.experience_id, ""),
            )
            for row in rows
        ]
        end = part.end if len(rows) == len(part.rows) else rows[-1].cursor
        num_told = 0
        for told in by_size(records, query_pb2.ExperienceRecord.ByteSize):
            num_told += len(told)
            place = end if num_told == len(rows) else rows[num_told - 1].cursor
            yield query_pb2.ListExperiencesResponse(experiences=told, cursor=cursor_to_text(place))

    async def GetExperience(
        self, request: query_pb2.GetExperienceRequest, _: Context
    ) -> query_pb2.GetExperienceResponse:
        """Returns one sample with its content."""
        key = parse_stage_key(request.key)
        async with self.database.transaction() as connection:
            stage = await get_stage(connection, key)
            own_id = await _only(connection, key, request.experience_id)
            sample = (await load_experiences(connection, key, [own_id]))[own_id]
            body = (await find_bodies(connection, key, [own_id])).get(own_id)
            removed = (await _removed(connection, stage, [sample])).get(own_id, "")
            uses = await load_uses(connection, key, [own_id], with_tokens=True)
            seconds, metrics = await load_attempt(
                connection, key, sample.assignment_id, sample.cursor.run, sample.attempt
            )
            changes = await load_sample_changes(connection, key, own_id)
        return query_pb2.GetExperienceResponse(
            experience=record_to_proto(key.stage, sample, uses.get(own_id, []), body, removed),
            run_seconds=seconds,
            run_metrics=metrics,
            changes=first_within(map(sample_change_to_proto, changes), CHANGES_BYTES),
        )

    async def GetSession(
        self, request: query_pb2.GetSessionRequest, _: Context
    ) -> AsyncIterator[query_pb2.GetSessionResponse]:
        """Streams the turns of a run."""
        key = parse_stage_key(request.key)
        run = parse_uuid(request.assignment_id, "assignment_id"), request.run
        async with self.database.transaction() as connection:
            await get_stage(connection, key)
            stored = await turns_of(connection, key, [run])
        async for parts in read_bodies(self.database, key, stored):
            turns = [turn_to_proto(own, body or b"") for own, body in parts]
            for part in by_size(turns, SessionTurn.ByteSize):
                yield query_pb2.GetSessionResponse(turns=part)

    async def GetStep(
        self, request: query_pb2.GetStepRequest, _: Context
    ) -> AsyncIterator[query_pb2.GetStepResponse]:
        """Streams the composition of a train step."""
        key = parse_stage_key(request.key)
        async with self.database.transaction() as connection:
            stage = await get_stage(connection, key)
            batch = await find_batch(connection, key, request.step)
            if batch is None:
                raise NotFound(
                    f"step {request.step} of stage {key.stage} has no batch; "
                    f"the newest that has one is {stage.recorded_step}"
                )
            head = await _head(connection, stage, batch)
        yield query_pb2.GetStepResponse(head=head)
        for first in range(0, batch.num_rows, ITEMS_PER_MESSAGE):
            async for rows in self._step_rows(stage, batch.step, first):
                yield query_pb2.GetStepResponse(rows=query_pb2.StepRows(rows=rows))

    async def _step_rows(
        self, stage: Stage, step: int, first: int
    ) -> AsyncIterator[Sequence[query_pb2.StepRow]]:
        """Yields up to `ITEMS_PER_MESSAGE` rows of a step from `first` on, in parts."""
        async with self.database.transaction() as connection:
            items = await load_items(connection, stage, step, first=first, count=ITEMS_PER_MESSAGE)
            drawn = [place for item in items if (place := item.data_row)]
            sizes = await sizes_of_tasks(connection, stage.key.tenant, drawn)

        def size_of(item: RecordedItem) -> int:
            return 0 if item.data_row is None else sizes.get(item.data_row, 0)

        for part in by_size(items, size_of):
            async with self.database.transaction() as connection:
                rows = await _rows(connection, stage, part)
            for told in by_size(rows, query_pb2.StepRow.ByteSize):
                yield told


def stages_response(stages: Sequence[query_pb2.StoredStage]) -> query_pb2.ListStagesResponse:
    """Returns the stages, or of each tenant as many as of others."""
    listed = fair_within(stages, lambda stage: stage.key.tenant)
    return query_pb2.ListStagesResponse(
        stages=listed, num_stages_left_out=len(stages) - len(listed)
    )


def parse_uuid_prefix(prefix: str, name: str) -> str:
    """Returns the hex digits of a UUID prefix, given without dashes or with the usual ones.

    Raises: InvalidRequest when it is not the prefix of a UUID.
    """
    lowered = prefix.lower()
    digits = lowered.replace("-", "")
    if 0 < len(digits) <= NUM_DIGITS and HEX_DIGITS.issuperset(digits):
        with_dashes = str(uuid.UUID(digits.ljust(NUM_DIGITS, "0")))
        if lowered == digits or with_dashes.startswith(lowered):
            return digits
    raise InvalidRequest(f"{name} {prefix[:60]!r} is not a UUID or the beginning of one")


async def _only(connection: Connection, key: StageKey, prefix: str) -> str:
    """Returns the id of the only sample with the prefix.

    Raises: InvalidRequest when several samples match, NotFound when there is no match.
    """
    found = await find_by_prefix(
        connection, key, parse_uuid_prefix(prefix, "experience_id"), limit=2
    )
    if len(found) > 1:
        raise InvalidRequest(f"several samples begin with {prefix}: give more digits")
    if not found:
        raise NotFound(f"stage {key.stage} holds no sample {prefix}")
    return found[0]


async def _removed(
    connection: Connection, stage: Stage, rows: Sequence[StoredExperience]
) -> dict[str, str]:
    """Returns reasons, by experience, for contents that retention removed."""
    retired = await retired_segments(connection, stage.key)
    kept = stage.plan.config.buffer.keep_steps
    text = f"removed as older than all that is kept (`buffer.keep_steps: {kept}`)"
    retired_rows = [row for row in rows if row.segment_id in retired]
    return {
        row.experience_id: text for row in retired_rows if row.state is not ExperienceState.DELETED
    }


async def _head(connection: Connection, stage: Stage, batch: BatchHead) -> query_pb2.StepHead:
    before = await newest_version(connection, stage, up_to=batch.step - 1)
    after = await newest_version(connection, stage, up_to=batch.step)
    if after and after.version != batch.step:
        after = None
    reports = await times_trained(connection, stage, batch.step)
    trained = _trained(batch.step, reports)
    lineage = await lineage_before(connection, stage, batch.step)
    changes = await load_changes(connection, stage.key, up_to_step=batch.step)
    stored, source = stage.plan.stored_rollouts, stage.samples_key
    return to_message(
        query_pb2.StepHead,
        batch,
        rows_from=None if source == stage.key else stage_key_to_proto(source),
        rows_from_run=stored.run if stored else "",
        line=stage.line,
        batch_metrics=batch.metrics,
        trained=trained,
        num_trained_left_out=len(reports) - len(trained),
        before_sha256=lineage,
        changes=[to_message(buffer_pb2.SettingChange, change) for change in changes],
        weights_before=before and to_message(buffer_pb2.PublishedVersion, before),
        weights_after=after and to_message(buffer_pb2.PublishedVersion, after),
    )


def _trained(step: int, reports: Sequence[StepTraining]) -> list[buffer_pb2.StepTrained]:
    """Returns the trainings of a step, earliest first; the newest ones if not all fit."""
    newest_first = [
        to_message(buffer_pb2.StepTrained, report, step=step, replayed=number > 0)
        for number, report in reversed(list(enumerate(reports)))
    ]
    return first_within(newest_first, TRAINED_BYTES)[::-1]


async def _rows(
    connection: Connection, stage: Stage, items: Sequence[RecordedItem]
) -> list[query_pb2.StepRow]:
    ids = [item.experience_id for item in items if item.experience_id is not None]
    found = await load_experiences(connection, stage.samples_key, ids)
    drawn = [place for item in items if (place := item.data_row)]
    text_of = await load_tasks(connection, stage.key.tenant, drawn)
    rows = []
    for item in items:
        row = query_pb2.StepRow(use=use_to_proto(item.use), row_index=item.row_index or 0)
        if item.experience_id is not None:
            sample = found[item.experience_id]
            row.experience.CopyFrom(record_to_proto(stage.samples_key.stage, sample, [], None))
        elif place := item.data_row:
            row.row_json = text_of[place]
        rows.append(row)
    return rows
