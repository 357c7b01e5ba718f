"""RPC methods for producers: blob uploads and commit reports."""

import hashlib
from collections.abc import AsyncIterator, Sequence

from services.buffer.domain.states import Fate
from services.buffer.servicer.convert import few_of, uuid_of
from services.buffer.servicer.parts import Context, Parts
from services.buffer.store.database import producer_topic
from services.buffer.store.reports import (
    Report,
    load_fates,
    load_reports,
    newest_report,
    store_blob,
)
from services.buffer.wire import Unparsable, check_parts
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest, TooLarge

MAX_SEQUENCES = 100_000
REPORTS_A_MESSAGE = 1_000
STATES = {
    Fate.COMMITTED: pb.CommitReport.STATE_COMMITTED,
    Fate.SUPERSEDED: pb.CommitReport.STATE_SUPERSEDED,
    Fate.LATE: pb.CommitReport.STATE_LATE,
    Fate.REJECTED: pb.CommitReport.STATE_REJECTED,
}


class CommitCalls(Parts):
    """UploadBlob, WatchCommits."""

    async def UploadBlob(
        self, requests: AsyncIterator[pb.UploadBlobRequest], _: Context
    ) -> pb.UploadBlobResponse:
        """Stores content that is too large for a message, after verifying its hash."""
        async with self.uploads.receive(requests) as upload:
            if hashlib.sha256(upload.body).digest() != upload.sha256:
                raise InvalidRequest("the content does not have this SHA-256")
            body = bytes(upload.body)
            try:
                check_parts(body)
            except Unparsable as error:
                raise TooLarge(f"the content cannot be taken as results: {error}") from error
            async with self.database.transaction() as connection:
                await store_blob(connection, upload.tenant, upload.sha256, body)
        return pb.UploadBlobResponse(size=len(body))

    async def WatchCommits(
        self, request: pb.WatchCommitsRequest, _: Context
    ) -> AsyncIterator[pb.WatchCommitsResponse]:
        """Streams the commit states that a producer asks for, then each new one."""
        producer = uuid_of(request.producer, "producer")
        sequences = few_of(request.sequences, "sequences", MAX_SEQUENCES)
        seen: int | None = None
        async for _change in self.poller.changes(producer_topic(producer)):
            if seen is None:
                seen = await self._newest(producer)
                async for reports in self._known(producer, list(sequences)):
                    yield _message(reports)
            async for reports in self._after(producer, seen):
                seen = reports[-1].number
                yield _message(reports)

    async def _newest(self, producer: str) -> int:
        """Returns the newest report; read first, so that a commit in between is never missed."""
        async with self.database.autocommit() as connection:
            return await newest_report(connection, producer)

    async def _known(self, producer: str, sequences: Sequence[int]) -> AsyncIterator[list[Report]]:
        """Yields the reports known now, in parts; one empty part if there are none."""
        last, told = 0, REPORTS_A_MESSAGE
        while told == REPORTS_A_MESSAGE:
            async with self.database.autocommit() as connection:
                reports = await load_fates(
                    connection, producer, sequences, after_sequence=last, limit=REPORTS_A_MESSAGE
                )
            if reports or not last:
                yield reports
            told, last = len(reports), reports[-1].sequence if reports else last

    async def _after(self, producer: str, number: int) -> AsyncIterator[list[Report]]:
        """Yields reports after a number, in parts."""
        told = REPORTS_A_MESSAGE
        while told == REPORTS_A_MESSAGE:
            async with self.database.autocommit() as connection:
                reports = await load_reports(
                    connection, producer, after=number, limit=REPORTS_A_MESSAGE
                )
            if reports:
                number = reports[-1].number
                yield reports
            told = len(reports)


def _message(reports: list[Report]) -> pb.WatchCommitsResponse:
    return pb.WatchCommitsResponse(
        reports=[
            pb.CommitReport(
                sequence=report.sequence, state=STATES[report.fate], reason=report.reason
            )
            for report in reports
        ]
    )
