"""Runs a gRPC server until told to stop: guarded handlers, health, graceful drain."""

import logging
import resource
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from trinity.errors import UserError
from trinity.runtime.host_port import join_address, split_address
from trinity.runtime.rpc.guard import ALLOW_ALL, AccessControl, GuardedServer, TenantOf
from trinity.runtime.rpc.health import Health
from trinity.runtime.rpc.limits import KEEPALIVE, MIN_PING_INTERVAL_MILLISECONDS, SERVER_SIZES
from trinity.runtime.rpc.quotas import QuotaUse
from trinity.runtime.rpc.reflection import add_reflection
from trinity.runtime.security.credentials import VARIABLE, Credentials
from trinity.runtime.security.loopback import is_loopback
from trinity.runtime.settings import ServiceSettings
from trinity.runtime.telemetry import metrics

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 10_000
# A server must survive untrusted clients on its port: their use is limited in size and in time.
SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    *KEEPALIVE,
    *SERVER_SIZES,
    # A client that connects and does not speak HTTP/2 is dropped after this (default: two
    # minutes)...
    ("grpc.server_handshake_timeout_ms", 10_000),
    # ...and one that has made no call for this long; our clients reconnect transparently.
    ("grpc.max_connection_idle_ms", 300_000),
    # Our clients have at most a few dozen calls in flight.
    ("grpc.max_concurrent_streams", 256),
    # Calls that wait for the event loop: from 1,000 on, the default drops some of any client.
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server.max_pending_requests_hard_limit", 32_768),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MILLISECONDS),
    # Our clients' keepalive pings are far apart; a flood of them ends the connection.
    ("grpc.http2.max_ping_strikes", 100),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Servicer:
    """A service to serve: its full name, the generated `add_...` function, the implementation."""

    name: str
    add: Callable[[Any, Any], None]
    implementation: object


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that accepts calls."""

    address: str
    health: Health

    @property
    def port(self) -> int:
        """The port that it is bound to."""
        return int(self.address.rpartition(":")[2])


@asynccontextmanager
async def serve(
    settings: ServiceSettings,
    servicers: Sequence[Servicer],
    *,
    security: Credentials | None = None,
    tenant_of: TenantOf | None = None,
) -> AsyncIterator[RunningServer]:
    """Serves until the block ends, then drains: not ready, no new calls, calls in flight finish.

    Without `security` the environment decides; `tenant_of` is as for `AccessControl`.

    Raises: UserError when the address is in use, or is not loopback and there is no security.
    """
    security = security or Credentials.from_environment()
    host, port = split_address(settings.listen)
    if not security.is_on:
        _refuse_open_address(settings.listen, host)
    server = grpc.aio.server(options=[*SERVER_OPTIONS, _connection_limit()])
    streams = QuotaUse(settings.quota("tenant_streams", "open streams", remedy="close some"))
    guarded = GuardedServer(server, _admission(security, tenant_of), streams)
    for servicer in servicers:
        servicer.add(servicer.implementation, guarded)
    health = Health(tuple(servicer.name for servicer in servicers))
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, guarded)
    add_reflection(guarded, [servicer.name for servicer in servicers])
    bound = _bind(server, host, port, security)
    await health.start()
    metrics.SERVICE_READY.register_callback(lambda: [(float(health.ready), {})])
    await server.start()
    logger.info("serving", extra={"address": join_address(host, bound)})
    try:
        yield RunningServer(address=join_address(host, bound), health=health)
    finally:
        await health.shut_down()
        await server.stop(settings.drain_seconds)


def _connection_limit() -> tuple[str, int]:
    """Limits connections to half of the file descriptors: the rest is for the process's own."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    half = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else files // 2
    return "grpc.max_allowed_incoming_connections", min(MAX_CONNECTIONS, half)


def _admission(security: Credentials, tenant_of: TenantOf | None) -> AccessControl:
    if not security.is_on:
        return ALLOW_ALL
    return AccessControl(caller_of=security.token_keys().caller_of, tenant_of=tenant_of)


def _refuse_open_address(address: str, host: str) -> None:
    """Refuses addresses beyond loopback: plaintext gRPC has no authentication."""
    if not is_loopback(host):
        raise UserError(
            f"refusing to listen on {address}: only loopback addresses are allowed without TLS and "
            f"tokens; use 127.0.0.1, or set {VARIABLE} to a folder that `trinity certs` has made"
        )


def _bind(server: grpc.aio.Server, host: str, port: int, security: Credentials) -> int:
    """Binds a port; distinguishes one in use (which grpcio only logs) from other errors."""
    target = join_address(host, port)
    try:
        if security.is_on:
            bound = server.add_secure_port(target, security.server_credentials())
        else:
            bound = server.add_insecure_port(target)
    except RuntimeError as error:
        raise UserError(_why_not(host, port)) from error
    if not bound:
        raise UserError(_why_not(host, port))
    return int(bound)


def _why_not(host: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, port))
    except OSError as error:
        return f"cannot listen on {join_address(host, port)}: {error.strerror}; choose another port"
    return f"cannot listen on {join_address(host, port)}"
