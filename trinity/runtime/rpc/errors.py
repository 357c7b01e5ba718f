"""One mapping between our errors and gRPC's codes, used by servers and by clients."""

import contextlib
from collections.abc import Awaitable, Iterator
from typing import TypeVar

import grpc

from trinity.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    QuotaExceeded,
    RpcError,
    Superseded,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

ValueT = TypeVar("ValueT")
QUOTA = "quota: "
"""How the text of an exceeded quota begins: its code is also that of a request too large."""
STATUS_CODES: dict[type[RpcError], grpc.StatusCode] = {
    QuotaExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,  # the one that clients raise, but for quotas
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    Superseded: grpc.StatusCode.ABORTED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,  # before its base class Unavailable
    Unavailable: grpc.StatusCode.UNAVAILABLE,
}
ERROR_TYPES = {code: error for error, code in STATUS_CODES.items()} | {
    grpc.StatusCode.UNIMPLEMENTED: PreconditionFailed,
}


def status_code(error: RpcError) -> grpc.StatusCode:
    """Returns the code with which a server answers."""
    return next(code for kind, code in STATUS_CODES.items() if isinstance(error, kind))


def error_of(error: grpc.RpcError) -> RpcError:
    """Converts a client's failed call; a code that names no fault of the caller is an outage."""
    kind = ERROR_TYPES.get(error.code(), Unavailable)
    details = error.details() or error.code().name
    return QuotaExceeded(details) if details.startswith(QUOTA) else kind(details)


@contextlib.contextmanager
def translate_rpc_errors(service: str = "") -> Iterator[None]:
    """Raises our errors instead of gRPC's, prefixed with a service's name."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        ours = error_of(error)
        raise type(ours)(f"{service}: {ours}" if service else str(ours)) from error


async def answer_of(call: Awaitable[ValueT]) -> ValueT:
    """Returns the answer of an RPC; raises our errors instead of gRPC's."""
    with translate_rpc_errors():
        return await call
