"""Other services' answers: errors as ours, and streams that end in peace."""

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc

from trinity.rpc.errors import error_of

T = TypeVar("T")


@contextmanager
def calling(service: str) -> Iterator[None]:
    """Raise our error, with the service's name, for a call that failed."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        ours = error_of(error)
        raise type(ours)(f"{service}: {ours}") from error


async def following(service: str, stream: AsyncIterable[T]) -> AsyncIterator[T]:
    """What a watch stream says, until its time is over; then it is to be opened again."""
    with calling(service):
        try:
            async for message in stream:
                yield message
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
