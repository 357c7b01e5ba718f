"""Speaks in the name of a life of the trainer that is over: every one of its commits is refused."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.rpc.channel import open_channel

CALL_SECONDS = 5.0
NOWHERE = "/nowhere"
HASH = b"\x5a" * 32
REFUSALS = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAVAILABLE,
)
FAR_VERSION = 1_000_000
"""No run ever asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zombie:
    """An incarnation that goes on talking after its successor has begun."""

    experiment: synchronizer_pb2.Experiment
    incarnation: int

    @property
    def _key(self) -> buffer_pb2.StageKey:
        return buffer_pb2.StageKey(
            tenant=self.experiment.tenant,
            experiment_id=self.experiment.id,
            stage=self.experiment.stages[0].name,
        )

    async def commit_at(self, buffer: str) -> list[str]:
        """Try to commit a checkpoint and weights; answers what was taken."""
        checkpoint = buffer_pb2.Checkpoint(
            step=1, incarnation=self.incarnation, path=NOWHERE, manifest_sha256=HASH
        )
        version = buffer_pb2.PublishedVersion(
            version=1, incarnation=self.incarnation, weights_sha256=HASH
        )
        async with open_channel(buffer) as channel:
            stub = BufferServiceStub(channel)
            commits = buffer_pb2.CommitCheckpointRequest(key=self._key, checkpoint=checkpoint)
            records = buffer_pb2.RecordVersionRequest(key=self._key, version=version)
            return [
                *await _taken("checkpoint", lambda: stub.CommitCheckpoint(commits, timeout=5)),
                *await _taken("version", lambda: stub.RecordVersion(records, timeout=5)),
            ]

    async def publish_at(self, synchronizer: str) -> list[str]:
        """Try to announce weights; answers what was taken."""
        request = synchronizer_pb2.PublishVersionRequest(
            experiment_id=self.experiment.id,
            version=synchronizer_pb2.Version(
                stage=self.experiment.stages[0].name,
                version=FAR_VERSION,
                incarnation=self.incarnation,
                kind=synchronizer_pb2.Version.KIND_FULL,
                path=NOWHERE,
                manifest_sha256=HASH,
                weights_sha256=HASH,
            ),
        )
        async with open_channel(synchronizer) as channel:
            stub = SynchronizerServiceStub(channel)
            return await _taken(
                "announcement", lambda: stub.PublishVersion(request, timeout=CALL_SECONDS)
            )


async def _taken(what: str, call: Callable[[], Coroutine[Any, Any, object]]) -> list[str]:
    """Refused is right; a peer that is away has not taken it either."""
    try:
        await call()
    except grpc.aio.AioRpcError as error:
        assert error.code() in REFUSALS, error.details()
        return []
    return [what]
