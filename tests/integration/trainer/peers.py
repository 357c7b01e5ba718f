"""A buffer and a synchronizer that live in the test and remember what the trainer told them."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2_grpc

from tests.integration.trainer.buffer_peer import BufferPeer, Rows
from tests.integration.trainer.peer_rows import TENANT
from trinity.api.v1 import buffer_pb2_grpc, synchronizer_pb2
from trinity.api.v1 import synchronizer_pb2_grpc as synchronizer_grpc
from trinity.config.plan.stage_plan import ExperimentPlan


class Peers(BufferPeer, synchronizer_grpc.SynchronizerServiceServicer):
    """Both services on one port; `changed` is notified of every call that changes something."""

    def __init__(self, plan: ExperimentPlan, rows: dict[str, Rows]) -> None:
        super().__init__(plan, rows)
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
        self.published: list[synchronizer_pb2.Version] = []
        """All versions ever announced."""
        self.members: list[synchronizer_pb2.Member] = []
        """Others than the trainer under test."""
        self.trainer = synchronizer_pb2.Member()
        """What the trainer under test said of itself last."""
        self.num_deaf_calls = 0
        """Calls of FailStage that are not heard."""

    @property
    def is_finished(self) -> bool:
        """Whether the trainer finished every stage."""
        done = synchronizer_pb2.STAGE_STATE_FINISHED
        return all(stage.state == done for stage in self.experiment.stages)

    def load_former_run(self, stage: str) -> None:
        """Skip the stages before this one, as if they had left no weights."""
        for known in self.experiment.stages:
            if known.name == stage:
                known.state = synchronizer_pb2.STAGE_STATE_RUNNING
                return
            known.state = synchronizer_pb2.STAGE_STATE_FINISHED

    async def resume(self) -> None:
        """Start the experiment anew, as a person does by running it again."""
        self.failure = ""
        self.experiment.state = synchronizer_pb2.EXPERIMENT_STATE_RUNNING
        self.experiment.start_count += 1
        failed = synchronizer_pb2.STAGE_STATE_FAILED
        for stage in self.experiment.stages:
            if stage.state == failed:
                stage.state = synchronizer_pb2.STAGE_STATE_RUNNING
        await self.note()

    async def cancel(self) -> None:
        """End the experiment on a person's wish."""
        self._end(synchronizer_pb2.EXPERIMENT_STATE_CANCELLED)
        await self.note()

    def _end(self, state: synchronizer_pb2.ExperimentState) -> None:
        self.experiment.state = state
        for stage in self.experiment.stages:
            if stage.state == synchronizer_pb2.STAGE_STATE_RUNNING:
                stage.state = synchronizer_pb2.STAGE_STATE_FAILED

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

        def is_new() -> bool:
            return self.num_changes != seen

        while True:
            async with self.changed:
                await self.changed.wait_for(is_new)
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
        self.published.append(request.version)
        return synchronizer_pb2.PublishVersionResponse()

    async def RetireVersions(
        self, request: synchronizer_pb2.RetireVersionsRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.RetireVersionsResponse:
        for gone in request.versions:
            kept = [v for v in self.versions[gone.stage] if v.path != gone.path]
            self.versions[gone.stage] = kept
        return synchronizer_pb2.RetireVersionsResponse()

    async def Heartbeat(
        self, request: synchronizer_pb2.HeartbeatRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.HeartbeatResponse:
        self.trainer = request.member
        async with self.changed:
            self.changed.notify_all()
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
        await self.note()
        return synchronizer_pb2.FinishRoleResponse(state=stage.state)

    async def FailStage(
        self, request: synchronizer_pb2.FailStageRequest, context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.FailStageResponse:
        if self.num_deaf_calls:
            self.num_deaf_calls -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "not heard")
        self.failure = request.reason
        self._end(synchronizer_pb2.EXPERIMENT_STATE_FAILED)
        await self.note()
        return synchronizer_pb2.FailStageResponse()

    async def GetStatus(
        self, _request: synchronizer_pb2.GetStatusRequest, _context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.GetStatusResponse:
        return synchronizer_pb2.GetStatusResponse(
            experiments=[self.experiment], members=[self.trainer, *self.members]
        )


@asynccontextmanager
async def serve_peers(peers: Peers) -> AsyncIterator[str]:
    """The address both answer on."""
    server = grpc.aio.server()
    await peers.call_buffer_ready(True)
    health_pb2_grpc.add_HealthServicer_to_server(peers.health, server)
    buffer_pb2_grpc.add_BufferServiceServicer_to_server(peers, server)
    synchronizer_grpc.add_SynchronizerServiceServicer_to_server(peers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
