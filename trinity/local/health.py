"""Waits until a service reports that it is live."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trinity.errors import RunFailed
from trinity.rpc.channel import open_channel
from trinity.security.folder import PLAIN, Security

_RETRY_SECONDS = 0.05
# Retries soon while a service starts; gRPC's default is a second and more.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.enable_http_proxy", 0),
]


async def wait_serving(
    name: str, address: str, timeout_seconds: float, security: Security = PLAIN
) -> None:
    """Returns when the server at the address answers SERVING."""
    try:
        async with asyncio.timeout(timeout_seconds):
            async with open_channel(address, security, _OPTIONS) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                while not await _watch_until_serving(stub):  # noqa: ASYNC110 (a pause to reconnect)
                    await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError:
        raise RunFailed(
            f"The {name} at {address} was not ready within {timeout_seconds:.0f} s"
        ) from None


async def _watch_until_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    """Returns true if the server reported SERVING before its stream broke."""
    try:
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    except grpc.aio.AioRpcError:
        pass
    return False
