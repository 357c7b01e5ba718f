"""A running buffer and those who talk to it: a trainer, and an explorer that makes up results."""

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nats
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from nats.aio.client import Client

from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import buffer_pb2_grpc, experience_pb2
from trinity.codec import SampleRef, experience_to_proto, stage_key_to_proto
from trinity.config import StagePlan
from trinity.local.ports import free_port
from trinity.rpc.channel import open_channel
from trinity.rpc.limits import CHUNK_BYTES
from trinity.types import (
    EID,
    Experience,
    FinishReason,
    SamplingParams,
    StageKey,
    VersionSpan,
)
from trinity.types import (
    Sequence as TokenSequence,
)

SERVICE = "trinity.api.v1.BufferService"
CALL_SECONDS = 60.0
WAIT_SECONDS = 10.0
OPEN = pb.OpenStageResponse.STATE_OPEN


@dataclass(slots=True)
class BufferProcess:
    """`python -m services.buffer` on a port of its own."""

    dsn: str
    nats_url: str
    log_file: Path
    extra: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def spawn(self) -> None:
        settings = {
            "TRINITY_BUFFER_LISTEN": self.address,
            "TRINITY_BUFFER_POSTGRES_DSN": self.dsn,
            "TRINITY_BUFFER_NATS_URL": self.nats_url,
            "TRINITY_BUFFER_MIGRATE_ON_START": "true",
            **self.extra,
        }
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.buffer"],
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        self.spawn()
        await self.wait_state(health_pb2.HealthCheckResponse.SERVING)

    async def wait_state(self, wanted: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        """Follow the service's health until it is as wanted."""
        async with open_channel(self.address) as channel, asyncio.timeout(CALL_SECONDS):
            await channel.channel_ready()
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            async for answer in stub.Watch(request):
                if answer.status == wanted:
                    return

    async def state(self, service: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
        """How a service is now; the empty name stands for the process."""
        async with open_channel(self.address) as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(request, timeout=CALL_SECONDS, wait_for_ready=True)
            return answer.status

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; answers the exit code."""
        assert self.process is not None
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait)


@dataclass(slots=True)
class Made:
    """What a made-up run gives."""

    reward: float | None = 1.0
    finish_reason: FinishReason = FinishReason.STOP
    num_tokens: int = 3
    metrics: dict[str, float] = field(default_factory=dict)


def make_experience(made: Made, assignment: pb.Assignment, eid: EID) -> Experience:
    """A sample whose prompt and response say where it comes from."""
    length = made.num_tokens
    return Experience(
        body=TokenSequence(
            tokens=np.arange(2 + length, dtype=np.int32),
            prompt_length=2,
            action_mask=np.ones(length, dtype=np.bool_),
            rollout_logprobs=np.full(length, -0.5, dtype=np.float32),
            prompt_text=assignment.task_json,
            response_text=f"{eid.explore_step}/{eid.position}/{eid.run}",
        ),
        eid=eid,
        reward=made.reward,
        reward_parts={} if made.reward is None else {"accuracy": made.reward},
        finish_reason=made.finish_reason,
        version_spans=(
            VersionSpan(
                start=0,
                end=length,
                version=assignment.required_version,
                incarnation=assignment.required_incarnation,
            ),
        ),
        sampling=SamplingParams(),
        metrics=made.metrics,
    )


@dataclass(slots=True)
class Buffer:
    """Calls with deadlines on a running buffer, for one stage."""

    stub: buffer_pb2_grpc.BufferServiceStub
    broker: Client
    key: StageKey
    explorer_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    incarnation: int = 0
    sequence: int = 0

    @property
    def pb_key(self) -> pb.StageKey:
        return stage_key_to_proto(self.key)

    @property
    def subject(self) -> str:
        return f"trinity.runs.{self.key.tenant}.{self.key.experiment_id}.{self.key.stage}"

    def another_explorer(self) -> "Buffer":
        return Buffer(
            stub=self.stub, broker=self.broker, key=self.key, incarnation=self.incarnation
        )

    async def open(self, plan: StagePlan, seed: int = 7) -> pb.OpenStageResponse:
        """Ask until the stage is open."""
        while (answer := await self.open_once(plan, seed)).state != OPEN:
            assert answer.reason
        return answer

    async def open_once(self, plan: StagePlan, seed: int = 7) -> pb.OpenStageResponse:
        request = pb.OpenStageRequest(key=self.pb_key, plan_json=plan.model_dump_json(), seed=seed)
        answer: pb.OpenStageResponse = await self.stub.OpenStage(request, timeout=CALL_SECONDS)
        return answer

    # the explorer's side

    async def lease(
        self,
        count: int = 100,
        *,
        wait_seconds: float = WAIT_SECONDS,
        lease_seconds: float = 60.0,
    ) -> pb.LeaseAssignmentsResponse:
        answer: pb.LeaseAssignmentsResponse = await self.stub.LeaseAssignments(
            pb.LeaseAssignmentsRequest(
                key=self.pb_key,
                explorer_id=self.explorer_id,
                max_assignments=count,
                wait_seconds=wait_seconds,
                lease_seconds=lease_seconds,
            ),
            timeout=CALL_SECONDS,
        )
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
                explore_step=assignment.explore_step,
                position=assignment.position,
                run=run,
                attempt=tried,
                step=step,
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

    # the trainer's side

    async def begin(self) -> pb.BeginIncarnationResponse:
        request = pb.BeginIncarnationRequest(key=self.pb_key, trainer_id=str(uuid.uuid4()))
        answer: pb.BeginIncarnationResponse = await self.stub.BeginIncarnation(
            request, timeout=CALL_SECONDS
        )
        self.incarnation = answer.incarnation
        return answer

    async def record(self, version: int, weights: bytes = b"\x01" * 32) -> list[int]:
        request = pb.RecordVersionRequest(
            key=self.pb_key,
            version=pb.PublishedVersion(
                version=version, incarnation=self.incarnation, weights_sha256=weights
            ),
        )
        answer = await self.stub.RecordVersion(request, timeout=CALL_SECONDS)
        return list(answer.pinned_versions)

    async def batch(
        self, step: int, *, wait_seconds: float = WAIT_SECONDS
    ) -> tuple[pb.BatchHead, list[pb.BatchRow]]:
        request = pb.GetBatchRequest(
            key=self.pb_key, incarnation=self.incarnation, step=step, wait_seconds=wait_seconds
        )
        head, rows = pb.BatchHead(), []
        async for message in self.stub.GetBatch(request, timeout=CALL_SECONDS):
            if message.WhichOneof("part") == "head":
                head = message.head
            else:
                rows += list(message.rows.rows)
        return head, rows

    async def report(self, step: int, **metrics: float) -> pb.ReportStepResponse:
        request = pb.ReportStepRequest(
            key=self.pb_key,
            incarnation=self.incarnation,
            step=step,
            metrics=metrics,
            rows=[pb.RowFeedback(position=0, mean_ratio=1.5, advantage=0.25)],
        )
        answer: pb.ReportStepResponse = await self.stub.ReportStep(request, timeout=CALL_SECONDS)
        return answer

    async def watched(self, *sequences: int) -> list[pb.CommitReport]:
        """What a producer is told at once of the results it names."""
        request = pb.WatchCommitsRequest(producer=self.explorer_id, sequences=sequences)
        stream = self.stub.WatchCommits(request, timeout=CALL_SECONDS)
        first = await stream.read()
        stream.cancel()
        return list(first.reports)

    async def checkpoint(self, step: int) -> pb.CommitCheckpointResponse:
        request = pb.CommitCheckpointRequest(
            key=self.pb_key,
            checkpoint=pb.Checkpoint(
                step=step,
                incarnation=self.incarnation,
                path=f"/checkpoints/step-{step}-{self.incarnation}",
                manifest_sha256=b"\x02" * 32,
            ),
        )
        answer: pb.CommitCheckpointResponse = await self.stub.CommitCheckpoint(
            request, timeout=CALL_SECONDS
        )
        return answer

    async def finish(self, step: int) -> None:
        request = pb.FinishTrainingRequest(key=self.pb_key, incarnation=self.incarnation, step=step)
        await self.stub.FinishTraining(request, timeout=CALL_SECONDS)

    async def cancel(self, reason: str) -> int:
        request = pb.CancelStageRequest(key=self.pb_key, reason=reason)
        answer: pb.CancelStageResponse = await self.stub.CancelStage(request, timeout=CALL_SECONDS)
        return answer.num_revoked

    async def status(self) -> pb.StageStatus:
        [stage] = await self.stages()
        return stage

    async def stages(self) -> list[pb.StageStatus]:
        """Stages of this experiment that are not finished."""
        request = pb.GetBufferStatusRequest(
            tenant=self.key.tenant, experiment_id=self.key.experiment_id
        )
        answer: pb.GetBufferStatusResponse = await self.stub.GetBufferStatus(
            request, timeout=CALL_SECONDS
        )
        return list(answer.stages)

    async def events(self, last_kind: str, count: int = 1) -> list[pb.ProgressEvent]:
        """All events up to the `count`-th of a kind."""
        request = pb.WatchProgressRequest(
            tenant=self.key.tenant, experiment_id=self.key.experiment_id
        )
        seen: list[pb.ProgressEvent] = []
        stream = self.stub.WatchProgress(request, timeout=CALL_SECONDS)
        async for message in stream:
            seen += message.events
            if sum(one.WhichOneof("event") == last_kind for one in seen) >= count:
                break
        stream.cancel()
        return seen


@contextlib.asynccontextmanager
async def talk_to(process: BufferProcess, stage: str = "rft") -> AsyncIterator[Buffer]:
    """A fresh experiment on a running buffer."""
    broker = await nats.connect(process.nats_url)
    try:
        async with open_channel(process.address) as channel:
            key = StageKey(tenant="default", experiment_id=str(uuid.uuid4()), stage=stage)
            stub: buffer_pb2_grpc.BufferServiceStub = buffer_pb2_grpc.BufferServiceStub(channel)
            yield Buffer(stub=stub, broker=broker, key=key)
    finally:
        await broker.close()
