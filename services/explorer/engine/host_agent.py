"""A host that does not lead an engine: it runs the workers that the leader asks for."""

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import grpc

import trinity
from services.explorer.engine.hosts import BEAT_SECONDS, LOST_SECONDS, MAX_QUEUED
from services.explorer.engine.vllm_options import detect_hardware, span_environment
from services.explorer.settings import ExplorerSettings
from trinity.api.v1 import explorer_pb2 as pb
from trinity.api.v1.explorer_pb2_grpc import ExplorerServiceStub
from trinity.runtime.process.child_process import module_command

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 1.0
COMMAND = module_command("services.explorer.engine.vllm_headless")


@dataclass(slots=True)
class HeadlessWorkers:
    """The processes that hold this host's part of the engine, in a group of their own."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start_workers(
        cls, order: pb.WorkersStart, settings: ExplorerSettings, command: Sequence[str] = COMMAND
    ) -> "HeadlessWorkers":
        """Starts them as the leader says, with the number and the address of this host."""
        variables = span_environment(settings.engine_address, detect_hardware())
        arguments = json.loads(order.arguments_json) | {"node_rank": settings.host}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        return cls(process)

    async def end_reason(self) -> str:
        """Waits until they have ended; returns how."""
        assert self.process.stdout is not None
        last = b""
        async for line in self.process.stdout:
            last = line.strip() or last
        code = await self.process.wait()
        said = last.decode(errors="replace") if code == 1 else ""
        return said or f"its workers ended with exit code {code}"

    async def kill(self) -> None:
        """Kills them, those in a collective too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class EngineHostAgent:
    """Joins the engine's leader again and again; no worker outlives the stream.

    agent = EngineHostAgent(settings=settings, tenant="", stub=stub, on_joined=set_ready)
    await agent.serve_leader()   # until cancelled
    """

    def __init__(
        self,
        *,
        settings: ExplorerSettings,
        tenant: str,
        stub: ExplorerServiceStub,
        on_joined: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._tenant = tenant
        self._stub = stub
        self._on_joined = on_joined
        """Is told why this host is not with the leader; empty if it is."""
        self._workers: HeadlessWorkers | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._outgoing: asyncio.Queue[pb.JoinEngineRequest] = asyncio.Queue(MAX_QUEUED)

    async def serve_leader(self) -> None:
        """Obeys the leader until cancelled; then kills the workers."""
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
        call = self._stub.JoinEngine(self._requests(self._outgoing))
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
            await self._kill_workers()

    async def _requests(
        self, outgoing: asyncio.Queue[pb.JoinEngineRequest]
    ) -> AsyncIterator[pb.JoinEngineRequest]:
        hello = pb.EngineHostHello(
            host=self._settings.host,
            num_hosts=self._settings.num_hosts,
            release=trinity.__version__,
            address=self._settings.engine_address,
            tenant=self._tenant,
        )
        yield pb.JoinEngineRequest(hello=hello)
        while True:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    message = await outgoing.get()
            except TimeoutError:
                message = pb.JoinEngineRequest()
            yield message  # outside of the timeout, which would cancel a sender that is slow

    async def _obey(self, message: pb.JoinEngineResponse) -> None:
        match message.WhichOneof("part"):
            case "start":
                await self._kill_workers()
                logger.info("starting workers of the engine")
                self._workers = await HeadlessWorkers.start_workers(message.start, self._settings)
                self._reporting = asyncio.create_task(
                    self._report_end(self._workers, message.start.start)
                )
            case "kill":
                await self._kill_workers()

    async def _report_end(self, workers: HeadlessWorkers, start: int) -> None:
        reason = await workers.end_reason()
        await workers.kill()  # what is left of the group
        logger.error("the workers have ended", extra={"reason": reason})
        ended = pb.WorkersEnded(start=start, reason=reason)
        await self._outgoing.put(pb.JoinEngineRequest(ended=ended))

    async def _kill_workers(self) -> None:
        workers, self._workers = self._workers, None
        if self._reporting is not None:
            self._reporting.cancel()
        if workers is not None:
            await workers.kill()
