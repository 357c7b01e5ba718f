"""Client of the buffer service, which takes and returns domain values; keeps and renews leases."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial

import grpc

from services.explorer.clients.watch_feed import iterate_until_deadline
from services.explorer.types import (
    Assignment,
    CommitOutcome,
    LeaseResponse,
    NoWorkYet,
    ResultReport,
    RolloutKind,
    StageCancelled,
    StageDrained,
    WeightsRequirement,
    WorkGranted,
)
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.data.codec import stage_key_to_proto
from trinity.data.media import read_media
from trinity.errors import NotReady
from trinity.runtime.presence import wait_kind_from_proto
from trinity.runtime.retry import RetryPolicy
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.runtime.rpc.limits import CALL_SECONDS, CHUNK_BYTES
from trinity.types import StageKey

logger = logging.getLogger(__name__)

SERVICE = "trinity.api.v1.BufferService"
OPEN_SECONDS = 120.0
"""Opening a stage may read small tasksets."""
POLL_SECONDS = 20.0
UPLOAD_SECONDS = 60.0
STREAM_SECONDS = 600.0

ROLLOUT_KINDS = {
    pb.ASSIGNMENT_KIND_TRAIN: RolloutKind.TRAIN,
    pb.ASSIGNMENT_KIND_EVAL: RolloutKind.EVAL,
}
COMMIT_OUTCOMES = {
    pb.CommitReport.STATE_COMMITTED: CommitOutcome.COMMITTED,
    pb.CommitReport.STATE_SUPERSEDED: CommitOutcome.SUPERSEDED,
    pb.CommitReport.STATE_LATE: CommitOutcome.LATE,
    pb.CommitReport.STATE_REJECTED: CommitOutcome.REJECTED,
}
RENEWALS_PER_LEASE = 3
FAST_RENEW_SECONDS = 1.0


class ExplorerBufferClient:
    """Calls the buffer on behalf of one explorer process.

    Every call raises an RpcError when it fails.
    """

    def __init__(self, channel: grpc.aio.Channel, explorer_id: str) -> None:
        self._stub = BufferServiceStub(channel)
        self._explorer_id = explorer_id

    async def open_stage(self, key: StageKey, plan_json: str, seed: int) -> None:
        """Registers the stage.

        Raises: Unavailable, also while its tasksets are still being read or awaited.
        """
        request = pb.OpenStageRequest(key=stage_key_to_proto(key), plan_json=plan_json, seed=seed)
        with translate_rpc_errors("buffer"):
            response = await self._stub.OpenStage(request, timeout=OPEN_SECONDS)
        if response.state == pb.OpenStageResponse.STATE_READING:
            raise NotReady(response.reason or "its tasksets are being read")

    async def lease(
        self,
        key: StageKey,
        max_assignments: int,
        lease_seconds: float,
        *,
        held: Iterable[Assignment],
        requires_exact_version: bool,
        wait_seconds: float = POLL_SECONDS,
    ) -> LeaseResponse:
        """Requests work and waits a while for it.

        `held` names all leases that this explorer has in the stage: any others were lost in
        transit and become free again. With `requires_exact_version`, training runs need exactly the
        version that they name.
        """
        request = pb.LeaseAssignmentsRequest(
            key=stage_key_to_proto(key),
            explorer_id=self._explorer_id,
            max_assignments=max_assignments,
            wait_seconds=min(wait_seconds, POLL_SECONDS),
            lease_seconds=lease_seconds,
            held=pb.HeldLeases(leases=map(lease_of, held)),
        )
        with translate_rpc_errors("buffer"):
            response = await self._stub.LeaseAssignments(
                request, timeout=POLL_SECONDS + CALL_SECONDS
            )
        return _lease_response(response, requires_exact_version)

    async def renew_leases(
        self, key: StageKey, assignments: Iterable[Assignment], lease_seconds: float
    ) -> set[str]:
        """Renews leases and returns the ids of those that are lost."""
        request = pb.RenewLeasesRequest(
            key=stage_key_to_proto(key),
            explorer_id=self._explorer_id,
            leases=map(lease_of, assignments),
            lease_seconds=lease_seconds,
        )
        with translate_rpc_errors("buffer"):
            response = await self._stub.RenewLeases(request, timeout=CALL_SECONDS)
        return set(response.lost_assignment_ids)

    async def release_leases(self, key: StageKey, assignments: Iterable[Assignment] = ()) -> None:
        """Releases the given leases, or without any all that this explorer holds in the stage."""
        request = pb.ReleaseLeasesRequest(
            key=stage_key_to_proto(key),
            explorer_id=self._explorer_id,
            leases=map(lease_of, assignments),
        )
        with translate_rpc_errors("buffer"):
            await self._stub.ReleaseLeases(request, timeout=CALL_SECONDS)

    async def get_turns(self, key: StageKey, assignment: Assignment, run: int) -> list[SessionTurn]:
        """Returns the stored turns of a run, parents first."""
        request = pb.GetTurnsRequest(
            key=stage_key_to_proto(key), lease=lease_of(assignment), run=run
        )
        with translate_rpc_errors("buffer"):
            stream = self._stub.GetTurns(request, timeout=UPLOAD_SECONDS)
            return [turn async for response in stream for turn in response.turns]

    async def get_client_turns(
        self, key: StageKey, session: str, *, lease: pb.Lease, wanted: Sequence[str] = ()
    ) -> list[SessionTurn]:
        """Returns turns of a client's session, parents first: `wanted` ones with their parents."""
        request = pb.GetTurnsRequest(
            key=stage_key_to_proto(key), lease=lease, session_id=session, turn_ids=wanted
        )
        with translate_rpc_errors("buffer"):
            stream = self._stub.GetTurns(request, timeout=UPLOAD_SECONDS)
            return [turn async for response in stream for turn in response.turns]

    async def open_session(
        self, key: StageKey, token: str, *, name: str = "", secret: str = ""
    ) -> pb.OpenSessionResponse:
        """Takes a client's session, by its name or its secret."""
        request = pb.OpenSessionRequest(
            key=stage_key_to_proto(key), name=name, secret=secret, token=token
        )
        with translate_rpc_errors():
            opened: pb.OpenSessionResponse = await self._stub.OpenSession(
                request, timeout=CALL_SECONDS
            )
        return opened

    async def reward_calls(
        self, key: StageKey, session: str, call_ids: Sequence[str], reward: float, task: str
    ) -> int:
        """Rewards calls of a client; returns how many of its answers can be committed."""
        request = pb.RewardCallsRequest(
            key=stage_key_to_proto(key),
            session_id=session,
            call_ids=call_ids,
            reward=reward,
            task=task,
        )
        with translate_rpc_errors():
            response = await self._stub.RewardCalls(request, timeout=CALL_SECONDS)
        return int(response.num_ready)

    async def commit_session(self, key: StageKey, session: str) -> pb.CommitSessionResponse:
        """Commits the rewarded calls of a client."""
        request = pb.CommitSessionRequest(key=stage_key_to_proto(key), session_id=session)
        with translate_rpc_errors():
            committed: pb.CommitSessionResponse = await self._stub.CommitSession(
                request, timeout=CALL_SECONDS
            )
        return committed

    async def upload_blob(self, tenant: str, content: bytes, media_type: str = "") -> bytes:
        """Stores content, an image if it has a media type, and returns its SHA-256."""
        digest = hashlib.sha256(content).digest()
        chunks = [content[i : i + CHUNK_BYTES] for i in range(0, len(content), CHUNK_BYTES)]
        requests = [pb.UploadBlobRequest(chunk=chunk) for chunk in chunks]
        requests[0].sha256 = digest
        requests[0].tenant = tenant
        requests[0].media_type = media_type
        with translate_rpc_errors("buffer"):
            await self._stub.UploadBlob(iter(requests), timeout=UPLOAD_SECONDS)
        return digest

    async def read_media(self, tenant: str, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the contents of images that the tenant uses, by hash.

        Raises: PreconditionFailed for others.
        """
        with translate_rpc_errors("buffer"):
            return await read_media(self._stub, tenant, hashes)

    async def watch_commits(
        self, producer: str, sequences: list[int]
    ) -> AsyncIterator[list[tuple[int, ResultReport]]]:
        """Streams reports by sequence: first those for `sequences`, then new ones as they come."""
        request = pb.WatchCommitsRequest(producer=producer, sequences=sequences)
        stream = self._stub.WatchCommits(request, timeout=STREAM_SECONDS)
        async for response in iterate_until_deadline("buffer", stream):
            yield [
                (r.sequence, ResultReport(COMMIT_OUTCOMES[r.state], r.reason))
                for r in response.reports
            ]


def lease_of(assignment: Assignment) -> pb.Lease:
    """Returns the lease of an assignment."""
    return pb.Lease(assignment_id=assignment.id, lease_token=assignment.lease_token)


def _lease_response(
    response: pb.LeaseAssignmentsResponse, requires_exact_version: bool
) -> LeaseResponse:
    states = pb.LeaseAssignmentsResponse
    match response.state:
        case states.STATE_GRANTED:
            return WorkGranted(
                tuple(
                    _assignment(m, requires_exact_version, response.session_key)
                    for m in response.assignments
                )
            )
        case states.STATE_DRAINED:
            return StageDrained()
        case states.STATE_CANCELLED:
            return StageCancelled(response.reason)
        case _:
            return NoWorkYet(response.reason, wait_kind_from_proto(response.waits_for))


def _assignment(
    message: pb.Assignment, requires_exact_version: bool, session_key: bytes
) -> Assignment:
    kind = ROLLOUT_KINDS[message.kind]
    return Assignment(
        id=message.id,
        kind=kind,
        explore_step=message.explore_step,
        position=message.position,
        taskset=message.taskset,
        task_index=message.task_index,
        task_json=message.task_json,
        runs=tuple(message.runs),
        first_attempt=message.first_attempt,
        lease_token=message.lease_token,
        required=WeightsRequirement(
            version=message.required_version,
            incarnation=message.required_incarnation,
            exact_version=requires_exact_version or kind is RolloutKind.EVAL,
            takes_newer_if_lost=kind is RolloutKind.TRAIN,
        ),
        traceparent=message.traceparent,
        has_turns=message.has_turns,
        numbers_calls=message.numbers_calls,
        session_key=session_key,
    )


class LeaseKeeper:
    """Renews each assignment's lease while its work runs; cancels work whose lease is lost."""

    def __init__(
        self,
        *,
        key: StageKey,
        lease_seconds: float,
        buffer: ExplorerBufferClient,
        retry_policy: RetryPolicy,
        cuts_stragglers: bool = False,
    ) -> None:
        """Renews often with `cuts_stragglers`: steps then do not wait for all tasks."""
        self._key = key
        usual = lease_seconds / RENEWALS_PER_LEASE
        self._renew_seconds = min(usual, FAST_RENEW_SECONDS) if cuts_stragglers else usual
        self._lease_seconds = lease_seconds
        self._buffer = buffer
        self._retry_policy = retry_policy
        self._held: dict[str, tuple[Assignment, asyncio.Task[None]]] = {}

    @property
    def assignments(self) -> list[Assignment]:
        """The assignments whose leases are held."""
        return [assignment for assignment, _ in self._held.values()]

    def hold(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        """Keeps the lease until `work` is done.

        The same assignment again means that its lease had expired: its old work is cancelled.
        """
        if before := self._held.get(assignment.id):
            before[1].cancel()
        self._held[assignment.id] = (assignment, work)
        work.add_done_callback(lambda _: self._forget(assignment, work))

    async def return_assignment(self, assignment: Assignment) -> None:
        """Returns work to the buffer, to be retried at once."""
        await self._retry_policy.retry(
            partial(self._buffer.release_leases, self._key, [assignment]),
            waits_for="buffer",
            purpose="give a lease back",
        )

    def cancel_all(self) -> None:
        """Cancels all work."""
        for _, work in self._held.values():
            work.cancel()

    async def renew_until_cancelled(self) -> None:
        """Renews leases and cancels the work of those that are lost, until cancelled."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            held = self.assignments
            if not held:
                continue
            lost = await self._retry_policy.retry(
                partial(self._buffer.renew_leases, self._key, held, self._lease_seconds),
                waits_for="buffer",
                purpose="renew leases",
            )
            self._cancel_lost([each for each in held if each.id in lost])

    def _cancel_lost(self, lost: Sequence[Assignment]) -> None:
        ended = []
        for assignment in lost:
            current = self._held.get(assignment.id)
            if current is not None and current[0] is assignment:
                ended.append(assignment.id)
                current[1].cancel()
        if ended:
            logger.info(
                "leases ended: their results are stored, or other workers have them",
                extra={"count": len(ended), "assignments": " ".join(ended)},
            )

    def _forget(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        if self._held.get(assignment.id) == (assignment, work):
            del self._held[assignment.id]
