"""A buffer that lives in the test and remembers what the trainer told it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health, health_pb2

from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc
from trinity.config.plan.stage_plan import ExperimentPlan

Rows = Callable[[int], list[buffer_pb2.BatchRow]]
BUFFER_SERVICE = "trinity.api.v1.BufferService"


@dataclass
class Stage:
    """What the buffer knows of a stage."""

    name: str
    rows_of: Rows
    incarnation: int = 0
    recorded_step: int = 0
    versions: dict[int, buffer_pb2.PublishedVersion] = field(default_factory=dict)
    reports: list[buffer_pb2.ReportStepRequest] = field(default_factory=list)
    checkpoints: list[buffer_pb2.Checkpoint] = field(default_factory=list)
    finished_step: int = 0
    refusal: grpc.StatusCode | None = None
    """What OpenStage is answered with, saying that there is no data."""
    num_readings: int = 0
    """Times that OpenStage answers that the data is being read."""
    cancelled: str = ""
    """Why the buffer ended the stage, if it did."""


class BufferPeer(buffer_pb2_grpc.BufferServiceServicer):
    """Hands out rows of any step, once and always the same."""

    def __init__(self, plan: ExperimentPlan, rows: dict[str, Rows]) -> None:
        self.plan = plan
        self.stages = {name: Stage(name, rows_of) for name, rows_of in rows.items()}
        self.health = health.aio.HealthServicer()
        self.num_changes = 0
        self.changed = asyncio.Condition()

    async def until(self, met: Callable[[], bool], seconds: float = 240.0) -> None:
        """Wait for something to have happened."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(met)

    async def note(self) -> None:
        """Have everybody look again."""
        async with self.changed:
            self.num_changes += 1
            self.changed.notify_all()

    async def call_buffer_ready(self, ready: bool) -> None:
        """Have the buffer say that it is usable, or not."""
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if ready else states.NOT_SERVING
        await self.health.set(BUFFER_SERVICE, state)

    async def OpenStage(
        self, request: buffer_pb2.OpenStageRequest, context: grpc.aio.ServicerContext
    ) -> buffer_pb2.OpenStageResponse:
        known = self.stages[request.key.stage]
        if known.refusal is not None:
            await context.abort(known.refusal, "/data/tasks.jsonl is not there")
        if known.num_readings:
            known.num_readings -= 1
            return buffer_pb2.OpenStageResponse(
                state=buffer_pb2.OpenStageResponse.STATE_READING, reason="tasks is being read"
            )
        stage = next(stage for stage in self.plan.stages if stage.name == request.key.stage)
        return buffer_pb2.OpenStageResponse(
            state=buffer_pb2.OpenStageResponse.STATE_OPEN,
            num_tasks=64,
            total_train_steps=stage.num_train_steps(64),
        )

    async def BeginIncarnation(
        self, request: buffer_pb2.BeginIncarnationRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.BeginIncarnationResponse:
        stage = self.stages[request.key.stage]
        stage.incarnation += 1
        newest = stage.versions[max(stage.versions)] if stage.versions else None
        await self.note()
        return buffer_pb2.BeginIncarnationResponse(
            incarnation=stage.incarnation,
            line=1,
            checkpoints=reversed(stage.checkpoints),
            recorded_step=stage.recorded_step,
            newest_version=newest,
            finished_step=stage.finished_step,
        )

    async def RecordVersion(
        self, request: buffer_pb2.RecordVersionRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.RecordVersionResponse:
        self.stages[request.key.stage].versions[request.version.version] = request.version
        await self.note()
        return buffer_pb2.RecordVersionResponse()

    async def GetBatch(
        self, request: buffer_pb2.GetBatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[buffer_pb2.GetBatchResponse]:
        stage = self.stages[request.key.stage]
        if request.incarnation != stage.incarnation:
            await context.abort(grpc.StatusCode.ABORTED, "a newer incarnation exists")
        if stage.cancelled:
            state = buffer_pb2.BatchHead.STATE_CANCELLED
            head = buffer_pb2.BatchHead(state=state, reason=stage.cancelled)
            yield buffer_pb2.GetBatchResponse(head=head)
            return
        rows = stage.rows_of(request.step)
        if not rows:
            head = buffer_pb2.BatchHead(state=buffer_pb2.BatchHead.STATE_DRAINED)
            yield buffer_pb2.GetBatchResponse(head=head)
            return
        head = buffer_pb2.BatchHead(
            state=buffer_pb2.BatchHead.STATE_READY,
            num_rows=len(rows),
            replayed=request.step <= stage.recorded_step,
        )
        stage.recorded_step = max(stage.recorded_step, request.step)
        await self.note()
        yield buffer_pb2.GetBatchResponse(head=head)
        yield buffer_pb2.GetBatchResponse(rows=buffer_pb2.BatchRows(rows=rows))

    async def ReportStep(
        self, request: buffer_pb2.ReportStepRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.ReportStepResponse:
        self.stages[request.key.stage].reports.append(request)
        await self.note()
        return buffer_pb2.ReportStepResponse()

    async def CommitCheckpoint(
        self, request: buffer_pb2.CommitCheckpointRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.CommitCheckpointResponse:
        self.stages[request.key.stage].checkpoints.append(request.checkpoint)
        await self.note()
        return buffer_pb2.CommitCheckpointResponse()

    async def FinishTraining(
        self, request: buffer_pb2.FinishTrainingRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.FinishTrainingResponse:
        self.stages[request.key.stage].finished_step = request.step
        return buffer_pb2.FinishTrainingResponse()
