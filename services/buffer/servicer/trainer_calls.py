"""RPC methods for the trainer, and the stream of progress events."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from services.buffer.domain.batches import BatchEnd, BatchWait, VersionRequested
from services.buffer.domain.stage import Stage, StageState
from services.buffer.operations.training import (
    TrainingEnd,
    begin_incarnation,
    check_incarnation,
    commit_checkpoint,
    finish_training,
    record_version,
    report_step,
)
from services.buffer.servicer.common import BufferServicerBase, Context, Look, by_size
from services.buffer.servicer.convert import (
    check_max_items,
    parse_checkpoint,
    parse_metrics,
    parse_name,
    parse_stage_key,
    parse_uuid,
    parse_version,
    parse_wait_seconds,
    to_message,
)
from services.buffer.servicer.stage_calls import MAX_ROWS
from services.buffer.store.batches import (
    BatchHead,
    LoadedRow,
    RowFeedback,
    TokenValues,
    find_with_stage,
    load_rows,
)
from services.buffer.store.database import batch_topic, decode_numbers, progress_topic
from services.buffer.store.reports import LoggedEvent, load_events
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest, TooLarge
from trinity.runtime.presence import WAIT_KINDS
from trinity.runtime.rpc.answers import first_within
from trinity.runtime.sql import Connection
from trinity.types import StageKey

FIRST_ROWS = 64
"""Number of rows to read before the size of rows is known."""
BYTES_PER_PART = 1024 * 1024
"""Target size of a part; the trainer reads one while the next is loaded."""
FLOAT_BYTES = 4
MAX_TOKEN_BYTES = 4 * 1024 * 1024
"""Limit for one kind of values of a row: a million tokens."""
BatchAnswer = BatchHead | BatchWait | BatchEnd | VersionRequested
END_STATES = {
    StageState.OPEN: pb.FinishTrainingResponse.STATE_EVALUATING,
    StageState.FINISHED: pb.FinishTrainingResponse.STATE_FINISHED,
    StageState.CANCELLED: pb.FinishTrainingResponse.STATE_CANCELLED,
    StageState.FAILED: pb.FinishTrainingResponse.STATE_CANCELLED,
}
HEAD_STATES = {"drained": pb.BatchHead.STATE_DRAINED, "failed": pb.BatchHead.STATE_CANCELLED}
EVENTS_PER_MESSAGE = 200
MESSAGES = {
    "opened": pb.StageOpened,
    "batch": pb.BatchComposed,
    "step": pb.StepTrained,
    "evaluation": pb.EvaluationDone,
    "samples": pb.Samples,
    "notice": pb.Notice,
    "changed": pb.SettingsChanged,
}


class TrainerRpcs(BufferServicerBase):
    """BeginIncarnation, RecordVersion, GetBatch, ReportStep, CommitCheckpoint, FinishTraining."""

    async def BeginIncarnation(
        self, request: pb.BeginIncarnationRequest, _: Context
    ) -> pb.BeginIncarnationResponse:
        """Starts a new incarnation of the trainer."""
        trainer_id = parse_uuid(request.trainer_id, "trainer_id")
        async with self.database.transaction() as connection:
            start = await begin_incarnation(connection, parse_stage_key(request.key), trainer_id)
        newest = start.newest_version
        told = first_within(to_message(pb.Checkpoint, own) for own in start.checkpoints)
        return to_message(
            pb.BeginIncarnationResponse,
            start,
            checkpoints=told,
            num_checkpoints_left_out=len(start.checkpoints) - len(told),
            newest_version=newest and to_message(pb.PublishedVersion, newest),
        )

    async def RecordVersion(
        self, request: pb.RecordVersionRequest, _: Context
    ) -> pb.RecordVersionResponse:
        """Records published weights."""
        async with self.database.transaction() as connection:
            kept = await record_version(
                connection, parse_stage_key(request.key), parse_version(request.version)
            )
        return pb.RecordVersionResponse(pinned_versions=kept.pinned, best_versions=kept.best)

    async def GetBatch(
        self, request: pb.GetBatchRequest, _: Context
    ) -> AsyncIterator[pb.GetBatchResponse]:
        """Streams a step's batch, waiting for it; every rank may call it."""
        key, wait_seconds = parse_stage_key(request.key), parse_wait_seconds(request.wait_seconds)
        if request.step < 1:
            raise InvalidRequest("the first step is 1")

        is_first = True

        async def look() -> Look[tuple[Stage, BatchAnswer]]:
            nonlocal is_first
            found = await self._look_for_batch(key, request, is_first=is_first)
            is_first = False
            if isinstance(answer := found[1], BatchWait):
                return Look(found, is_final=False, look_again_seconds=answer.look_again_seconds)
            return Look(found, is_final=True)

        stage, answer = await self.poller.poll_until_final(batch_topic(key), wait_seconds, look)
        yield pb.GetBatchResponse(head=_head(answer, request.incarnation))
        if isinstance(answer, BatchHead):
            async for rows in self._rows(stage, answer):
                for part in by_size(rows, _size):
                    yield _message(part)

    async def _rows(self, stage: Stage, head: BatchHead) -> AsyncIterator[list[LoadedRow]]:
        """Yields all rows in order, in parts; the next part is loaded while one is sent."""
        parts = self._parts(stage, head)
        reading = asyncio.ensure_future(anext(parts, None))
        try:
            while (rows := await reading) is not None:
                reading = asyncio.ensure_future(anext(parts, None))
                yield rows
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _parts(self, stage: Stage, head: BatchHead) -> AsyncIterator[list[LoadedRow]]:
        """Yields parts of about `BYTES_PER_PART` bytes, and at least one row."""
        first, count, num_bytes = 0, FIRST_ROWS, 0
        while first < head.num_rows:
            async with self.database.autocommit() as connection:
                rows = await load_rows(connection, stage, head.step, first, count)
            assert rows, "a composed batch has all its rows"
            yield rows
            first += len(rows)
            num_bytes += sum(map(_size, rows))
            count = max(1, BYTES_PER_PART * first // max(num_bytes, 1))

    async def _look_for_batch(
        self, key: StageKey, request: pb.GetBatchRequest, *, is_first: bool
    ) -> tuple[Stage, BatchAnswer]:
        """Finds or composes a batch; the first look takes no lock: most batches exist by then."""
        step, incarnation = request.step, request.incarnation
        async with self.database.transaction() as connection:
            if is_first and (found := await _find(connection, key, incarnation, step)):
                return found
            stage, head = await find_with_stage(connection, key, step, locks=True)
            check_incarnation(stage, incarnation)
            if _has_failed(stage):
                return stage, BatchEnd("failed", stage.reason)
            return stage, head or await self.composer.compose_batch(
                connection, stage, step, is_due=request.takes_incomplete
            )

    async def ReportStep(self, request: pb.ReportStepRequest, _: Context) -> pb.ReportStepResponse:
        """Records a trained step."""
        rows = [
            RowFeedback(
                position=row.position,
                mean_ratio=row.mean_ratio,
                advantage=row.advantage,
                tokens=_parse_tokens(row.tokens) if row.HasField("tokens") else None,
            )
            for row in check_max_items(request.rows, "rows", MAX_ROWS)
        ]
        key, metrics = parse_stage_key(request.key), parse_metrics(request.metrics)
        async with self.database.transaction() as connection:
            kept = await report_step(
                connection, key, request.incarnation, request.step, metrics, rows
            )
        return pb.ReportStepResponse(pinned_versions=kept.pinned, best_versions=kept.best)

    async def CommitCheckpoint(
        self, request: pb.CommitCheckpointRequest, _: Context
    ) -> pb.CommitCheckpointResponse:
        """Makes a checkpoint the one to resume from."""
        async with self.database.transaction() as connection:
            removable = await commit_checkpoint(
                connection, parse_stage_key(request.key), parse_checkpoint(request.checkpoint)
            )
        return pb.CommitCheckpointResponse(
            removable=[to_message(pb.Checkpoint, checkpoint) for checkpoint in removable]
        )

    async def FinishTraining(
        self, request: pb.FinishTrainingRequest, _: Context
    ) -> pb.FinishTrainingResponse:
        """Ends the training of a stage, and waits for its last evaluations."""
        key, wait_seconds = parse_stage_key(request.key), parse_wait_seconds(request.wait_seconds)

        async def look() -> Look[TrainingEnd]:
            async with self.database.transaction() as connection:
                end = await finish_training(connection, key, request.incarnation, request.step)
            return Look(end, is_final=end.state is not StageState.OPEN)

        end = await self.poller.poll_until_final(batch_topic(key), wait_seconds, look)
        return pb.FinishTrainingResponse(
            state=END_STATES[end.state], reason=end.reason, best_versions=end.best
        )


def _parse_tokens(message: pb.TokenValues) -> TokenValues:
    """Validates the values of a row's tokens.

    Raises: InvalidRequest where they are no numbers, one for each token.
    """
    num_bytes = len(message.logprobs)
    if num_bytes % FLOAT_BYTES or num_bytes != len(message.advantages):
        raise InvalidRequest("tokens: give one float32 for each token, as many of both kinds")
    if num_bytes > MAX_TOKEN_BYTES:
        raise TooLarge(f"tokens: at most {MAX_TOKEN_BYTES} bytes a row, there are {num_bytes}")
    return TokenValues(logprobs=message.logprobs, advantages=message.advantages)


async def _find(
    connection: Connection, key: StageKey, incarnation: int, step: int
) -> tuple[Stage, BatchAnswer] | None:
    stage, head = await find_with_stage(connection, key, step, locks=False)
    check_incarnation(stage, incarnation)
    return None if head is None or _has_failed(stage) else (stage, head)


def _has_failed(stage: Stage) -> bool:
    return stage.state in (StageState.CANCELLED, StageState.FAILED)


def _head(answer: BatchAnswer, incarnation: int) -> pb.BatchHead:
    match answer:
        case BatchHead():
            is_replayed = answer.incarnation < incarnation
            ready = pb.BatchHead.STATE_READY
            return to_message(pb.BatchHead, answer, state=ready, replayed=is_replayed)
        case BatchWait():
            kind, waiting = WAIT_KINDS[answer.waits_for], pb.BatchHead.STATE_WAITING
            return to_message(pb.BatchHead, answer, state=waiting, waits_for=kind)
        case VersionRequested(reason):
            return pb.BatchHead(state=pb.BatchHead.STATE_VERSION_WANTED, reason=reason)
        case BatchEnd(state, reason):
            return pb.BatchHead(state=HEAD_STATES[state], reason=reason)


def _size(row: LoadedRow) -> int:
    return len(row.experience_body or row.row_json or "")


def _message(rows: Sequence[LoadedRow]) -> pb.GetBatchResponse:
    """Builds a message in place: assigning messages to fields would copy all their bytes."""
    response = pb.GetBatchResponse()
    for row in rows:
        message = response.rows.rows.add(
            position=row.position,
            advantage=row.advantage,
            weight=row.weight,
            row_index=row.row_index or 0,
        )
        if row.experience_body is not None:
            message.experience.MergeFromString(row.experience_body)
        else:
            message.row_json = row.row_json or ""
    return response


class ProgressRpcs(BufferServicerBase):
    """WatchProgress."""

    async def WatchProgress(
        self, request: pb.WatchProgressRequest, _: Context
    ) -> AsyncIterator[pb.WatchProgressResponse]:
        """Streams past events, then new ones."""
        tenant = parse_name(request.tenant, "tenant")
        experiment_id = parse_uuid(request.experiment_id, "experiment_id")
        seen, is_told = request.after_event, False
        async for _change in self.poller.notifications(progress_topic(tenant, experiment_id)):
            while True:
                async with self.database.transaction() as connection:
                    events = await load_events(
                        connection, tenant, experiment_id, seen, EVENTS_PER_MESSAGE
                    )
                if not events:
                    break
                seen = events[-1].number
                messages = [_event(event) for event in events]
                for part in by_size(messages, pb.ProgressEvent.ByteSize):
                    yield pb.WatchProgressResponse(events=part)
            if not is_told:
                is_told = True
                yield pb.WatchProgressResponse()


def _event(logged: LoggedEvent) -> pb.ProgressEvent:
    body = dict(logged.body)
    metrics = body.get("metrics")
    if isinstance(metrics, dict):
        body["metrics"] = decode_numbers(metrics)  # type: ignore[arg-type, assignment]
    body.pop("experience_ids", None)  # internal: finds texts to delete
    message = MESSAGES[logged.kind](**body)
    event = to_message(pb.ProgressEvent, logged)
    getattr(event, logged.kind).CopyFrom(message)
    return event
