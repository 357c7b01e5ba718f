"""The explorer's own RPC, which reports what it is doing."""

import grpc

from services.explorer.counts import Counts
from services.explorer.unconfirmed import Unconfirmed
from trinity.api.v1 import explorer_pb2 as pb
from trinity.api.v1.explorer_pb2_grpc import ExplorerServiceServicer
from trinity.members import Heartbeats

SERVICE = "trinity.api.v1.ExplorerService"


class ExplorerServicer(ExplorerServiceServicer):
    """Answers requests from memory."""

    def __init__(self, beats: Heartbeats, counts: Counts, unconfirmed: Unconfirmed) -> None:
        self._beats = beats
        self._counts = counts
        self._unconfirmed = unconfirmed

    async def GetExplorerStatus(
        self,
        request: pb.GetExplorerStatusRequest,  # noqa: ARG002 empty by contract
        context: "grpc.aio.ServicerContext[object, object]",  # noqa: ARG002
    ) -> pb.GetExplorerStatusResponse:
        """Returns what the explorer is doing now."""
        member = self._beats.member
        return pb.GetExplorerStatusResponse(
            explorer_id=member.id,
            experiment_id=member.experiment_id,
            stage=member.stage,
            activity=member.activity,
            loaded_version=member.version,
            num_running=self._counts.num_running,
            num_unconfirmed=len(self._unconfirmed),
            num_generated_tokens=self._counts.num_generated_tokens,
        )
