"""A running buffer, as a process of its own."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.buffer.calls import CALL_SECONDS
from trinity.run.local.addresses import free_port
from trinity.runtime.rpc.channel import open_channel

SERVICE = "trinity.api.v1.BufferService"


@dataclass(slots=True)
class BufferProcess:
    """`python -m services.buffer` on a port of its own; as a context it is killed at the end."""

    dsn: str
    nats_url: str
    log_file: Path
    extra: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None
    program: tuple[str, ...] = ("services.buffer",)

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
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", *self.program],
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

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
