"""The buffer as an explorer sees it, one that makes up results."""

import hashlib
from collections.abc import AsyncIterator, Sequence

from tests.integration.buffer.calls import CALL_SECONDS, WAIT_SECONDS, Calls
from tests.integration.buffer.made import Made, make_experience
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import experience_pb2
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.runtime.rpc.limits import CHUNK_BYTES
from trinity.types import EID


class ExplorerSide(Calls):
    """Leases and results."""

    async def lease(
        self,
        count: int = 100,
        *,
        wait_seconds: float = WAIT_SECONDS,
        lease_seconds: float = 60.0,
        held: Sequence[pb.Assignment] | None = None,
    ) -> pb.LeaseAssignmentsResponse:
        answer: pb.LeaseAssignmentsResponse = await self.stub.LeaseAssignments(
            pb.LeaseAssignmentsRequest(
                key=self.pb_key,
                explorer_id=self.explorer_id,
                max_assignments=count,
                wait_seconds=wait_seconds,
                lease_seconds=lease_seconds,
                held=pb.HeldLeases(leases=_leases(held)) if held is not None else None,
            ),
            timeout=CALL_SECONDS,
        )
        return answer

    async def renew(self, *assignments: pb.Assignment) -> pb.RenewLeasesResponse:
        request = pb.RenewLeasesRequest(
            key=self.pb_key,
            explorer_id=self.explorer_id,
            leases=_leases(assignments),
            lease_seconds=60,
        )
        answer: pb.RenewLeasesResponse = await self.stub.RenewLeases(request, timeout=CALL_SECONDS)
        return answer

    def complete(
        self,
        assignment: pb.Assignment,
        run: int,
        *made: Made,
        attempt: int | None = None,
        metrics: dict[str, float] | None = None,
    ) -> experience_pb2.RunResult:
        """A finished attempt with one sample for each of `made`."""
        tried = assignment.first_attempt if attempt is None else attempt
        ref = SampleRef(
            tenant=self.key.tenant,
            experiment_id=self.key.experiment_id,
            assignment_id=assignment.id,
            taskset=assignment.taskset,
            task_index=assignment.task_index,
        )
        samples = []
        for step, one in enumerate(made or (Made(),)):
            eid = EID(
                stage=self.key.stage,
                batch=assignment.explore_step,
                task=assignment.position,
                run=run,
                attempt=tried,
                step=step,
                suffix="",
            )
            samples.append(experience_to_proto(make_experience(one, assignment, eid), ref))
        return self._result(
            assignment,
            run,
            tried,
            state=experience_pb2.RunResult.STATE_COMPLETE,
            experiences=samples,
            metrics=metrics or {},
        )

    def fail(
        self, assignment: pb.Assignment, run: int, attempt: int, reason: str = "it broke"
    ) -> experience_pb2.RunResult:
        state = experience_pb2.RunResult.STATE_FAILED
        return self._result(assignment, run, attempt, state=state, reason=reason)

    def _result(
        self,
        assignment: pb.Assignment,
        run: int,
        attempt: int,
        *,
        state: experience_pb2.RunResult.State,
        reason: str = "",
        experiences: Sequence[experience_pb2.Experience] = (),
        metrics: dict[str, float] | None = None,
    ) -> experience_pb2.RunResult:
        self.sequence += 1
        return experience_pb2.RunResult(
            tenant=self.key.tenant,
            experiment_id=self.key.experiment_id,
            stage=self.key.stage,
            assignment_id=assignment.id,
            run=run,
            attempt=attempt,
            state=state,
            reason=reason,
            experiences=experiences,
            metrics=metrics or {},
            duration_seconds=0.5,
            sequence=self.sequence,
        )

    def batch_of(self, results: Sequence[experience_pb2.RunResult]) -> bytes:
        message = experience_pb2.RunResultBatch(producer=self.explorer_id, results=results)
        return message.SerializeToString()

    async def publish(self, *results: experience_pb2.RunResult) -> None:
        """Send results in one message, accepted by the broker."""
        await self.broker.jetstream().publish(self.subject, self.batch_of(results))

    async def upload(self, body: bytes) -> bytes:
        """Store content that is too large for a message; answers its hash."""
        digest = hashlib.sha256(body).digest()

        async def chunks() -> AsyncIterator[pb.UploadBlobRequest]:
            for start in range(0, len(body), CHUNK_BYTES):
                chunk = body[start : start + CHUNK_BYTES]
                yield pb.UploadBlobRequest(sha256=digest, tenant=self.key.tenant, chunk=chunk)

        stored = await self.stub.UploadBlob(chunks(), timeout=CALL_SECONDS)
        assert stored.size == len(body)
        return digest

    async def publish_reference(self, digest: bytes) -> None:
        """Send a message whose results are in a blob."""
        message = experience_pb2.RunResultBatch(producer=self.explorer_id, blob_sha256=digest)
        await self.broker.jetstream().publish(self.subject, message.SerializeToString())

    async def fates(self, *sequences: int) -> dict[int, pb.CommitReport]:
        """Wait until the fate of each of these results is known."""
        known: dict[int, pb.CommitReport] = {}
        request = pb.WatchCommitsRequest(producer=self.explorer_id, sequences=sequences)
        stream = self.stub.WatchCommits(request, timeout=CALL_SECONDS)
        async for message in stream:
            known |= {report.sequence: report for report in message.reports}
            if known.keys() >= set(sequences):
                break
        stream.cancel()
        return known

    async def settle(self, *results: experience_pb2.RunResult) -> list[pb.CommitReport]:
        """Publish results; answers their fates in the same order."""
        await self.publish(*results)
        sequences = [result.sequence for result in results]
        known = await self.fates(*sequences)
        return [known[sequence] for sequence in sequences]

    async def finish_all(self, assignments: Sequence[pb.Assignment], reward: float = 1.0) -> None:
        """Complete every run of these assignments; run r of each gets r times the reward."""
        results = [
            self.complete(one, run, Made(reward=reward * run))
            for one in assignments
            for run in one.runs
        ]
        await self.settle(*results)

    async def watched(self, *sequences: int) -> list[pb.CommitReport]:
        """What a producer is told at once of the results it names."""
        request = pb.WatchCommitsRequest(producer=self.explorer_id, sequences=sequences)
        stream = self.stub.WatchCommits(request, timeout=CALL_SECONDS)
        first = await stream.read()
        stream.cancel()
        return list(first.reports)


def _leases(assignments: Sequence[pb.Assignment]) -> list[pb.Lease]:
    return [pb.Lease(assignment_id=one.id, lease_token=one.lease_token) for one in assignments]
