"""Many malformed requests to an OpenAI-compatible address, and what became of them."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator

from tests.integration.hostile.http_requests import HttpFuzzer, HttpRequest

IN_FLIGHT = 16
SECONDS = 20.0
WAIT_SECONDS = 0.2
"""After so long without an answer the rest of a request that has no end is not sent."""
MOST_BYTES = 2**22
ENDED = 0
"""In the place of a status: the connection was closed without an answer."""
DOCUMENTED = {ENDED, 200, 400, 401, 403, 404, 405, 408, 410, 411, 413, 414, 415, 417, 422, 429, 431}


class HttpAttack:
    """Requests of a seed to a server of this machine, counted by the statuses of their answers.

    attack = HttpAttack(port, HttpFuzzer(1, prefix="", key="secret"))
    await attack.go_on(1_000)
    assert not attack.wrong
    """

    def __init__(self, port: int, fuzzer: HttpFuzzer) -> None:
        self._port = port
        self._fuzzer = fuzzer
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []

    async def go_on(self, number: int) -> None:
        """Makes as many requests more, some at a time."""
        requests = (self._fuzzer.request() for _ in itertools.repeat(None, number))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(self._work(requests))

    async def _work(self, requests: Iterator[HttpRequest]) -> None:
        for request in requests:
            answer = await self.ask(request)
            status = status_of(answer)
            self.statuses[status] += 1
            if status not in DOCUMENTED:
                self.wrong.append(f"{request.first_line}: {answer[-300:]!r}")

    async def ask(self, request: HttpRequest) -> bytes:
        """Sends a request and returns the whole answer, or what came of it within a time."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        answer = b""
        try:
            with contextlib.suppress(ConnectionError):  # refused before all of it was sent
                async with asyncio.timeout(SECONDS if request.is_whole else WAIT_SECONDS):
                    writer.write(request.content)
                    await writer.drain()
                    while len(answer) < MOST_BYTES and (part := await reader.read(65_536)):
                        answer += part
        except TimeoutError:
            if request.is_whole:
                raise
        finally:
            writer.close()
        return answer


def status_of(answer: bytes) -> int:
    """Returns the status of the last answer that is not an interim one."""
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]
    return next((status for status in reversed(statuses) if status >= 200), ENDED)
