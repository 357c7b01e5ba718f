"""Status codes of other services' answers as our errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from trinity.errors import InvalidRequest, NotFound, PreconditionFailed, RpcError, Unavailable

ERRORS: dict[grpc.StatusCode, type[RpcError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
}


@contextmanager
def translated(service: str) -> Iterator[None]:
    """Raise our error for a call that failed; what has no code of its own may be tried again."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        kind = ERRORS.get(error.code(), Unavailable)
        text = error.details() or error.code().name
        raise kind(f"{service}: {text}") from error
