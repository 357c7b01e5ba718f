"""An engine over several hosts: the leader's view of the others, and their part of the work.

Each host runs an explorer service. Host 0 leads: it explores, and its engine has the first workers.
The others only hold the rest of the workers.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trinity
from services.explorer.engine.interface import Engine, EngineDied, EngineOptions, EngineSpan
from services.explorer.engine.vllm_options import (
    ENGINE_ADDRESS,
    detect_hardware,
    engine_address,
    engine_arguments,
    span_environment,
)
from services.explorer.settings import ExplorerSettings
from trinity.api.v1.hosts_pb2 import HostReport
from trinity.errors import UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.private_network import check_numbered_host
from trinity.runtime.process.child_process import module_command
from trinity.runtime.rpc.host_group import BEAT_SECONDS, GONE, GroupPlace, HostGroup, HostLink
from trinity.runtime.threads import in_daemon_thread
from trinity.types import SamplingParams
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, OnDelta, Scores

if TYPE_CHECKING:
    from torch.distributed import TCPStore

logger = logging.getLogger(__name__)

COMMAND = module_command("services.explorer.engine.vllm_headless")
ValueT = TypeVar("ValueT")
StartEngine = Callable[[EngineOptions], Awaitable[Engine]]


def group_place(settings: ExplorerSettings, tenant: str) -> GroupPlace:
    """Returns the place of this host among those of the engine."""
    return GroupPlace(
        group="engine",
        variables="EXPLORER",
        address_variable=ENGINE_ADDRESS,
        num_hosts=settings.num_hosts,
        release=trinity.__version__,
        host=settings.host,
        address=settings.engine_address,
        tenant=tenant,
    )


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


class HeadlessWorkers:
    """The processes that hold this host's part of the engine, in a separate process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._has_reported = False

    @classmethod
    async def start(
        cls, settings: ExplorerSettings, order: str, command: Sequence[str] = COMMAND
    ) -> "HeadlessWorkers":
        """Starts them as the leader says, with the number and the address of this host.

        They have no signal at this process's death, which would end the first of them alone: they
        end with standard input.
        """
        variables = span_environment(settings.engine_address, detect_hardware())
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,
        )
        assert process.stdin is not None
        arguments = json.loads(order) | {"node_rank": settings.host}
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        return cls(process)

    async def next_report(self) -> HostReport | None:
        """Waits until they have ended; says how, once."""
        if self._has_reported:
            return None
        assert self._process.stdout is not None
        last = b""
        async for line in self._process.stdout:
            last = line.strip() or last
        code = await self._process.wait()
        said = last.decode(errors="replace") if code == 1 else ""
        await self.kill()  # remaining processes of the group
        self._has_reported = True
        ended = said or f"its workers ended with exit code {code}"
        logger.error("the workers have ended", extra={"reason": ended})
        return HostReport(ended=ended)

    def send_order(self, line: bytes) -> None:
        """Refuses: the leader's engine has a separate channel to its workers."""
        raise NotImplementedError(line)

    async def kill(self) -> None:
        """Kills them, those in a collective too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class EngineHosts:
    """The hosts other than the leader. If one of them is lost, the engine over them ends.

    hosts = EngineHosts(settings, tenant="")
    async for response in hosts.group.serve(requests): ...  # for each stream of a host
    await hosts.wait_until_complete(waits)
    engine = await hosts.start_engine(options, start_vllm)  # workers on all of them
    """

    def __init__(self, settings: ExplorerSettings, tenant: str = "") -> None:
        self.group = HostGroup(group_place(settings, tenant))
        self._wait_seconds = settings.host_wait_seconds
        self._changed = asyncio.Event()
        self._start = 0
        self._failure = ""
        self._failed = asyncio.Event()
        self._has_engine = False

    @property
    def failure(self) -> str:
        """The host that has ended the present engine, and how; empty while it is complete."""
        return self._failure

    async def wait_until_complete(self, waits: WaitRegistry) -> None:
        """Waits for the hosts that are not there, visibly. Raises: UserError naming them."""
        deadline = time.monotonic() + self._wait_seconds
        while missing := self.group.missing:
            left = deadline - time.monotonic()
            names = " and ".join(f"host {number}" for number in missing)
            names = f"{names} of the engine's {self.group.num_hosts}"
            if left <= 0:
                raise UserError(
                    f"{names} did not join in {self._wait_seconds:g} s "
                    "(TRINITY_EXPLORER_HOST_WAIT_SECONDS)"
                )
            reason = f"{names} to join"
            waiting = waits.waiting(for_="explorer host", reason=reason, deadline_seconds=left)
            with waiting, suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.group.changed()

    async def follow_engine(self, show: Callable[[str], None]) -> None:
        """Shows, until cancelled, how many hosts the engine is on; empty without an engine.

        Raises: EngineDied naming a host that is lost, also while the engine is idle.
        """
        num_hosts = self.group.num_hosts
        joined = f"engine over {num_hosts} hosts: {num_hosts} joined"
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
        group = self.group
        address = group.place.address
        check_engine(options, group.num_hosts)
        self._start += 1
        self._failure, self._failed = "", asyncio.Event()
        store = await in_daemon_thread(lambda: _open_store(address))
        span = EngineSpan(
            num_hosts=group.num_hosts,
            host=0,
            address=address,
            meeting_address=address,
            meeting_port=store.port,
        )
        options = replace(options, span=span)
        if group.missing:
            self._fail(f"host {group.missing[0]} {GONE}")
        order = json.dumps(engine_arguments(options, detect_hardware()))
        for link in group.links:
            report = partial(self._on_end, link)
            link.start_part(self._start, order, on_report=report, on_loss=self._fail)
        try:
            engine = await self.unless_failed(start(options))
        except BaseException as error:
            self.end_workers()
            if isinstance(error, EngineDied) and not group.missing:
                raise RuntimeError(self.failure) from error
            raise
        self._has_engine = True
        self._notify()
        return SpanningEngine(engine=engine, hosts=self, role=options.role, store=store)

    async def unless_failed(self, call: Awaitable[ValueT]) -> ValueT:
        """Returns the call's result; a lost host cancels it, since collectives may hang.

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
        self._has_engine = False
        self._notify()
        for link in self.group.links:
            link.release()

    def _on_end(self, link: HostLink, report: HostReport) -> None:
        self._fail(f"{link.name}: {report.ended}")

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
