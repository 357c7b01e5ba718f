"""Helpers for calls to other services: converts gRPC errors and ends watch streams cleanly."""

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc

from trinity.rpc.errors import error_of

T = TypeVar("T")


@contextmanager
def calling(service: str) -> Iterator[None]:
    """Converts the error of a failed call to ours, prefixed with the service's name."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        ours = error_of(error)
        raise type(ours)(f"{service}: {ours}") from error


async def following(service: str, stream: AsyncIterable[T]) -> AsyncIterator[T]:
    """Yields a watch stream's messages until its deadline, after which it must be reopened."""
    with calling(service):
        try:
            async for message in stream:
                yield message
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
