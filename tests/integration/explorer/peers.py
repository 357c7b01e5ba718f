"""A synchronizer and a buffer small enough to read, for an explorer to talk to."""

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc
import nats
from nats.aio.client import Client

from trinity.api.v1 import buffer_pb2 as bpb
from trinity.api.v1 import experience_pb2 as epb
from trinity.api.v1 import synchronizer_pb2 as spb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceServicer
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceServicer
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import InvalidRequest
from trinity.weights import manifest

Context: TypeAlias = grpc.aio.ServicerContext
LEASE_TOKEN = "token"


@dataclass
class PeerSynchronizer(SynchronizerServiceServicer):
    """Knows one experiment; `change` tells every stream."""

    plan: ExperimentPlan
    experiment_id: str
    stage_state: "spb.StageState" = spb.STAGE_STATE_RUNNING
    versions: list[spb.Version] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    members: list[spb.Member] = field(default_factory=list)
    start_count: int = 1
    is_cancelled: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def experiment(self) -> spb.Experiment:
        over = bool(self.finished or self.failures or self.is_cancelled)
        return spb.Experiment(
            id=self.experiment_id,
            tenant=self.plan.tenant,
            label=self.plan.label,
            start_count=self.start_count,
            state=spb.EXPERIMENT_STATE_FINISHED if over else spb.EXPERIMENT_STATE_RUNNING,
            stages=[
                spb.Stage(
                    name=stage.name,
                    state=self.stage_state,
                    roles=[spb.ROLE_TRAINER, spb.ROLE_EXPLORER],
                    finished_roles=[spb.ROLE_EXPLORER] * (stage.name in self.finished),
                )
                for stage in self.plan.stages
            ],
        )

    async def change(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def resume(self) -> None:
        """Start the experiment again after it failed."""
        self.failures.clear()
        self.start_count += 1
        await self.change()

    def cancel(self) -> None:
        """As a person does."""
        self.is_cancelled = True

    async def publish(self, version: spb.Version) -> None:
        """Announce weights that are written."""
        self.versions.append(version)
        await self.change()

    async def WatchExperiments(
        self, _request: spb.WatchExperimentsRequest, _: Context
    ) -> AsyncIterator[spb.WatchExperimentsResponse]:
        while True:
            now = self.experiment()
            running = [now] if now.state == spb.EXPERIMENT_STATE_RUNNING else []
            yield spb.WatchExperimentsResponse(experiments=running)
            async with self.changed:
                await self.changed.wait()

    async def WatchExperiment(
        self, _request: spb.WatchExperimentRequest, _: Context
    ) -> AsyncIterator[spb.WatchExperimentResponse]:
        while True:
            yield spb.WatchExperimentResponse(experiment=self.experiment(), versions=self.versions)
            async with self.changed:
                await self.changed.wait()

    async def GetExperiment(
        self, _request: spb.GetExperimentRequest, _: Context
    ) -> spb.GetExperimentResponse:
        return spb.GetExperimentResponse(
            experiment=self.experiment(), plan_json=self.plan.model_dump_json()
        )

    async def Heartbeat(self, request: spb.HeartbeatRequest, _: Context) -> spb.HeartbeatResponse:
        self.members.append(request.member)
        await self.change()
        return spb.HeartbeatResponse(interval_seconds=0.1)

    async def FinishRole(
        self, request: spb.FinishRoleRequest, _: Context
    ) -> spb.FinishRoleResponse:
        self.finished.append(request.stage)
        await self.change()
        return spb.FinishRoleResponse(state=spb.STAGE_STATE_FINISHED)

    async def FailStage(self, request: spb.FailStageRequest, _: Context) -> spb.FailStageResponse:
        self.failures.append(request.reason)
        await self.change()
        return spb.FailStageResponse()


@dataclass
class PeerBuffer(BufferServiceServicer):
    """Hands out the assignments it is given and commits what arrives; `is_mute` delays reports."""

    pending: list[bpb.Assignment] = field(default_factory=list)
    drains: bool = True
    is_mute: bool = False
    cancel_reason: str = ""
    lease_error: Exception | None = None
    """What LeaseAssignments answers."""
    waits_for: str = ""
    """Why there is no work, if there is none yet."""
    reading: int = 0
    """Times that OpenStage says to ask again."""
    refuse: "Callable[[epb.RunResult], str]" = field(default=lambda _: "")
    """Why a result is not stored; empty for one that is."""
    max_blob_bytes: int = 64 << 20
    leased: dict[str, bpb.Assignment] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    results: dict[int, epb.RunResult] = field(default_factory=dict)
    num_received: int = 0
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    held: list[list[str]] = field(default_factory=list)
    """Assignments that the explorer said it holds when it asked for work, call by call."""
    released: list[list[str]] = field(default_factory=list)
    """Assignments that were given back, call by call; none named are all."""
    num_renewals: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def change(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: "Callable[[PeerBuffer], bool]") -> None:
        """Wait until something about the buffer is so."""
        async with self.changed:
            await self.changed.wait_for(lambda: condition(self))

    async def OpenStage(self, request: bpb.OpenStageRequest, _: Context) -> bpb.OpenStageResponse:
        states = bpb.OpenStageResponse
        if self.reading > 0:
            self.reading -= 1
            return states(state=states.STATE_READING, reason="taskset sums is awaited")
        self.opened.append(request.key.stage)
        return states(state=states.STATE_OPEN, num_tasks=1)

    async def LeaseAssignments(
        self, request: bpb.LeaseAssignmentsRequest, _: Context
    ) -> bpb.LeaseAssignmentsResponse:
        states = bpb.LeaseAssignmentsResponse
        self.held.append([lease.assignment_id for lease in request.held.leases])
        if self.lease_error is not None:
            raise self.lease_error
        if self.waits_for:
            return states(state=states.STATE_WAITING, reason=self.waits_for)
        await self.until(
            lambda peer: bool(peer.pending or peer.cancel_reason) or peer._is_drained()
        )
        if self.cancel_reason:
            return states(state=states.STATE_CANCELLED, reason=self.cancel_reason)
        if not self.pending:
            return states(state=states.STATE_DRAINED)
        granted = self.pending[: request.max_assignments]
        del self.pending[: request.max_assignments]
        self.leased |= {assignment.id: assignment for assignment in granted}
        return states(state=states.STATE_GRANTED, assignments=granted, remaining_seconds=15)

    def complete(self) -> dict[tuple[str, int], epb.RunResult]:
        """Complete results by assignment and run."""
        return {
            (result.assignment_id, result.run): result
            for result in self.results.values()
            if result.state == epb.RunResult.STATE_COMPLETE
        }

    def _is_drained(self) -> bool:
        wanted = sum(len(assignment.runs) for assignment in self.leased.values())
        return self.drains and len(self.complete()) >= wanted

    async def RenewLeases(
        self, _request: bpb.RenewLeasesRequest, _: Context
    ) -> bpb.RenewLeasesResponse:
        self.num_renewals += 1
        await self.change()
        return bpb.RenewLeasesResponse(lost_assignment_ids=self.lost, remaining_seconds=15)

    async def ReleaseLeases(
        self, request: bpb.ReleaseLeasesRequest, _: Context
    ) -> bpb.ReleaseLeasesResponse:
        self.released.append([lease.assignment_id for lease in request.leases])
        await self.change()
        return bpb.ReleaseLeasesResponse()

    async def UploadBlob(
        self, requests: AsyncIterator[bpb.UploadBlobRequest], _: Context
    ) -> bpb.UploadBlobResponse:
        parts = [request async for request in requests]
        content = b"".join(part.chunk for part in parts)
        if len(content) > self.max_blob_bytes:
            raise InvalidRequest(f"a blob may have at most {self.max_blob_bytes} bytes")
        self.blobs[parts[0].sha256] = content
        return bpb.UploadBlobResponse(size=len(content))

    async def WatchCommits(
        self, _request: bpb.WatchCommitsRequest, _: Context
    ) -> AsyncIterator[bpb.WatchCommitsResponse]:
        told: set[int] = set()
        while True:
            await self.until(lambda peer: not peer.is_mute and bool(peer.results.keys() - told))  # noqa: B023
            new = self.results.keys() - told
            told |= new
            yield bpb.WatchCommitsResponse(reports=[self._report(number) for number in sorted(new)])

    def _report(self, number: int) -> bpb.CommitReport:
        states, reason = bpb.CommitReport, self.refuse(self.results[number])
        state = states.STATE_REJECTED if reason else states.STATE_COMMITTED
        return states(sequence=number, state=state, reason=reason)

    async def consume(self, url: str) -> None:
        """Take results from the stream; until cancelled."""
        client = await nats.connect(url)
        try:
            await self._consume(client)
        finally:
            await client.close()

    async def _consume(self, client: Client) -> None:
        stream = client.jetstream()
        await stream.add_stream(name="runs", subjects=["trinity.runs.>"], max_bytes=64 << 20)
        subscription = await stream.subscribe("trinity.runs.>")
        async for message in subscription.messages:
            batch = epb.RunResultBatch.FromString(message.data)
            if batch.blob_sha256:
                batch = epb.RunResultBatch.FromString(self.blobs[batch.blob_sha256])
            self.num_received += len(batch.results)
            self.results |= {result.sequence: result for result in batch.results}
            await message.ack()
            await self.change()


def write_weights(directory: Path, version: int, content: bytes) -> spb.Version:
    """Weights that hold `content`, sealed, as the trainer announces them."""
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).digest()
    head = manifest.ManifestHead(
        kind="weights", stage="main", step=version, incarnation=1, weights_sha256=digest.hex()
    )
    return spb.Version(
        stage="main",
        version=version,
        incarnation=1,
        kind=spb.Version.KIND_FULL,
        path=str(directory),
        manifest_sha256=manifest.seal(directory, head),
        weights_sha256=digest,
    )


def assignments(count: int, runs: int = 2, **changes: object) -> list[bpb.Assignment]:
    """Assignments of one explore step, by position."""
    values: dict[str, object] = {
        "kind": bpb.ASSIGNMENT_KIND_TRAIN,
        "explore_step": 1,
        "taskset": "taskset",
        "runs": range(runs),
        "lease_token": LEASE_TOKEN,
        "required_version": 0,
        "required_incarnation": 1,
        "repeat_times": runs,
    }
    return [
        bpb.Assignment(
            id=str(uuid.uuid4()),
            position=position,
            task_index=position,
            task_json=json.dumps({"question": f"{position}+1=", "answer": str(position + 1)}),
            **(values | changes),  # type: ignore[arg-type]
        )
        for position in range(count)
    ]


def tokens_by_run(results: Iterable[epb.RunResult]) -> dict[tuple[int, int], bytes]:
    """What each run generated, by its position and number."""
    return {
        (r.experiences[0].eid.position, r.run): r.experiences[0].sequence.tokens.data
        for r in results
    }
