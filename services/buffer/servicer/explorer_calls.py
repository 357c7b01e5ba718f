"""RPC methods for explorers: leases, uploads, images, commit reports."""

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace

from services.buffer.domain.stage import AssignmentKind, CommitStatus
from services.buffer.ingest.wire import Unparsable, check_field_count
from services.buffer.operations.leasing import (
    LeaseRequest,
    LeaseResult,
    LeasesDelayed,
    LeasesGranted,
    LeasingEnded,
    lease,
)
from services.buffer.servicer.common import BufferServicerBase, Context, Look, by_size
from services.buffer.servicer.convert import (
    MAX_LISTED,
    check_max_items,
    fields_of,
    parse_lease_seconds,
    parse_lease_tokens,
    parse_sha256,
    parse_stage_key,
    parse_subject_part,
    parse_uuid,
    parse_wait_seconds,
)
from services.buffer.store.assignments import LeaseGrant, release_leases, renew_leases
from services.buffer.store.database import notify, producer_topic, work_topic
from services.buffer.store.media import read_media
from services.buffer.store.reports import (
    CommitReport,
    load_reports,
    load_statuses,
    newest_report,
    store_blob,
)
from services.buffer.store.stages import get_stage, lock_stage
from services.buffer.telemetry import record_lease
from trinity.api.v1 import buffer_pb2 as pb
from trinity.data.images import IMAGE
from trinity.errors import InvalidRequest, TooLarge
from trinity.runtime.presence import WAIT_KINDS
from trinity.types import BlobRef

Response = pb.LeaseAssignmentsResponse
KINDS = {
    AssignmentKind.TRAIN: pb.ASSIGNMENT_KIND_TRAIN,
    AssignmentKind.EVAL: pb.ASSIGNMENT_KIND_EVAL,
}
SHORTEST_LOOK_SECONDS = 1.0
STATES = {
    CommitStatus.COMMITTED: pb.CommitReport.STATE_COMMITTED,
    CommitStatus.SUPERSEDED: pb.CommitReport.STATE_SUPERSEDED,
    CommitStatus.LATE: pb.CommitReport.STATE_LATE,
    CommitStatus.REJECTED: pb.CommitReport.STATE_REJECTED,
}
ENDED_STATES = {"drained": Response.STATE_DRAINED, "cancelled": Response.STATE_CANCELLED}
MAX_SEQUENCES = 100_000
REPORTS_PER_MESSAGE = 1_000


def look_of(answer: LeaseResult) -> Look[LeaseResult]:
    """Returns a look whose delay, until another lease may expire, is no busy loop."""
    if not isinstance(answer, LeasesDelayed):
        return Look(answer, is_final=True)
    seconds = answer.look_again_seconds
    longer = None if seconds is None else max(SHORTEST_LOOK_SECONDS, seconds)
    return Look(answer, is_final=False, look_again_seconds=longer)


class LeaseRpcs(BufferServicerBase):
    """LeaseAssignments, RenewLeases, ReleaseLeases."""

    async def LeaseAssignments(
        self, request: pb.LeaseAssignmentsRequest, _: Context
    ) -> pb.LeaseAssignmentsResponse:
        """Leases work, waiting until there is some."""
        if request.max_assignments < 1:
            raise InvalidRequest("max_assignments must be 1 or more")
        wanted = LeaseRequest(
            key=parse_stage_key(request.key),
            explorer_id=parse_uuid(request.explorer_id, "explorer_id"),
            max_assignments=min(request.max_assignments, MAX_LISTED),
            lease_seconds=parse_lease_seconds(request.lease_seconds),
            held=parse_lease_tokens(request.held.leases).values()
            if request.HasField("held")
            else None,
        )

        begun_ns = 0

        async def look() -> Look[LeaseResult]:
            nonlocal wanted, begun_ns
            begun_ns = time.time_ns()
            async with self.database.transaction() as connection:
                answer = await lease(connection, wanted)
            wanted = replace(wanted, held=None)  # lost leases were freed by the first poll
            return look_of(answer)

        topic = work_topic(wanted.key)
        answer = await self.poller.poll_until_final(
            topic, parse_wait_seconds(request.wait_seconds), look
        )
        return _response(answer, wanted.lease_seconds, lambda grant: record_lease(grant, begun_ns))

    async def RenewLeases(
        self, request: pb.RenewLeasesRequest, _: Context
    ) -> pb.RenewLeasesResponse:
        """Extends leases; returns the ones that were lost."""
        key, tokens = parse_stage_key(request.key), parse_lease_tokens(request.leases)
        seconds = parse_lease_seconds(request.lease_seconds)
        explorer_id = parse_uuid(request.explorer_id, "explorer_id")
        async with self.database.transaction() as connection:
            await get_stage(connection, key)
            held = await renew_leases(connection, key, explorer_id, tokens, seconds)
        return pb.RenewLeasesResponse(
            lost_assignment_ids=[
                assignment_id for assignment_id in tokens if assignment_id not in held
            ],
            remaining_seconds=seconds,
        )

    async def ReleaseLeases(
        self, request: pb.ReleaseLeasesRequest, _: Context
    ) -> pb.ReleaseLeasesResponse:
        """Releases leases, so that other explorers can take the work."""
        key, tokens = parse_stage_key(request.key), parse_lease_tokens(request.leases)
        explorer_id = parse_uuid(request.explorer_id, "explorer_id")
        async with self.database.transaction() as connection:
            await lock_stage(connection, key)
            num_released = await release_leases(connection, key, explorer_id, tokens)
            await notify(connection, work_topic(key))
        return pb.ReleaseLeasesResponse(num_released=num_released)


