"""Channels that follow the renewal of their certificate: gRPC's own keep the one they began with.

    channel = RenewingChannel(security, lambda: grpc.aio.secure_channel(address, ...))

A call uses the certificate that is there when it begins. Calls in progress stay where they are.
"""

from collections import deque
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import grpc

from trinity.runtime.security.credentials import Credentials

MAX_CHANNELS = 4
"""Kept for calls that began with a former certificate."""


class _Renewing:
    """The channels of the newest certificates, the newest last, and methods for stubs."""

    def __init__(self, security: Credentials, make: Callable[[], Any]) -> None:
        self._security = security
        self._make = make
        self._stamp = security.certificate_stamp()
        self._channels = deque([make()], maxlen=MAX_CHANNELS)

    def newest(self) -> Any:
        """Returns the channel for a call that begins; the last one while files are replaced."""
        stamp = self._security.certificate_stamp()
        if stamp != self._stamp and self._security.has_whole_certificate():
            self._channels.append(self._make())
            self._stamp = stamp
        return self._channels[-1]

    def method(self, kind: str, *arguments: Any, **more: Any) -> "_Method":
        """Returns a method of a stub."""
        return _Method(self, lambda channel: getattr(channel, kind)(*arguments, **more))

    unary_unary = partialmethod(method, "unary_unary")
    unary_stream = partialmethod(method, "unary_stream")
    stream_unary = partialmethod(method, "stream_unary")
    stream_stream = partialmethod(method, "stream_stream")


class _Method:
    """A method of a stub, on the newest channel."""

    def __init__(self, channels: _Renewing, make: Callable[[Any], Any]) -> None:
        self._channels = channels
        self._make = make
        self._channel = channels.newest()
        self._method = make(self._channel)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Begins a call."""
        return self._newest()(*arguments, **more)

    def with_call(self, *arguments: Any, **more: Any) -> Any:
        """Makes a call in a thread, and returns the call object as well."""
        return self._newest().with_call(*arguments, **more)

    def _newest(self) -> Any:
        channel = self._channels.newest()
        if channel is not self._channel:
            self._channel, self._method = channel, self._make(channel)
        return self._method


class RenewingChannel(_Renewing, grpc.aio.Channel):  # type: ignore[misc]  # it has no types
    """A channel for asyncio code."""

    async def __aenter__(self) -> "RenewingChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Closes all channels."""
        for channel in self._channels:
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the newest channel."""
        return self.newest().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the newest channel is in another state."""
        await self.newest().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the newest channel is connected."""
        await self.newest().channel_ready()


class RenewingSyncChannel(_Renewing, grpc.Channel):  # type: ignore[misc]  # it has no types
    """A channel for threads; its states cannot be subscribed to."""

    def subscribe(self, callback: object, try_to_connect: bool = False) -> None:
        """Is not supported."""
        raise NotImplementedError

    unsubscribe = subscribe

    def __enter__(self) -> "RenewingSyncChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all channels."""
        for channel in self._channels:
            channel.close()
