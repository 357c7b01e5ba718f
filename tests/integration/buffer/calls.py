"""Calls with deadlines on a running buffer, for one stage."""

import asyncio
import uuid
from dataclasses import dataclass, field

from nats.aio.client import Client

from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import buffer_pb2_grpc
from trinity.config.plan.stage_plan import StagePlan
from trinity.data.codec import stage_key_to_proto
from trinity.types import StageKey

CALL_SECONDS = 60.0
WAIT_SECONDS = 40.0
OPEN = pb.OpenStageResponse.STATE_OPEN


@dataclass
class Calls:
    """What everybody may ask."""

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

    async def open(self, plan: StagePlan, seed: int = 7) -> pb.OpenStageResponse:
        """Ask until the stage is open."""
        while (answer := await self.open_once(plan, seed)).state != OPEN:
            assert answer.reason
        return answer

    async def open_once(self, plan: StagePlan, seed: int = 7) -> pb.OpenStageResponse:
        request = pb.OpenStageRequest(key=self.pb_key, plan_json=plan.model_dump_json(), seed=seed)
        answer: pb.OpenStageResponse = await self.stub.OpenStage(request, timeout=CALL_SECONDS)
        return answer

    async def cancel(self, reason: str) -> int:
        request = pb.CancelStageRequest(key=self.pb_key, reason=reason)
        answer: pb.CancelStageResponse = await self.stub.CancelStage(request, timeout=CALL_SECONDS)
        return answer.num_revoked

    async def status(self) -> pb.StageStatus:
        [stage] = await self.stages()
        return stage

    async def until_ready(self, count: int) -> None:
        """Waits until results that are committed have become so many rows."""
        while (await self.status()).num_ready < count:  # noqa: ASYNC110  # in another process
            await asyncio.sleep(0.05)  # in another process

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
