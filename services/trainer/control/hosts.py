"""The leader's view of the other hosts: their connections and the reports of their ranks.

Each host runs a trainer service with a `HostAgent`, which opens a stream to the leader and starts
ranks at its command. When either side no longer hears the other, the host's ranks are lost.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import trinity
from services.trainer.control.places import RankPlaces
from trinity.api.v1 import trainer_pb2 as pb
from trinity.errors import Forbidden, InvalidRequest, PreconditionFailed
from trinity.runtime.security.loopback import is_loopback

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
LOST_SECONDS = 8.0
"""Silence after which a host counts as gone, so that it is named within ten seconds."""
MAX_CLOCK_SECONDS = 60.0
"""Tokens, leases and logs of hosts whose clocks differ by more would not fit together."""
MAX_QUEUED = 64
Report = Callable[[pb.RankReport], None]


@dataclass(slots=True)
class HostLink:
    """The stream of one host."""

    number: int
    address: str
    outgoing: asyncio.Queue[pb.JoinGangResponse] = field(
        default_factory=lambda: asyncio.Queue(MAX_QUEUED)
    )
    heard_at: float = field(default_factory=time.monotonic)
    is_lost: bool = False
    gang: int = 0
    on_report: Report | None = None
    on_loss: Callable[[str], None] | None = None

    @property
    def name(self) -> str:
        """The host in words."""
        return f"host {self.number} ({self.address})"

    def send(self, message: pb.JoinGangResponse) -> None:
        """Queues a message about the host's current ranks, unless the host is lost."""
        message.gang = self.gang
        if self.outgoing.full():
            self.lose("does not take its orders")
        if not self.is_lost:
            self.outgoing.put_nowait(message)

    def start_ranks(self, gang: int, places: RankPlaces) -> None:
        """Has the host start its ranks."""
        self.gang = gang
        start = pb.RanksStart(
            first_rank=places.first,
            num_local=places.num_local,
            num_ranks=places.num_ranks,
            master_address=places.master_address,
            master_port=places.master_port,
        )
        self.send(pb.JoinGangResponse(start=start))

    def release_ranks(self) -> None:
        """Has the host kill its ranks, and ignores their later reports."""
        self.on_report = self.on_loss = None
        self.send(pb.JoinGangResponse(kill=True))

    def hear(self, message: pb.JoinGangRequest) -> None:
        """Records a sign of life, and forwards a report of the current ranks."""
        self.heard_at = time.monotonic()
        is_report = message.WhichOneof("part") == "report"
        if is_report and message.report.gang == self.gang and self.on_report is not None:
            self.on_report(message.report)

    def lose(self, reason: str) -> None:
        """Gives the host up."""
        if self.is_lost:
            return
        self.is_lost = True
        logger.error(
            "a host of the worker group is lost", extra={"host": self.name, "reason": reason}
        )
        if self.on_loss is not None:
            self.on_loss(f"{self.name} {reason}")


class Hosts:
    """The hosts other than the leader.

    hosts = Hosts(num_hosts=4, tenant="", address="10.0.0.1")
    async for response in hosts.serve(requests): ...      # for each stream of a host
    await hosts.changed(); hosts.missing                  # (2, 3)
    """

    def __init__(self, *, num_hosts: int, tenant: str = "", address: str = "127.0.0.1") -> None:
        self.num_hosts = num_hosts
        self.address = address
        self._tenant = tenant
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

    async def serve(
        self, requests: AsyncIterator[pb.JoinGangRequest]
    ) -> AsyncIterator[pb.JoinGangResponse]:
        """Serves the stream of one host until either side is gone.

        Raises: InvalidRequest, PreconditionFailed or Forbidden if it may not take part.
        """
        hello = await anext(requests, pb.JoinGangRequest())
        link = self._admit(hello.hello)
        listening = asyncio.create_task(self._listen(link, requests))
        try:
            while not link.is_lost:
                yield await self._next_message(link)
        finally:
            listening.cancel()
            self._remove(link)

    async def _next_message(self, link: HostLink) -> pb.JoinGangResponse:
        """Returns the next message to the host, after a while an empty one as a heartbeat."""
        left = link.heard_at + LOST_SECONDS - time.monotonic()
        try:
            async with asyncio.timeout(min(BEAT_SECONDS, left)):
                message = await link.outgoing.get()
        except TimeoutError:
            message = pb.JoinGangResponse(gang=link.gang)
        if time.monotonic() - link.heard_at >= LOST_SECONDS:
            link.lose(f"has not answered for {LOST_SECONDS:.0f} s")
        return message

    async def _listen(self, link: HostLink, requests: AsyncIterator[pb.JoinGangRequest]) -> None:
        try:
            async for message in requests:
                link.hear(message)
        finally:
            link.lose("has ended its connection")

    def _admit(self, hello: pb.HostHello) -> HostLink:
        if hello.tenant != self._tenant:
            raise Forbidden("the host is of another tenant than the leader")
        if not 0 < hello.host < self.num_hosts or hello.num_hosts != self.num_hosts:
            raise InvalidRequest(
                f"host {hello.host} of {hello.num_hosts} wants to join a worker group of "
                f"{self.num_hosts}: give all hosts the same TRINITY_TRAINER_NUM_HOSTS, and each "
                "its own TRINITY_TRAINER_HOST below it"
            )
        if hello.release != trinity.__version__:
            raise PreconditionFailed(
                f"host {hello.host} runs release {hello.release}, the leader "
                f"{trinity.__version__}: install the same one"
            )
        off = abs(time.time() - hello.unix_millis / 1000)
        if off > MAX_CLOCK_SECONDS:
            raise PreconditionFailed(
                f"the clock of host {hello.host} is {off:.0f} s off the leader's: set both"
            )
        if is_loopback(hello.address) != is_loopback(self.address):
            raise PreconditionFailed(
                f"host {hello.host} gives its ranks the address {hello.address}, and the leader "
                f"{self.address}: give each its own in one private network as "
                "TRINITY_TRAINER_GANG_ADDRESS"
            )
        if hello.host not in self.missing:
            raise PreconditionFailed(
                f"there is a host {hello.host} already, {self._links[hello.host].address}: give "
                "each host a different TRINITY_TRAINER_HOST"
            )
        link = HostLink(hello.host, hello.address)
        self._links[hello.host] = link
        self._notify()
        logger.info("a host has joined", extra={"host": link.name})
        return link

    def _remove(self, link: HostLink) -> None:
        link.lose("has ended its connection")
        if self._links.get(link.number) is link:
            del self._links[link.number]
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
