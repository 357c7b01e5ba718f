"""Child processes that follow orders: a line of JSON in, a line of JSON out."""

import asyncio
import inspect
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LINE_BYTES = 16 * 1024 * 1024


class BenchmarkWorker:
    """One such process, seen from the benchmark.

    async with started("benchmarks.buffer.explorer", address=address) as explorer:
        seconds = await explorer.call("publish", count=256)
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    def send_signal(self, number: signal.Signals) -> None:
        """To stop it for a while."""
        self._process.send_signal(number)

    async def call(self, name: str, **arguments: object) -> object:
        """Calls the method of this name in the child and returns its answer.

        Raises: RuntimeError when it fails.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        async with self._turn:
            line = json.dumps({"name": name, "arguments": arguments})
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()
            answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that was to {name} has ended")
        return json.loads(answer)["value"]

    async def number(self, name: str, **arguments: object) -> float:
        """The same of a method that answers a number."""
        value = await self.call(name, **arguments)
        assert isinstance(value, float | int)
        return float(value)

    async def numbers(self, name: str, **arguments: object) -> list[float]:
        """The same of a method that answers numbers."""
        value = await self.call(name, **arguments)
        assert isinstance(value, list)
        return [float(number) for number in value]


@asynccontextmanager
async def started(
    module: str, *, python: str = sys.executable, **arguments: object
) -> AsyncIterator[BenchmarkWorker]:
    """`python -m MODULE ARGUMENTS`, which serves its methods until its input ends."""
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", module, json.dumps(arguments)),
        stdin=PIPE,
        stdout=PIPE,
        limit=LINE_BYTES,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield BenchmarkWorker(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def serve(methods: object) -> None:
    """Serves calls in the child process; an exception of a method ends the process."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        value = getattr(methods, asked["name"])(**asked["arguments"])
        if inspect.isawaitable(value):
            value = await value
        answers.write(json.dumps({"value": value}) + "\n")
        answers.flush()
