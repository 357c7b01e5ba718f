"""A buffer and a synchronizer that live in the test and remember what the trainer told them."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import numpy as np

from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc, experience_pb2, synchronizer_pb2
from trinity.api.v1 import synchronizer_pb2_grpc as synchronizer_grpc
from trinity.codec import SampleRef, experience_to_proto
from trinity.config import ExperimentPlan
from trinity.types import EID, Experience, SamplingParams, Sequence

Rows = Callable[[int], list[buffer_pb2.BatchRow]]
TENANT = "default"


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


class Peers(buffer_pb2_grpc.BufferServiceServicer, synchronizer_grpc.SynchronizerServiceServicer):
    """Both services on one port; `changed` is set with every call that changes something."""

    def __init__(self, plan: ExperimentPlan, rows: dict[str, Rows]) -> None:
        self.plan = plan
        self.stages = {name: Stage(name, rows_of) for name, rows_of in rows.items()}
        self.experiment = synchronizer_pb2.Experiment(
            id=str(uuid.uuid4()),
            tenant=TENANT,
            label=plan.label,
            state=synchronizer_pb2.EXPERIMENT_STATE_RUNNING,
            start_count=1,
            stages=[
                synchronizer_pb2.Stage(
                    name=stage.name,
                    state=synchronizer_pb2.STAGE_STATE_PENDING,
                    roles=[synchronizer_pb2.ROLE_TRAINER],
                )
                for stage in plan.stages
            ],
        )
        self.experiment.stages[0].state = synchronizer_pb2.STAGE_STATE_RUNNING
        self.versions: dict[str, list[synchronizer_pb2.Version]] = {name: [] for name in rows}
        self.failure = ""
        self.num_changes = 0
        self._condition = asyncio.Condition()

    async def until(self, met: Callable[[], bool], seconds: float = 90.0) -> None:
        """Wait for something to have happened."""
        async with asyncio.timeout(seconds), self._condition:
            await self._condition.wait_for(met)

    @property
    def is_finished(self) -> bool:
        """Whether the trainer finished every stage."""
        done = synchronizer_pb2.STAGE_STATE_FINISHED
        return all(stage.state == done for stage in self.experiment.stages)

    async def _note(self) -> None:
        async with self._condition:
            self.num_changes += 1
            self._condition.notify_all()

    async def OpenStage(
        self, request: buffer_pb2.OpenStageRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.OpenStageResponse:
        stage = next(stage for stage in self.plan.stages if stage.name == request.key.stage)
        return buffer_pb2.OpenStageResponse(
            num_tasks=64, total_train_steps=stage.num_train_steps(64)
        )

    async def BeginIncarnation(
        self, request: buffer_pb2.BeginIncarnationRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.BeginIncarnationResponse:
        stage = self.stages[request.key.stage]
        stage.incarnation += 1
        newest = stage.versions[max(stage.versions)] if stage.versions else None
        await self._note()
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
        await self._note()
        return buffer_pb2.RecordVersionResponse()

    async def GetBatch(
        self, request: buffer_pb2.GetBatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[buffer_pb2.GetBatchResponse]:
        stage = self.stages[request.key.stage]
        if request.incarnation != stage.incarnation:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a newer life exists")
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
        await self._note()
        yield buffer_pb2.GetBatchResponse(head=head)
        yield buffer_pb2.GetBatchResponse(rows=buffer_pb2.BatchRows(rows=rows))

    async def ReportStep(
        self, request: buffer_pb2.ReportStepRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.ReportStepResponse:
        self.stages[request.key.stage].reports.append(request)
        await self._note()
        return buffer_pb2.ReportStepResponse()

    async def CommitCheckpoint(
        self, request: buffer_pb2.CommitCheckpointRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.CommitCheckpointResponse:
        self.stages[request.key.stage].checkpoints.append(request.checkpoint)
        await self._note()
        return buffer_pb2.CommitCheckpointResponse()

    async def FinishTraining(
        self, request: buffer_pb2.FinishTrainingRequest, _context: grpc.aio.ServicerContext
    ) -> buffer_pb2.FinishTrainingResponse:
        self.stages[request.key.stage].finished_step = request.step
        return buffer_pb2.FinishTrainingResponse()

    async def GetExperiment(
        self, _request: synchronizer_pb2.GetExperimentRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.GetExperimentResponse:
        return synchronizer_pb2.GetExperimentResponse(
            experiment=self.experiment, plan_json=self.plan.model_dump_json()
        )

    async def WatchExperiments(
        self, _request: synchronizer_pb2.WatchExperimentsRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[synchronizer_pb2.WatchExperimentsResponse]:
        seen = -1
        while True:
            async with self._condition:
                await self._condition.wait_for(lambda seen=seen: self.num_changes != seen)
                seen = self.num_changes
            running = self.experiment.state == synchronizer_pb2.EXPERIMENT_STATE_RUNNING
            yield synchronizer_pb2.WatchExperimentsResponse(
                experiments=[self.experiment] if running else []
            )

    async def WatchExperiment(
        self, _request: synchronizer_pb2.WatchExperimentRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[synchronizer_pb2.WatchExperimentResponse]:
        running = synchronizer_pb2.STAGE_STATE_RUNNING
        stage = next(stage for stage in self.experiment.stages if stage.state == running)
        yield synchronizer_pb2.WatchExperimentResponse(
            experiment=self.experiment, versions=self.versions[stage.name]
        )

    async def PublishVersion(
        self, request: synchronizer_pb2.PublishVersionRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.PublishVersionResponse:
        self.versions[request.version.stage].append(request.version)
        return synchronizer_pb2.PublishVersionResponse()

    async def RetireVersions(
        self, request: synchronizer_pb2.RetireVersionsRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.RetireVersionsResponse:
        for gone in request.versions:
            kept = [v for v in self.versions[gone.stage] if v.path != gone.path]
            self.versions[gone.stage] = kept
        return synchronizer_pb2.RetireVersionsResponse()

    async def Heartbeat(
        self, _request: synchronizer_pb2.HeartbeatRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.HeartbeatResponse:
        return synchronizer_pb2.HeartbeatResponse(interval_seconds=2.0)

    async def FinishRole(
        self, request: synchronizer_pb2.FinishRoleRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.FinishRoleResponse:
        names = [stage.name for stage in self.experiment.stages]
        place = names.index(request.stage)
        stage = self.experiment.stages[place]
        stage.state = synchronizer_pb2.STAGE_STATE_FINISHED
        stage.finished_roles.append(request.role)
        stage.final_version.CopyFrom(request.final_version)
        if place + 1 < len(names):
            self.experiment.stages[place + 1].state = synchronizer_pb2.STAGE_STATE_RUNNING
        else:
            self.experiment.state = synchronizer_pb2.EXPERIMENT_STATE_FINISHED
        await self._note()
        return synchronizer_pb2.FinishRoleResponse(state=stage.state)

    async def FailStage(
        self, request: synchronizer_pb2.FailStageRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.FailStageResponse:
        self.failure = request.reason
        self.experiment.state = synchronizer_pb2.EXPERIMENT_STATE_FAILED
        await self._note()
        return synchronizer_pb2.FailStageResponse()


@asynccontextmanager
async def serve_peers(peers: Peers) -> AsyncIterator[str]:
    """The address both answer on."""
    server = grpc.aio.server()
    buffer_pb2_grpc.add_BufferServiceServicer_to_server(peers, server)
    synchronizer_grpc.add_SynchronizerServiceServicer_to_server(peers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def rollout_rows(step: int, num_rows: int, vocabulary: int) -> list[buffer_pb2.BatchRow]:
    """The same rows for the same step, with log-probabilities near a uniform policy's."""
    generator = np.random.default_rng(step)
    return [
        buffer_pb2.BatchRow(
            position=position,
            experience=_experience(step, position, generator, vocabulary),
            advantage=float(generator.normal()),
            weight=1.0,
        )
        for position in range(num_rows)
    ]


