"""Hosts that work for one that leads: the leader's view of them, and the agent of one that follows.

Each runs the same service. A host that follows opens a stream to the leader and runs what it asks
for: ranks of a gang, workers of an engine. Either side gives the other up once it hears nothing.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import grpc

from trinity.api.v1.hosts_pb2 import HostHello, HostMessage, HostReport, LeaderMessage
from trinity.errors import Forbidden, InvalidRequest, PreconditionFailed
from trinity.runtime.security.loopback import is_loopback

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
LOST_SECONDS = 8.0
"""Silence after which a host counts as gone, so that it is named within ten seconds."""
RECONNECT_SECONDS = 1.0
MAX_CLOCK_SECONDS = 60.0
"""Tokens, leases and logs of hosts whose clocks differ by more would not fit together."""
MAX_QUEUED = 64
GONE = "has ended its connection"
Join: TypeAlias = Callable[
    [AsyncIterator[HostMessage]], "grpc.aio.StreamStreamCall[HostMessage, LeaderMessage]"
]
"""Opens the stream to the leader."""


class HostPart(Protocol):
    """The processes that a host runs for its leader."""

    async def next_report(self) -> HostReport | None:
        """Waits for something to report; None after the last."""
        ...

    def send_order(self, line: bytes) -> None:
        """Passes an order of the leader's on."""
        ...

    async def kill(self) -> None:
        """Kills all of its processes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """The place of this host in a group, and the words for it."""

    group: str
    """`gang` or `engine`."""
    variables: str
    """The service in the names of the variables with which the hosts are configured."""
    address_variable: str
    num_hosts: int
    release: str = ""
    """Release of the software; all hosts have the same."""
    host: int = 0
    address: str = "127.0.0.1"
    tenant: str = ""


@dataclass(slots=True)
class HostLink:
    """The stream of one host, on the leader's side."""

    number: int
    address: str
    outgoing: asyncio.Queue[LeaderMessage] = field(
        default_factory=lambda: asyncio.Queue(MAX_QUEUED)
    )
    heard_at: float = field(default_factory=time.monotonic)
    is_lost: bool = False
    start: int = 0
    """Number of what the host runs now: what is said of an earlier start is no news."""
    on_report: Callable[[HostReport], None] | None = None
    on_loss: Callable[[str], None] | None = None

    @property
    def name(self) -> str:
        """The host in words."""
        return f"host {self.number} ({self.address})"

    def send(self, message: LeaderMessage) -> None:
        """Sends a message about the host's part; one that is gone gets none."""
        message.start = self.start
        if self.outgoing.full():
            self.lose("does not take its orders")
        if not self.is_lost:
            self.outgoing.put_nowait(message)

    def start_part(
        self,
        start: int,
        order: str,
        *,
        on_report: Callable[[HostReport], None],
        on_loss: Callable[[str], None],
    ) -> None:
        """Has the host start its part; one that is lost already is reported as such."""
        self.start, self.on_report, self.on_loss = start, on_report, on_loss
        if self.is_lost:
            on_loss(f"{self.name} is gone")
        self.send(LeaderMessage(start_json=order))

    def release(self) -> None:
        """Has the host kill its part; its later messages are ignored."""
        self.on_report = self.on_loss = None
        self.send(LeaderMessage(kill=True))

    def hear(self, message: HostMessage) -> None:
        """Records a sign of life, and passes on a report about the present start."""
        self.heard_at = time.monotonic()
        is_report = message.WhichOneof("part") == "report"
        if is_report and message.report.start == self.start and self.on_report is not None:
            self.on_report(message.report)

    def lose(self, reason: str) -> None:
        """Gives the host up."""
        if self.is_lost:
            return
        self.is_lost = True
        logger.error("a host is lost", extra={"host": self.name, "reason": reason})
        if self.on_loss is not None:
            self.on_loss(f"{self.name} {reason}")


