"""A served model in a process of its own, as its clients see it."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.integration.explorer.served_process import SERVED_KEY
from trinity.types import JsonObject

MODULE = "tests.integration.explorer.served_process"
SECONDS = 120.0
QUICK_SECONDS = 120.0
"""For an answer of a few milliseconds, on a machine that does much else."""
QUESTION: JsonObject = {"messages": [{"role": "user", "content": "1+1="}], "max_tokens": 4}
AUTHORIZED = {"Authorization": f"Bearer {SERVED_KEY}", "Content-Type": "application/json"}


@dataclass
class Victim:
    """A served model in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def ask(
        self,
        body: bytes | None = None,
        *,
        headers: dict[str, str] = AUTHORIZED,
        seconds: float = QUICK_SECONDS,
    ) -> tuple[int, JsonObject]:
        """Status and body of the answer to a chat request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(connection):
            content = json.dumps(QUESTION).encode() if body is None else body
            connection.request("POST", "/v1/chat/completions", content, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def send(self, content: bytes) -> bytes:
        """What comes back before the connection is closed."""
        with self.connect() as connection:
            connection.sendall(content)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    @property
    def num_files(self) -> int:
        """Files that its process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def check_alive(self) -> None:
        status, _ = self.ask()
        assert (status, self.process.poll()) == (200, None), self.log.read_text()


@contextlib.contextmanager
def victim(log: Path, *arguments: str) -> Iterator[Victim]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, log.read_text()
            yield Victim(process, urlsplit(address).port or 0, log)
        finally:
            process.kill()
