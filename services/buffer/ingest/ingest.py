"""Takes results from the stream and stores them: committed first, acknowledged second."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from services.buffer.domain.results import CommitDecision, Result
from services.buffer.domain.stage import CommitStatus
from services.buffer.domain.tasks import sanitize_text
from services.buffer.domain.turns import ReceivedTurn, TurnDecision
from services.buffer.ingest.pull import ResultPull
from services.buffer.ingest.stream import ACK_SECONDS, RunStream
from services.buffer.ingest.wire import (
    MAX_REASON_LENGTH,
    DecodedBatch,
    InvalidResult,
    Unparsable,
    decode_batch,
    is_reference,
    subject_of,
)
from services.buffer.operations.results import NeedsExclusiveStage, ResultWriter
from services.buffer.store.database import BufferDatabase, columns_of
from services.buffer.store.quotas import BufferQuotas
from services.buffer.store.reports import (
    MAX_BODY_BYTES,
    CommitReport,
    DeadLetter,
    insert_dead_letters,
    insert_reports,
    take_blob,
)
from services.buffer.store.stages import UnreadablePlan
from services.buffer.telemetry import record_stored
from trinity.errors import Unavailable
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.nats_client import REPLACEMENT_CHARACTER
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import wait_kind_of
from trinity.runtime.sql import Connection
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)
REDELIVERY_SECONDS = 3.0
"""Redelivery delay, after which another replica may take the results."""
EXPIRY_SECONDS = 4 * REDELIVERY_SECONDS
"""After this time without a redelivery, another replica has stored them."""
STREAM, STORE = "stream", "store"
FETCH_SECONDS = 1.0
"""A restarted broker has forgotten a fetch, so the rest of this timeout is lost."""
RETRY_SECONDS = 0.5
NAK_SECONDS = 1.0
BUNDLE_BYTES = 8 * 1024 * 1024
NUM_WORKERS = 2
"""Workers per process; those of other replicas take from the same stream."""


@dataclass(frozen=True, slots=True)
class PlanVersionWaits:
    """Shows a wait for each such stage as long as its results are redelivered."""

    waits: WaitRegistry
    _seen: dict[StageKey, float] = field(default_factory=dict)

    def record(self, error: UnreadablePlan) -> None:
        """Records that a result of this stage was delivered."""
        key = error.key
        about = {"tenant": key.tenant, "experiment": key.experiment_id, "stage": key.stage}
        kind = "results of a stage wait: its plan cannot be read"
        limited_log.warning(kind, about, why=str(error))
        self._seen[key] = time.monotonic()
        self.waits.set(
            _wait_name(key),
            waits_for="another version of the buffer",
            reason=f"to store results: {error}",
        )

    def expire(self) -> None:
        """Ends the waits of stages whose results are no longer delivered."""
        now = time.monotonic()
        for key in [key for key, seen in self._seen.items() if now - seen > EXPIRY_SECONDS]:
            del self._seen[key]
            self.waits.clear(_wait_name(key))


def _wait_name(key: StageKey) -> str:
    return f"results/{key.tenant}/{key.experiment_id}/{key.stage}"


def rejections(
    refused: Iterable[Result | ReceivedTurn | InvalidResult], reason: str = ""
) -> list[CommitReport]:
    """Returns a rejection report for each result or turn, with the reason if one is given."""
    rejected = CommitStatus.REJECTED
    return [
        CommitReport(
            producer=own.producer,
            sequence=own.sequence,
            status=rejected,
            reason=own.reason if isinstance(own, InvalidResult) and not reason else reason,
        )
        for own in refused
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedMessage:
    """The decoded content of a message."""

    subject: str
    dead_letter_body: bytes
    """For a dead letter: the message, or the beginning of the blob's content, since the whole blob
    would stay in memory while the results are stored."""
    batch: DecodedBatch | None = None
    """None if it was stored before, or cannot be read."""
    error: str = ""
    """The reason why it cannot be read."""

    @property
    def is_refused(self) -> bool:
        """True if it contains no valid result: it is kept as a dead letter."""
        if self.batch is None:
            return bool(self.error)
        return bool(self.batch.invalid) and not (self.batch.results or self.batch.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessages:
    """Messages whose content was stored."""

    contents: Sequence[DecodedMessage]
    """One for each message."""
    decisions: list[CommitDecision]
    letters: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class Ingest:
    """Drains the stream into the database; `bound` is set while it is subscribed."""

    database: BufferDatabase
    stream: RunStream
    result_writer: ResultWriter
    quotas: BufferQuotas
    fetch_messages: int
    bound: asyncio.Event
    waits: WaitRegistry
    plan_version_waits: PlanVersionWaits

    async def run_ingest(self) -> None:
        """Stores results until cancelled; survives outages of the broker and the database."""
        while True:
            try:
                pull = await self.stream.bind()
                self.bound.set()
                self.waits.clear(STREAM)
                await self._drain(pull)
            except* (Unavailable, NatsError, JetStreamError, OSError) as group:
                error = group.exceptions[0]
                self.bound.clear()
                logger.warning("lost the stream of results", extra={"why": str(error)})
                self.waits.set(
                    STREAM,
                    waits_for="broker",
                    reason=f"to take results from the stream: {error}",
                    kind=wait_kind_of(error),
                )
                await asyncio.sleep(RETRY_SECONDS)

    async def _drain(self, pull: ResultPull) -> None:
        """Runs the workers: one fetches the next messages while another stores its own."""
        fetching = asyncio.Lock()
        async with asyncio.TaskGroup() as workers:
            for _ in range(NUM_WORKERS):
                workers.create_task(self._store_all(pull, fetching))

    async def _store_all(self, pull: ResultPull, fetching: asyncio.Lock) -> None:
        while True:
            await self._store_next(pull, fetching)

    async def _store_next(self, pull: ResultPull, fetching: asyncio.Lock) -> None:
        """Fetches and stores messages; they are out of memory before the worker takes more."""
        self.plan_version_waits.expire()
        try:
            async with fetching:
                messages = await pull.fetch(self.fetch_messages, FETCH_SECONDS)
        except TimeoutError:
            # Silence may mean that the broker has lost the consumer with its data.
            await self.stream.check_position()
            return
        async with _extend_ack_deadline(messages):
            for bundle in bundles(messages):
                await self.store_messages(bundle)

    async def store_messages(self, messages: Sequence[Msg]) -> None:
        """Stores messages in one transaction; if that fails, each in its own."""
        try:
            refused = await self._commit(messages)
        except Unavailable as error:
            logger.warning("the database is unavailable", extra={"why": str(error)})
            reason, kind = f"to store results: {error}", wait_kind_of(error)
            self.waits.set(STORE, waits_for="database", reason=reason, kind=kind)
            for message in messages:
                await message.nak(delay=NAK_SECONDS)
        except Exception as error:  # edge of the loop: one message must not stop all others
            if not isinstance(error, UnreadablePlan):
                limited_log.error("messages cannot be stored together", error)
            for message in messages:
                await self._store_single(message)
        else:
            self.waits.clear(STORE)
            for message in messages:
                await _settle(message, refused)

    async def _store_single(self, message: Msg) -> None:
        """Stores one message; moves it to the dead letters if it cannot be stored."""
        try:
            refused = await self._commit([message])
        except Unavailable:
            await message.nak(delay=NAK_SECONDS)
        except UnreadablePlan as error:
            await self._defer(message, error)
        except Exception as error:  # the error is of this message alone
            limited_log.error("a message cannot be stored", error, subject=message.subject)
            await self._dead_letter(message, f"it cannot be stored: {error}")
        else:
            await _settle(message, refused)

    async def _defer(self, message: Msg, error: UnreadablePlan) -> None:
        """Leaves a message to a buffer that can read the plan, unless the stage has ended.

        Each unacknowledged message takes one of a limited number of places, so results that no
        longer count become dead letters.
        """
        if not error.is_open:
            await self._dead_letter(message, f"it cannot be stored: {error}")
            return
        self.plan_version_waits.record(error)
        await message.nak(delay=REDELIVERY_SECONDS)

    async def _commit(self, messages: Sequence[Msg]) -> Sequence[Msg]:
        """Stores results and dead letters; returns the messages that hold no result at all."""
        begun_ns = time.time_ns()
        opened = [_decode(message) for message in messages]
        try:
            stored = await self._write_results(opened, is_alone=False)
        except NeedsExclusiveStage:
            stored = await self._write_results(opened, is_alone=True)
        record_stored(messages, stored.decisions, begun_ns)
        logger.debug(
            "results are stored",
            extra={
                "messages": len(messages),
                **Counter(decision.status.value for decision in stored.decisions),
            },
        )
        contents = zip(messages, stored.contents, strict=True)
        return [message for message, content in contents if content.is_refused]

    async def _dead_letter(self, message: Msg, reason: str) -> None:
        """Stores a message as a dead letter; if even that fails, logs and drops it."""
        try:
            await self._insert_dead_letter(message, sanitize_text(reason)[:MAX_REASON_LENGTH])
        except Unavailable:
            await message.nak(delay=NAK_SECONDS)
            return
        except Exception as error:  # it must not be redelivered forever
            limited_log.error("a message is dropped", error, subject=message.subject)
        await message.term()

    async def _insert_dead_letter(self, message: Msg, reason: str) -> None:
        async with self.database.transaction() as connection:
            opened = await _with_content(connection, _decode(message))
            letter = DeadLetter(subject=opened.subject, reason=reason, body=opened.dead_letter_body)
            await insert_dead_letters(connection, [letter])
            if batch := opened.batch:
                parts = (batch.results, batch.turns, batch.invalid)
                refused = [own for part in parts for own in rejections(part, reason)]
                await insert_reports(connection, refused)

    async def _write_results(
        self, opened: Sequence[DecodedMessage], *, is_alone: bool
    ) -> StoredMessages:
        async with self.database.transaction() as connection:
            stored = await self._write_results_in(connection, opened, is_alone=is_alone)
        for letter in stored.letters:
            limited_log.warning("a result was not stored", why=letter.reason)
        return stored

    async def _write_results_in(
        self, connection: Connection, opened: Sequence[DecodedMessage], *, is_alone: bool
    ) -> StoredMessages:
        results: list[Result] = []
        turns: list[ReceivedTurn] = []
        reports: list[CommitReport] = []
        letters: list[DeadLetter] = []
        contents = [await _with_content(connection, message) for message in opened]
        for content in contents:
            if content.error:
                letters.append(
                    DeadLetter(
                        subject=content.subject, reason=content.error, body=content.dead_letter_body
                    )
                )
            if content.batch is not None:
                results += content.batch.results
                turns += content.batch.turns
                reports += rejections(content.batch.invalid)
                letters += [
                    DeadLetter(subject=content.subject, **columns_of(refused))
                    for refused in content.batch.invalid
                ]
        written = await self.result_writer.write_results(
            connection, results, await self.quotas.marked(connection, turns), is_alone=is_alone
        )
        reports += [_report_of(decision) for decision in written.turns]
        for decision in written.results:
            result = decision.result
            sender: dict[str, Any] = {
                "producer": result.producer,
                "sequence": result.sequence,
                "reason": decision.reason,
            }
            reports.append(CommitReport(**sender, status=decision.status))
            if decision.status is CommitStatus.REJECTED:
                body = b"".join(experience.body for experience in result.experiences)
                letters.append(DeadLetter(**sender, subject=subject_of(result.key), body=body))
        await insert_dead_letters(connection, letters)
        await insert_reports(connection, reports)
        return StoredMessages(contents=contents, decisions=written.results, letters=letters)


def _report_of(decision: TurnDecision) -> CommitReport:
    """Returns the report on a turn; a refused one is no dead letter: its run goes on elsewhere."""
    return CommitReport(
        producer=decision.turn.producer,
        sequence=decision.turn.sequence,
        status=CommitStatus.REJECTED if decision.reason else CommitStatus.COMMITTED,
        reason=decision.reason,
    )


async def _settle(message: Msg, refused: Sequence[Msg]) -> None:
    """Ends the delivery of a message whose content is committed.

    One without a single result is terminated, so that the broker tells of it too.
    """
    await (message.term() if message in refused else message.ack())


def _decode(message: Msg) -> DecodedMessage:
    subject = str(message.subject).replace("\x00", REPLACEMENT_CHARACTER)
    opened = DecodedMessage(subject=subject, dead_letter_body=message.data)
    try:
        return replace(opened, batch=decode_batch(subject, message.data))
    except Unparsable as error:
        return replace(opened, error=str(error))


async def _with_content(connection: Connection, opened: DecodedMessage) -> DecodedMessage:
    """Replaces a reference by the blob it refers to; most messages hold their results."""
    if opened.batch is None or not (sha256 := opened.batch.blob_sha256):
        return opened
    subject, opened = opened.subject, replace(opened, batch=None)
    tenant = subject.split(".")[2] if subject.count(".") >= 2 else ""
    content = await take_blob(connection, tenant, sha256)
    if content is None:
        missing = f"it refers to the blob {sha256.hex()}, which was never uploaded"
        return replace(opened, error=missing)
    if not content:  # its results were stored before
        return opened
    opened = replace(opened, dead_letter_body=content[:MAX_BODY_BYTES])
    try:
        batch = decode_batch(subject, content)
    except Unparsable as error:
        return replace(opened, error=str(error))
    if batch.blob_sha256:
        return replace(opened, error="it refers to a blob that refers to a blob")
    return replace(opened, batch=batch)


@asynccontextmanager
async def _extend_ack_deadline(messages: Sequence[Msg]) -> AsyncIterator[None]:
    """Prevents redelivery of messages while the block runs, however long it takes."""

    async def hold() -> None:
        while True:
            await asyncio.sleep(ACK_SECONDS / 3)
            for message in messages:
                if not message.is_acked:
                    await message.in_progress()

    holding = asyncio.create_task(hold())
    try:
        yield
    finally:
        holding.cancel()
        # Without a connection this may fail: the messages are redelivered.
        await asyncio.gather(holding, return_exceptions=True)


def bundles(messages: Iterable[Msg]) -> Iterator[list[Msg]]:
    """Splits messages into bundles that fit into memory decoded; a reference is a bundle alone."""
    bundle: list[Msg] = []
    num_bytes = 0
    for message in messages:
        is_alone = is_reference(message.data)
        if bundle and (is_alone or num_bytes + len(message.data) > BUNDLE_BYTES):
            yield bundle
            bundle, num_bytes = [], 0
        if is_alone:
            yield [message]
            continue
        bundle.append(message)
        num_bytes += len(message.data)
    if bundle:
        yield bundle