class HostGroup:
    """The hosts other than the leader.

    hosts = HostGroup(GroupPlace(group="gang", num_hosts=4, address="10.0.0.1", ...))
    async for message in hosts.serve(requests): ...      # for each stream of a host
    await hosts.changed(); hosts.missing                 # (2, 3)
    """

    def __init__(self, place: GroupPlace) -> None:
        self.place = place
        self.num_hosts = place.num_hosts
        self._links: dict[int, HostLink] = {}
        self._changed = asyncio.Event()

    @property
    def links(self) -> tuple[HostLink, ...]:
        """The hosts that are there, in order."""
        found = (self._links[number] for number in sorted(self._links))
        return tuple(link for link in found if not link.is_lost)

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the hosts that are not there."""
        there = {link.number for link in self.links}
        return tuple(n for n in range(1, self.num_hosts) if n not in there)

    async def changed(self) -> None:
        """Waits until a host has come or gone."""
        await self._changed.wait()

    async def serve(self, requests: AsyncIterator[HostMessage]) -> AsyncIterator[LeaderMessage]:
        """Serves the stream of one host until either side is gone.

        Raises: InvalidRequest, PreconditionFailed or Forbidden if it may not take part.
        """
        first = await anext(requests, HostMessage())
        link = self._admit(first.hello)
        listening = asyncio.create_task(self._listen(link, requests))
        try:
            while not link.is_lost:
                yield await self._next_message(link)
        finally:
            listening.cancel()
            link.lose(GONE)
            if self._links.get(link.number) is link:
                del self._links[link.number]
            self._notify()

    async def _next_message(self, link: HostLink) -> LeaderMessage:
        """Returns the next message to the host, a sign of life where there is nothing to tell."""
        left = link.heard_at + LOST_SECONDS - time.monotonic()
        try:
            async with asyncio.timeout(min(BEAT_SECONDS, left)):
                message = await link.outgoing.get()
        except TimeoutError:
            message = LeaderMessage(start=link.start)
        if time.monotonic() - link.heard_at >= LOST_SECONDS:
            link.lose(f"has not answered for {LOST_SECONDS:.0f} s")
        return message

    async def _listen(self, link: HostLink, requests: AsyncIterator[HostMessage]) -> None:
        try:
            async for message in requests:
                link.hear(message)
        finally:
            link.lose(GONE)
            if not link.outgoing.full():
                link.outgoing.put_nowait(LeaderMessage())  # wakes the sender

    def _admit(self, hello: HostHello) -> HostLink:
        self._check(hello)
        link = self._links[hello.host] = HostLink(hello.host, hello.address)
        self._notify()
        logger.info("a host has joined", extra={"host": link.name})
        return link

    def _check(self, hello: HostHello) -> None:
        place, number = self.place, hello.host
        if hello.tenant != place.tenant:
            raise Forbidden(f"the host is of another tenant than the {place.group}")
        if not 0 < number < self.num_hosts or hello.num_hosts != self.num_hosts:
            raise InvalidRequest(
                f"host {number} of {hello.num_hosts} wants to join the {place.group} of "
                f"{self.num_hosts}: give all hosts the same TRINITY_{place.variables}_NUM_HOSTS, "
                f"and each its own TRINITY_{place.variables}_HOST below it"
            )
        if hello.release != place.release:
            raise PreconditionFailed(
                f"host {number} runs release {hello.release}, the leader {place.release}: "
                "install the same one"
            )
        off = abs(time.time() - hello.unix_millis / 1000)
        if off > MAX_CLOCK_SECONDS:
            raise PreconditionFailed(
                f"the clock of host {number} is {off:.0f} s off the leader's: set both"
            )
        if is_loopback(hello.address) != is_loopback(place.address):
            raise PreconditionFailed(
                f"host {number} has the address {hello.address} in the {place.group}, and the "
                f"leader {place.address}: give each its own in one private network as "
                f"{place.address_variable}"
            )
        if number not in self.missing:
            raise PreconditionFailed(
                f"there is a host {number} already, {self._links[number].address}: give each host "
                f"a TRINITY_{place.variables}_HOST of its own"
            )

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class HostAgent:
    """Joins the leader again and again; nothing that it runs outlives the stream.

    agent = HostAgent(place=place, join=stub.JoinGang, start=start, on_joined=show)
    await agent.serve_leader()   # until cancelled
    """

    def __init__(
        self,
        *,
        place: GroupPlace,
        join: Join,
        start: Callable[[str], Awaitable[HostPart]],
        on_joined: Callable[[str], None],
    ) -> None:
        self._place = place
        self._join = join
        self._start = start
        """Starts this host's part as the leader's JSON says."""
        self._on_joined = on_joined
        """Is called with the reason why this host is not with the leader; empty if it is."""
        self._part: HostPart | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._outgoing: asyncio.Queue[HostMessage] = asyncio.Queue(MAX_QUEUED)

    async def serve_leader(self) -> None:
        """Obeys the leader until cancelled; then kills its part, as the rest cannot go on."""
        last_reason = ""
        while True:
            reason = await self._serve_until_lost()
            if reason != last_reason:
                logger.warning("the leader is not there", extra={"reason": reason})
            last_reason = reason
            self._on_joined(reason)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve_until_lost(self) -> str:
        """Returns the reason that the stream ended."""
        self._outgoing = asyncio.Queue(MAX_QUEUED)
        call = self._join(self._requests(self._outgoing))
        try:
            while True:
                async with asyncio.timeout(LOST_SECONDS):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return "it has ended the connection"
                self._on_joined("")
                await self._obey(message)
        except grpc.aio.AioRpcError as error:
            return str(error.details() or error.code().name)
        except TimeoutError:
            return f"nothing was heard from it for {LOST_SECONDS:.0f} s"
        finally:
            call.cancel()
            await self._kill_part()

    async def _requests(self, outgoing: asyncio.Queue[HostMessage]) -> AsyncIterator[HostMessage]:
        place = self._place
        hello = HostHello(
            host=place.host,
            num_hosts=place.num_hosts,
            release=place.release,
            unix_millis=int(time.time() * 1000),
            address=place.address,
            tenant=place.tenant,
        )
        yield HostMessage(hello=hello)
        while True:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    message = await outgoing.get()
            except TimeoutError:
                message = HostMessage()
            yield message  # outside of the timeout, which would cancel a sender that is slow

    async def _obey(self, message: LeaderMessage) -> None:
        match message.WhichOneof("part"):
            case "start_json":
                await self._kill_part()
                logger.info("starting what the leader asks for")
                self._part = await self._start(message.start_json)
                self._reporting = asyncio.create_task(self._report(self._part, message.start))
            case "order_json":
                if self._part is not None:
                    self._part.send_order(message.order_json.encode())
            case "kill":
                await self._kill_part()

    async def _report(self, part: HostPart, start: int) -> None:
        """Reports the part's messages, in order."""
        while (report := await part.next_report()) is not None:
            report.start = start
            await self._outgoing.put(HostMessage(report=report))

    async def _kill_part(self) -> None:
        part, self._part = self._part, None
        if self._reporting is not None:
            self._reporting.cancel()
        if part is not None:
            await part.kill()
