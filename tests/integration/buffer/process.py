"""A running buffer, as a process of its own, which is forked from one that has imported it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, Self

from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.buffer.calls import CALL_SECONDS
from tests.support.warm import WarmProcess, start_warm
from trinity.run.local.addresses import free_port
from trinity.runtime.rpc.channel import open_channel

SERVICE = "trinity.api.v1.BufferService"


class Begin(Protocol):
    """Begins a program."""

    def __call__(
        self, module: str, *arguments: str, env: Mapping[str, str], log: IO[bytes]
    ) -> "WarmProcess | subprocess.Popen[bytes]": ...


def fork(module: str, *arguments: str, env: Mapping[str, str], log: IO[bytes]) -> WarmProcess:
    """From a process that has imported it."""
    return start_warm(module, *arguments, env=env, stdout=log, stderr=log)


def start_anew(
    module: str, *arguments: str, env: Mapping[str, str], log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """As in use."""
    argv = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(argv, env=env, stdout=log, stderr=log)


@dataclass(slots=True)
class BufferProcess:
    """`python -m services.buffer` on a port of its own; as a context it is killed at the end."""

    dsn: str
    nats_url: str
    log_file: Path
    extra: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: "WarmProcess | subprocess.Popen[bytes] | None" = None
    program: tuple[str, ...] = ("services.buffer",)
    begin: Begin = fork
    """`start_anew` for one that is measured."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self) -> None:
        settings = {
            "TRINITY_BUFFER_LISTEN": self.address,
            "TRINITY_BUFFER_POSTGRES_DSN": self.dsn,
            "TRINITY_BUFFER_NATS_URL": self.nats_url,
            "TRINITY_BUFFER_MIGRATE_ON_START": "true",
            **self.extra,
        }
        with self.log_file.open("ab") as log:
            self.process = self.begin(*self.program, env={**os.environ, **settings}, log=log)

    async def start(self) -> None:
        self.spawn()
        await self.wait_state(health_pb2.HealthCheckResponse.SERVING)

    async def wait_state(self, wanted: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        """Follow the service's health until it is as wanted."""
        async with open_channel(self.address) as channel, asyncio.timeout(CALL_SECONDS):
            await channel.channel_ready()
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            async for answer in stub.Watch(request):
                if answer.status == wanted:
                    return

    async def state(self, service: str) -> "health_pb2.HealthCheckResponse.ServingStatus":
        """How a service is now; the empty name stands for the process."""
        async with open_channel(self.address) as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(request, timeout=CALL_SECONDS, wait_for_ready=True)
            return answer.status

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; answers the exit code."""
        assert self.process is not None
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait)