def _experience(
    step: int, position: int, generator: np.random.Generator, vocabulary: int
) -> experience_pb2.Experience:
    response = int(generator.integers(2, 7))
    sequence = Sequence(
        tokens=generator.integers(2, vocabulary, 4 + response).astype(np.int32),
        prompt_length=4,
        action_mask=np.ones(response, dtype=np.bool_),
        rollout_logprobs=np.full(response, -np.log(vocabulary), dtype=np.float32),
    )
    experience = Experience(
        body=sequence,
        eid=EID(stage="rft", explore_step=step, position=position, run=0),
        reward=0.0,
        sampling=SamplingParams(),
    )
    ref = SampleRef(
        tenant=TENANT,
        experiment_id=str(uuid.UUID(int=1)),
        assignment_id=str(uuid.UUID(int=2)),
        taskset="tasks",
        task_index=0,
    )
    return experience_to_proto(experience, ref)


def text_rows(step: int, num_rows: int) -> list[buffer_pb2.BatchRow]:
    """Rows of training data, drawn in order."""
    places = [(step - 1) * num_rows + place for place in range(num_rows)]
    return [
        buffer_pb2.BatchRow(
            position=position,
            row_json=json.dumps({"prompt": f"{place}+1=", "response": str(place + 1)}),
            weight=1.0,
            row_index=place,
        )
        for position, place in enumerate(places)
    ]