def _response(
    answer: LeaseResult, lease_seconds: float, leased: Callable[[LeaseGrant], str]
) -> pb.LeaseAssignmentsResponse:
    match answer:
        case LeasesGranted(grants, session_key):
            response = Response(
                state=Response.STATE_GRANTED,
                remaining_seconds=lease_seconds,
                session_key=session_key,
            )
            for grant in grants:
                _add(response, grant, leased(grant))
            return response
        case LeasesDelayed(reason, _, kind):
            waits_for = WAIT_KINDS[kind]
            return Response(state=Response.STATE_WAITING, reason=reason, waits_for=waits_for)
        case LeasingEnded(state, reason):
            return Response(state=ENDED_STATES[state], reason=reason)


def _add(response: pb.LeaseAssignmentsResponse, grant: LeaseGrant, traceparent: str) -> None:
    """Adds an assignment in place: assigning a message to a field would copy all its bytes."""
    own = fields_of(pb.Assignment, grant) | {"kind": KINDS[grant.kind]}
    response.assignments.add(**own, id=grant.assignment_id, traceparent=traceparent)


class CommitRpcs(BufferServicerBase):
    """UploadBlob, ReadMedia, WatchCommits."""

    async def UploadBlob(
        self, requests: AsyncIterator[pb.UploadBlobRequest], _: Context
    ) -> pb.UploadBlobResponse:
        """Stores an image, or content too large for a message, after verifying its hash."""
        async with self.uploads.receive(requests) as upload:
            if hashlib.sha256(upload.body).digest() != upload.sha256:
                raise InvalidRequest("the content does not have this SHA-256")
            body = bytes(upload.body)
            if upload.media_type:
                ref = BlobRef(
                    name=IMAGE,
                    sha256=upload.sha256,
                    size=len(body),
                    media_type=upload.media_type,
                )
                await self.store_image(upload.tenant, ref, body)
                return pb.UploadBlobResponse(size=len(body))
            try:
                check_field_count(body)
            except Unparsable as error:
                raise TooLarge(f"the content cannot be taken as results: {error}") from error
            async with self.database.transaction() as connection:
                await self.quotas.check_blob(connection, upload.tenant, upload.sha256, len(body))
                await store_blob(connection, upload.tenant, upload.sha256, body)
        return pb.UploadBlobResponse(size=len(body))

    async def ReadMedia(
        self, request: pb.ReadMediaRequest, _: Context
    ) -> AsyncIterator[pb.ReadMediaResponse]:
        """Streams images that the tenant uses."""
        tenant = parse_subject_part(request.tenant, "tenant")
        hashes = [parse_sha256(sha256, "sha256") for sha256 in request.sha256]
        async for sha256, chunk in read_media(self.database, tenant, hashes):
            yield pb.ReadMediaResponse(sha256=sha256, chunk=chunk)

    async def WatchCommits(
        self, request: pb.WatchCommitsRequest, _: Context
    ) -> AsyncIterator[pb.WatchCommitsResponse]:
        """Streams the commit states that a producer asks for, then each new one."""
        producer = parse_uuid(request.producer, "producer")
        sequences = check_max_items(request.sequences, "sequences", MAX_SEQUENCES)
        seen: int | None = None
        async for _change in self.poller.notifications(producer_topic(producer)):
            if seen is None:
                seen = await self._newest(producer)
                async for reports in self._known(producer, list(sequences)):
                    for message in _messages(reports):
                        yield message
            async for reports in self._after(producer, seen):
                seen = reports[-1].number
                for message in _messages(reports):
                    yield message

    async def _newest(self, producer: str) -> int:
        """Returns the newest report; read first, so that a commit in between is never missed."""
        async with self.database.autocommit() as connection:
            return await newest_report(connection, producer)

    async def _known(
        self, producer: str, sequences: Sequence[int]
    ) -> AsyncIterator[list[CommitReport]]:
        """Yields the reports known now, in parts: at least one part, which may be empty."""
        last, num_reports = 0, REPORTS_PER_MESSAGE
        while num_reports == REPORTS_PER_MESSAGE:
            async with self.database.autocommit() as connection:
                reports = await load_statuses(
                    connection, producer, sequences, after_sequence=last, limit=REPORTS_PER_MESSAGE
                )
            if reports or not last:
                yield reports
            num_reports, last = len(reports), reports[-1].sequence if reports else last

    async def _after(self, producer: str, number: int) -> AsyncIterator[list[CommitReport]]:
        """Yields reports after a number, in parts."""
        num_reports = REPORTS_PER_MESSAGE
        while num_reports == REPORTS_PER_MESSAGE:
            async with self.database.autocommit() as connection:
                reports = await load_reports(
                    connection, producer, after=number, limit=REPORTS_PER_MESSAGE
                )
            if reports:
                number = reports[-1].number
                yield reports
            num_reports = len(reports)


def _messages(reports: list[CommitReport]) -> Iterator[pb.WatchCommitsResponse]:
    """Yields reports in messages that fit: at least one message, which may be empty."""
    told = [
        pb.CommitReport(sequence=report.sequence, state=STATES[report.status], reason=report.reason)
        for report in reports
    ]
    for part in by_size(told, pb.CommitReport.ByteSize) if told else [()]:
        yield pb.WatchCommitsResponse(reports=part)
