"""Channels to other services: keepalive, size limits, retries while a service restarts."""

import json
from collections.abc import Sequence

import grpc

from trinity.api.v1 import (
    buffer_pb2,
    explorer_pb2,
    query_pb2,
    synchronizer_pb2,
    taskset_pb2,
    trainer_pb2,
)
from trinity.runtime.rpc.limits import CHANNEL_SIZES, KEEPALIVE, LARGE_RESPONSE_OPTIONS
from trinity.runtime.rpc.renewal import RenewingChannel, RenewingSyncChannel
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.security.plaintext_policy import refuse_plain_service
from trinity.runtime.telemetry.grpc import traced_channel

_CONTRACTS = (buffer_pb2, explorer_pb2, query_pb2, synchronizer_pb2, taskset_pb2, trainer_pb2)
NO_PROXY = ("grpc.enable_http_proxy", 0)
"""Services reach one another directly: `http_proxy` is for addresses of the internet."""


def _unary_methods() -> list[dict[str, str]]:
    """Lists the unary methods: retried streams may lose a message, hang or crash in grpcio 1.85."""
    return [
        {"service": service.full_name, "method": method.name}
        for file in _CONTRACTS
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    ]


# Only UNAVAILABLE is retried: every RPC of the contracts may be sent again, and a server with this
# answer has not started the call. Callers handle longer outages, under a named wait.
RETRY_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": _unary_methods(),
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


def _options() -> Sequence[tuple[str, str | int]]:
    return [
        *KEEPALIVE,
        *CHANNEL_SIZES,
        *LARGE_RESPONSE_OPTIONS,
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        # Limits one connection attempt; despite its name it is no pause between attempts.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def open_channel(
    address: str,
    security: Credentials | None = None,
    options: Sequence[tuple[str, str | int]] | None = None,
) -> grpc.aio.Channel:
    """Opens a channel for asyncio code; close it when done.

    Without `security` the environment decides.

    Raises: UserError when the address is beyond loopback and there is no security.
    """
    security = _security_for(address, security)
    chosen = [*(options or (*_options(), ("grpc.service_config", RETRY_CONFIG))), NO_PROXY]
    if not security.is_on:
        return traced_channel(grpc.aio.insecure_channel(address, options=chosen))

    def connect() -> grpc.aio.Channel:
        return grpc.aio.secure_channel(address, security.channel_credentials(), options=chosen)

    return traced_channel(RenewingChannel(security, connect))


def open_sync_channel(
    address: str,
    security: Credentials | None = None,
    *,
    server_name: str = "",
    shows_token: bool = True,
) -> grpc.Channel:
    """Opens a channel for threads, otherwise like `open_channel`; close it when done.

    With `server_name` the server's certificate must have that name instead of the address. A client
    that only checks health needs no token: services that call no others do not have one.

    There are no retries: a stream that is retried after its server was killed hangs in grpcio 1.85
    beyond its deadline, forever. The caller waits and retries.
    """
    security = _security_for(address, security)
    options = [*_options(), NO_PROXY, ("grpc.enable_retries", 0)]
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    if not security.is_on:
        return traced_channel(grpc.insecure_channel(address, options=options))

    def connect() -> grpc.Channel:
        credentials = (
            security.channel_credentials if shows_token else security.tokenless_credentials
        )
        return grpc.secure_channel(address, credentials(), options=options)

    return traced_channel(RenewingSyncChannel(security, connect))


def _security_for(address: str, security: Credentials | None) -> Credentials:
    security = security or Credentials.from_environment()
    if not security.is_on:
        refuse_plain_service(address)
    return security
