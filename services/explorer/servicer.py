"""The explorer's own RPC: what it is doing."""

import grpc

from services.explorer.status import Status
from services.explorer.unconfirmed import Unconfirmed
from trinity.api.v1 import explorer_pb2 as pb
from trinity.api.v1.explorer_pb2_grpc import ExplorerServiceServicer

SERVICE = "trinity.api.v1.ExplorerService"


class ExplorerServicer(ExplorerServiceServicer):
    """Answers from memory."""

    def __init__(self, status: Status, unconfirmed: Unconfirmed) -> None:
        self._status = status
        self._unconfirmed = unconfirmed

    async def GetExplorerStatus(
        self,
        request: pb.GetExplorerStatusRequest,  # noqa: ARG002 empty by contract
        context: "grpc.aio.ServicerContext[object, object]",  # noqa: ARG002
    ) -> pb.GetExplorerStatusResponse:
        """What the explorer does now."""
        status = self._status
        return pb.GetExplorerStatusResponse(
            explorer_id=status.explorer_id,
            experiment_id=status.experiment_id,
            stage=status.stage,
            activity=status.activity,
            loaded_version=status.loaded_version,
            num_running=status.num_running,
            num_unconfirmed=len(self._unconfirmed),
            num_generated_tokens=status.num_generated_tokens,
        )
