"""A buffer that takes calls and never answers: python -m tests.chaos.silent_server ADDRESS"""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc

from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import buffer_pb2_grpc


class SilentBuffer(buffer_pb2_grpc.BufferServiceServicer):
    """Says on standard output that it was called."""

    async def GetBatch(
        self, request: pb.GetBatchRequest, _: object
    ) -> AsyncIterator[pb.GetBatchResponse]:
        _say("called")
        await asyncio.Event().wait()
        yield pb.GetBatchResponse()

    async def LeaseAssignments(
        self, request: pb.LeaseAssignmentsRequest, _: object
    ) -> pb.LeaseAssignmentsResponse:
        _say("called")
        await asyncio.Event().wait()
        return pb.LeaseAssignmentsResponse()


async def serve(address: str) -> None:
    """Until killed."""
    server = grpc.aio.server()
    buffer_pb2_grpc.add_BufferServiceServicer_to_server(SilentBuffer(), server)
    server.add_insecure_port(address)
    await server.start()
    _say("serving")
    await server.wait_for_termination()


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
