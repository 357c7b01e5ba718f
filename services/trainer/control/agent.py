"""A host that does not lead: it runs the ranks that the leader asks for, and reports on them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import grpc

import trinity
from services.trainer.control.gang import Gang, RankDied
from services.trainer.control.hosts import BEAT_SECONDS, LOST_SECONDS, MAX_QUEUED
from services.trainer.control.places import RankPlaces
from services.trainer.control.status import TrainerState
from services.trainer.settings import TrainerSettings
from trinity.api.v1 import trainer_pb2 as pb
from trinity.api.v1.trainer_pb2_grpc import TrainerServiceStub

logger = logging.getLogger(__name__)

LEADER_WAIT = "leader"
RECONNECT_SECONDS = 1.0
LeaderCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.JoinGangRequest, pb.JoinGangResponse]"
StartPart = Callable[[RankPlaces], Awaitable[Gang]]
"""Starts the ranks of this host."""


class HostAgent:
    """Joins the leader's worker group, and rejoins until stopped; no rank outlives the stream.

    agent = HostAgent(settings=settings, tenant="", stub=stub, state=state, start=start, stop=stop)
    await agent.serve_leader()
    """

    def __init__(
        self,
        *,
        settings: TrainerSettings,
        tenant: str,
        stub: TrainerServiceStub,
        state: TrainerState,
        start: StartPart,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._tenant = tenant
        self._stub = stub
        self._state = state
        self._start = start
        self._stop = stop
        self._ranks: Gang | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._outgoing: asyncio.Queue[pb.JoinGangRequest] = asyncio.Queue(MAX_QUEUED)

    async def serve_leader(self) -> None:
        """Runs the leader's orders until stopped; then kills the ranks, which ends the attempt."""
        last_reason = ""
        while not self._stop.is_set():
            reason = await self._serve_until_lost()
            if self._stop.is_set():
                break
            if reason != last_reason:
                logger.warning("the leader is not there", extra={"reason": reason})
            last_reason = reason
            self._state.set_wait(LEADER_WAIT, waits_for="the leading trainer", reason=reason)
            await _first_of(self._stop.wait(), asyncio.sleep(RECONNECT_SECONDS))
        await self._kill_ranks()

    async def _serve_until_lost(self) -> str:
        """Returns the reason that the stream ended."""
        self._outgoing = asyncio.Queue(MAX_QUEUED)
        call = self._stub.JoinGang(self._requests())
        try:
            while not self._stop.is_set():
                message = await self._read(call)
                if message is grpc.aio.EOF:
                    return "it has ended the connection"
                self._state.clear_wait(LEADER_WAIT)
                await self._obey(message)
            return ""
        except grpc.aio.AioRpcError as error:
            return str(error.details() or error.code().name)
        except TimeoutError:
            return f"no message from it for {LOST_SECONDS:.0f} s"
        finally:
            call.cancel()
            await self._kill_ranks()

    async def _read(self, call: LeaderCall) -> pb.JoinGangResponse:
        reading = asyncio.ensure_future(call.read())
        done = await _first_of(reading, self._stop.wait(), seconds=LOST_SECONDS)
        if reading in done:
            message: pb.JoinGangResponse = reading.result()
            return message
        reading.cancel()
        if self._stop.is_set():
            return pb.JoinGangResponse()
        raise TimeoutError

    async def _requests(self) -> AsyncIterator[pb.JoinGangRequest]:
        hello = pb.HostHello(
            host=self._settings.host,
            num_hosts=self._settings.num_hosts,
            release=trinity.__version__,
            unix_millis=int(time.time() * 1000),
            address=self._settings.gang_address,
            tenant=self._tenant,
        )
        yield pb.JoinGangRequest(hello=hello)
        outgoing = self._outgoing
        while True:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    message = await outgoing.get()
            except TimeoutError:
                message = pb.JoinGangRequest()
            yield message  # outside of the timeout, which would cancel a sender that is slow

    async def _obey(self, message: pb.JoinGangResponse) -> None:
        match message.WhichOneof("part"):
            case "start":
                await self._start_ranks(message.gang, message.start)
            case "order_json":
                if self._ranks is not None:
                    self._ranks.send_order(message.order_json.encode())
            case "kill":
                await self._kill_ranks()

    async def _start_ranks(self, gang: int, start: pb.RanksStart) -> None:
        await self._kill_ranks()
        places = RankPlaces(
            num_ranks=start.num_ranks,
            first=start.first_rank,
            num_local=start.num_local,
            master_address=start.master_address,
            master_port=start.master_port,
        )
        self._ranks = await self._start(places)
        self._state.num_ranks = start.num_local
        self._state.num_gang_starts += 1
        self._forwarding = asyncio.create_task(self._forward(self._ranks, gang))

    async def _forward(self, ranks: Gang, gang: int) -> None:
        """Forwards the ranks' events to the leader, in order."""
        while True:
            received = await ranks.next_event()
            report = pb.RankReport(gang=gang, rank=received.rank)
            if isinstance(received, RankDied):
                report.ended = received.reason
            else:
                report.event_json = received.event.model_dump_json()
            await self._outgoing.put(pb.JoinGangRequest(report=report))

    async def _kill_ranks(self) -> None:
        ranks, self._ranks = self._ranks, None
        if self._forwarding is not None:
            self._forwarding.cancel()
        if ranks is not None:
            await ranks.kill()


async def _first_of(
    *awaitables: Awaitable[object], seconds: float | None = None
) -> set[asyncio.Future[object]] | set[asyncio.Task[object]]:
    """Waits for the first of them, and cancels the others."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    done, open_ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in open_:
        task.cancel()
    return done
