"""An engine over several hosts: the leader's view of the others, and what they do for it.

Each host runs an explorer service. Host 0 leads: it explores, and its engine has the first workers.
The others hold the rest of the workers, and nothing else.
"""

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trinity
from services.explorer.engine.interface import Engine, EngineDied, EngineOptions, EngineSpan
from services.explorer.engine.vllm_options import (
    ENGINE_ADDRESS,
    detect_hardware,
    engine_address,
    engine_arguments,
)
from services.explorer.settings import ExplorerSettings
from trinity.api.v1 import explorer_pb2 as pb
from trinity.errors import Forbidden, InvalidRequest, PreconditionFailed, UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.private_network import check_numbered_host
from trinity.runtime.threads import in_daemon_thread
from trinity.types import SamplingParams
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, OnDelta, Scores

if TYPE_CHECKING:
    from torch.distributed import TCPStore

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
LOST_SECONDS = 8.0
"""Silence after which a host counts as gone, so that it is named within ten seconds."""
MAX_QUEUED = 16
GONE = "has ended its connection"
ValueT = TypeVar("ValueT")
StartEngine = Callable[[EngineOptions], Awaitable[Engine]]


def check_place(settings: ExplorerSettings) -> None:
    """Checks a host's settings before it does anything.

    Raises: UserError naming the variable.
    """
    check_numbered_host(
        num_hosts=settings.num_hosts,
        host=settings.host,
        leader=settings.leader,
        leader_variable="TRINITY_EXPLORER_LEADER",
        address=engine_address(settings.engine_address),
    )


def check_engine(options: EngineOptions, num_hosts: int) -> None:
    """Raises UserError if the engine cannot be shared out over the hosts."""
    rollout = options.rollout
    workers = rollout.tensor_parallel_size * rollout.pipeline_parallel_size
    over = f"over {num_hosts} hosts (TRINITY_EXPLORER_NUM_HOSTS)"
    if workers % num_hosts:
        raise UserError(
            f"{options.role} has {workers} workers, which cannot be shared out evenly {over}: give "
            "a multiple as `tensor_parallel_size` x `pipeline_parallel_size`"
        )
    if rollout.engine_num > 1 or rollout.data_parallel_size > 1:
        raise UserError(
            f"an explorer {over} has one engine: set `engine_num` and `data_parallel_size` to 1"
        )
    if options.num_process_gpus not in (None, rollout.num_gpus):
        raise UserError(
            f"an explorer {over} has one engine: let a server elsewhere answer for auxiliary "
            "models (`external_model_config`), or leave them out"
        )
    if options.sleeps:
        raise UserError(f"`mode: colocate` is one GPU, and the explorer is {over}: give another")


@dataclass(slots=True)
class EngineHostLink:
    """The stream of one host."""

    number: int
    address: str
    outgoing: asyncio.Queue[pb.JoinEngineResponse] = field(
        default_factory=lambda: asyncio.Queue(MAX_QUEUED)
    )
    heard_at: float = field(default_factory=time.monotonic)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """The host in words."""
        return f"host {self.number} ({self.address})"

    def send(self, message: pb.JoinEngineResponse) -> None:
        """Sends a message; a host that takes none is given up."""
        if self.outgoing.full():
            self.lost.set()
        else:
            self.outgoing.put_nowait(message)


