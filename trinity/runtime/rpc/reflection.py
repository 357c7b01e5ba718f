"""gRPC's server reflection: programs without the contracts ask a service for them."""

from collections.abc import Sequence

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from trinity.runtime.rpc.guard import GuardedServer
from trinity.runtime.security.authorization import REFLECTION_SERVICES


def add_reflection(server: GuardedServer, services: Sequence[str]) -> None:
    """Serves the descriptors of services; v1 has the messages of v1alpha under another name."""
    servicer = reflection.aio.ReflectionServicer((*services, *REFLECTION_SERVICES))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in REFLECTION_SERVICES:
        server.add_registered_method_handlers(name, {"ServerReflectionInfo": handler})