class EngineHosts:
    """The hosts beside the leader. What ends one of them ends the engine that is on them.

    hosts = EngineHosts(settings, tenant="")
    async for response in hosts.serve(requests): ...       # for each stream of a host
    await hosts.wait_until_complete(waits)
    engine = await hosts.start_engine(options, start_vllm)  # workers on all of them
    """

    def __init__(self, settings: ExplorerSettings, tenant: str = "") -> None:
        self._num_hosts = settings.num_hosts
        self._address = settings.engine_address
        self._wait_seconds = settings.host_wait_seconds
        self._tenant = tenant
        self._links: dict[int, EngineHostLink] = {}
        self._changed = asyncio.Event()
        self._start = 0
        self._failure = ""
        self._failed = asyncio.Event()
        self._has_engine = False

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the hosts that are not there."""
        return tuple(n for n in range(1, self._num_hosts) if n not in self._links)

    @property
    def failure(self) -> str:
        """The host that has ended the present engine, and how; empty while it is complete."""
        return self._failure

    async def wait_until_complete(self, waits: WaitRegistry) -> None:
        """Waits for the hosts that are not there, visibly. Raises: UserError naming them."""
        deadline = time.monotonic() + self._wait_seconds
        while self.missing:
            left = deadline - time.monotonic()
            names = " and ".join(f"host {number}" for number in self.missing)
            if left <= 0:
                raise UserError(
                    f"{names} of the engine's {self._num_hosts} did not join in "
                    f"{self._wait_seconds:g} s (TRINITY_EXPLORER_HOST_WAIT_SECONDS)"
                )
            changed, reason = self._changed, f"{names} of the engine's {self._num_hosts} to join"
            waiting = waits.waiting(for_="explorer host", reason=reason, deadline_seconds=left)
            with waiting, suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()

    async def follow_engine(self, show: Callable[[str], None]) -> None:
        """Shows, until cancelled, how many hosts the engine is on; empty while there is none.

        Raises: EngineDied naming a host that is lost, also while nothing calls the engine.
        """
        joined = f"engine over {self._num_hosts} hosts: {self._num_hosts} joined"
        while True:
            is_lost = self._has_engine and bool(self.failure)
            show(joined if self._has_engine and not is_lost else "")
            if is_lost:
                raise EngineDied(self.failure)
            await self._changed.wait()

    async def start_engine(self, options: EngineOptions, start: StartEngine) -> Engine:
        """Starts an engine with workers on all hosts.

        Raises: UserError if it cannot be shared out, RuntimeError if workers elsewhere do not
        start, EngineDied if a host is lost meanwhile.
        """
        check_engine(options, self._num_hosts)
        self._start += 1
        self._failure, self._failed = "", asyncio.Event()
        store = await in_daemon_thread(lambda: _open_store(self._address))
        span = EngineSpan(
            num_hosts=self._num_hosts,
            host=0,
            address=self._address,
            meeting_address=self._address,
            meeting_port=store.port,
        )
        options = replace(options, span=span)
        if self.missing:
            self._fail(f"host {self.missing[0]} {GONE}")
        arguments = engine_arguments(options, detect_hardware())
        order = pb.WorkersStart(start=self._start, arguments_json=json.dumps(arguments))
        self._tell(pb.JoinEngineResponse(start=order))
        try:
            engine = await self.unless_failed(start(options))
        except BaseException as error:
            self.end_workers()
            if isinstance(error, EngineDied) and not self.missing:
                raise RuntimeError(self.failure) from error
            raise
        self._has_engine = True
        self._notify()
        return SpanningEngine(engine=engine, hosts=self, role=options.role, store=store)

    async def unless_failed(self, call: Awaitable[ValueT]) -> ValueT:
        """Returns what the call does; a host that is lost ends it, since collectives may hang.

        Raises: EngineDied naming the host.
        """
        calling, failed = asyncio.ensure_future(call), asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait([calling, failed], return_when=asyncio.FIRST_COMPLETED)
            if calling.done() and not isinstance(calling.exception(), UserError | None):
                await asyncio.wait([failed], timeout=BEAT_SECONDS)  # a host may know why
            if failed.done():
                raise EngineDied(self.failure)
            return calling.result()
        finally:
            failed.cancel()
            if not calling.done():
                calling.cancel()
                await asyncio.wait([calling])

    def end_workers(self) -> None:
        """Has all hosts kill their workers."""
        self._start += 1  # their end is none of the next engine
        self._has_engine = False
        self._notify()
        self._tell(pb.JoinEngineResponse(kill=True))

    async def serve(
        self, requests: AsyncIterator[pb.JoinEngineRequest]
    ) -> AsyncIterator[pb.JoinEngineResponse]:
        """Serves the stream of one host until either side is gone.

        Raises: InvalidRequest, PreconditionFailed or Forbidden if it may not take part.
        """
        first = await anext(requests, pb.JoinEngineRequest())
        link = self._admit(first.hello)
        listening = asyncio.create_task(self._listen(link, requests))
        try:
            while not link.lost.is_set():
                yield await self._next_message(link)
        finally:
            listening.cancel()
            del self._links[link.number]
            silent = time.monotonic() - link.heard_at >= LOST_SECONDS
            how = f"has not answered for {LOST_SECONDS:.0f} s" if silent else GONE
            logger.error("a host of the engine is lost", extra={"host": link.name, "reason": how})
            self._fail(f"{link.name} {how}")

    async def _next_message(self, link: EngineHostLink) -> pb.JoinEngineResponse:
        """Returns what the host is told next, a sign of life where there is nothing to tell."""
        left = link.heard_at + LOST_SECONDS - time.monotonic()
        try:
            async with asyncio.timeout(min(BEAT_SECONDS, left)):
                return await link.outgoing.get()
        except TimeoutError:
            if time.monotonic() - link.heard_at >= LOST_SECONDS:
                link.lost.set()
            return pb.JoinEngineResponse()

    async def _listen(
        self, link: EngineHostLink, requests: AsyncIterator[pb.JoinEngineRequest]
    ) -> None:
        try:
            async for message in requests:
                link.heard_at = time.monotonic()
                if message.WhichOneof("part") == "ended" and message.ended.start == self._start:
                    self._fail(f"{link.name}: {message.ended.reason}")
        finally:
            link.lost.set()
            link.send(pb.JoinEngineResponse())  # wakes the sender

    def _admit(self, hello: pb.EngineHostHello) -> EngineHostLink:
        number = hello.host
        if hello.tenant != self._tenant:
            raise Forbidden("the host is of another tenant than the engine's leader")
        if not 0 < number < self._num_hosts or hello.num_hosts != self._num_hosts:
            raise InvalidRequest(
                f"host {number} of {hello.num_hosts} wants to join an engine of "
                f"{self._num_hosts}: give all hosts the same TRINITY_EXPLORER_NUM_HOSTS, and each "
                "its own TRINITY_EXPLORER_HOST below it"
            )
        if hello.release != trinity.__version__:
            raise PreconditionFailed(
                f"host {number} runs release {hello.release}, the leader {trinity.__version__}: "
                "install the same one"
            )
        if hello.address.startswith("127.") != self._address.startswith("127."):
            raise PreconditionFailed(
                f"host {number} is at {hello.address}, and the leader at {self._address}: give "
                f"each its own address of one private network as {ENGINE_ADDRESS}"
            )
        if number in self._links:
            raise PreconditionFailed(
                f"there is a host {number} already, {self._links[number].address}: give each host "
                "a TRINITY_EXPLORER_HOST of its own"
            )
        link = self._links[number] = EngineHostLink(number, hello.address)
        logger.info("a host has joined the engine", extra={"host": link.name})
        self._notify()
        return link

    def _tell(self, message: pb.JoinEngineResponse) -> None:
        for link in self._links.values():
            link.send(message)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._failed.set()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class SpanningEngine:
    """An engine with workers on other hosts, which ends with any of them."""

    def __init__(self, *, engine: Engine, hosts: EngineHosts, role: str, store: "TCPStore") -> None:
        self._engine = engine
        self._hosts = hosts
        self._role = role
        self._store = store
        """Where the workers meet, for as long as they live."""

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt."""
        return await self._hosts.unless_failed(
            self._engine.generate(
                prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
            )
        )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores tokens."""
        scoring = self._engine.score(token_ids, num_likeliest=num_likeliest)
        return await self._hosts.unless_failed(scoring)

    async def load_weights(self, directory: Path) -> None:
        """Loads weights on all hosts, which see the directory under the same path."""
        await self._hosts.unless_failed(self._engine.load_weights(directory))

    @property
    def receivers(self) -> Receivers:
        """The workers of all hosts."""
        return self._engine.receivers

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Receives weights on all hosts."""
        return await self._hosts.unless_failed(self._engine.receive_weights(slot))

    async def check(self) -> None:
        """Raises EngineDied, naming the host if one is lost."""
        try:
            await self._hosts.unless_failed(self._engine.check())
        except EngineDied as error:
            lost = self._hosts.failure
            raise (EngineDied(f"{self._role} has lost {lost}") if lost else error) from error

    async def close(self) -> None:
        """Ends the workers of all hosts."""
        self._hosts.end_workers()
        await self._engine.close()


def _open_store(address: str) -> "TCPStore":
    """Opens the place where workers meet, on this address alone."""
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    return TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
