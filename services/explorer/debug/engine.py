"""An engine that starts once and stays, for workflows that are tried on it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from services.explorer.debug.client import is_answering
from services.explorer.debug.wire import (
    MAX_LINE_BYTES,
    Message,
    encode,
    error_to_json,
    generation_to_json,
    sampling_from_json,
    socket_path,
)
from services.explorer.engines import EngineManager, LoadedModel, LoadedStageModels, StartEngine
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.runtime.presence import WaitRegistry
from trinity.workflows.generation import ChatTokenizer, GenerationDelta, ReadsTemplate

CHECK_SECONDS = 1.0


class _Connection:
    """Answers the requests of one client, any number of them at a time."""

    def __init__(self, models: Sequence[LoadedModel], writer: asyncio.StreamWriter) -> None:
        self._models = models
        self._writer = writer
        self._open: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Reads requests until the client disconnects, then cancels its open calls."""
        try:
            while line := await reader.readline():
                self._accept(json.loads(line))
        except (ConnectionError, ValueError):
            pass  # disconnected, or not our protocol
        finally:
            left = list(self._open.values())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._writer.close()

    def _accept(self, request: Message) -> None:
        number = int(request["id"])
        if request["call"] == "cancel":
            if number in self._open:
                self._open[number].cancel()
            return
        task = asyncio.create_task(self._answer(number, request))
        self._open[number] = task
        task.add_done_callback(lambda _: self._open.pop(number, None))

    async def _answer(self, number: int, request: Message) -> None:
        try:
            answer: Message = {"ok": await self._result(number, request)}
        except Exception as error:  # the edge of a request: the client raises it
            answer = error_to_json(error)
        self._send({"id": number, **answer})
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def _result(self, number: int, request: Message) -> object:
        model = self._models[request["model"]]
        engine, tokenizer = model.engine, model.tokenizer
        match request["call"]:
            case "generate":
                generation = await engine.generate(
                    request["prompt"],
                    sampling_from_json(request["sampling"]),
                    min_tokens=request["min_tokens"],
                    on_delta=self._deltas(number) if request["streams"] else None,
                )
                return generation_to_json(generation)
            case "score":
                return asdict(
                    await engine.score(request["tokens"], num_likeliest=request["num_likeliest"])
                )
            case "check":
                await engine.check()
                return None
            case "encode_chat":
                return asdict(tokenizer.encode_chat(request["messages"], request["tools"]))
            case "encode":
                return asdict(tokenizer.encode(request["text"]))
            case "decode":
                return tokenizer.decode(request["tokens"])
            case "describe":
                return [_description(each.tokenizer) for each in self._models]
            case unknown:
                raise UserError(f"the engine knows no call {unknown!r}: stop it and start it again")

    def _deltas(self, number: int) -> "_DeltaSender":
        return _DeltaSender(self, number)

    def _send(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def send_delta(self, number: int, delta: GenerationDelta) -> None:
        """Sends the next tokens of an answer."""
        self._send({"id": number, "delta": asdict(delta)})


def _description(tokenizer: ChatTokenizer) -> Message:
    reads = tokenizer.template_variables if isinstance(tokenizer, ReadsTemplate) else None
    return {
        "template_sha256": tokenizer.template_sha256.hex(),
        "template_variables": None if reads is None else sorted(reads),
    }


class _DeltaSender:
    """Sends the deltas of one answer."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def __call__(self, delta: GenerationDelta) -> None:
        self._connection.send_delta(self._number, delta)


async def serve_models(models: LoadedStageModels, path: Path, stop: asyncio.Event) -> None:
    """Answers at the socket until `stop` is set or an engine dies, and removes the socket.

    Raises: EngineDied.
    """
    served = (models.policy, *models.auxiliary)

    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(served, writer).serve(reader))
        connections.add(task)
        task.add_done_callback(connections.discard)

    _remove(path)  # left by a killed engine
    server = await asyncio.start_unix_server(connected, path=path, limit=MAX_LINE_BYTES)
    try:
        while not stop.is_set():
            for model in served:
                await model.engine.check()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await stop.wait()
    finally:
        server.close()
        _remove(path)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def run_engine(plan: StagePlan, command: str, start_engine: StartEngine) -> None:
    """Starts the models of a stage, says how to use them, and stays until it is interrupted.

    Raises: UserError when a model cannot be run, or when its engine is up already.
    """
    path = socket_path(plan)
    if await asyncio.to_thread(is_answering, path):
        raise UserError(
            f"an engine for {plan.model_path} is up already: use it, or end it with Ctrl+C in its "
            "terminal"
        )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engines = EngineManager(
        start=start_engine, waits=WaitRegistry(owner="debug", on_change=lambda: None)
    )
    begun = time.monotonic()
    _say(f"loading {', '.join([plan.model_path, *(m.model_path for m in plan.auxiliary_models)])}")
    try:
        models = await engines.ensure(plan)
        _say(f"the engine is up after {time.monotonic() - begun:.1f} s (process {os.getpid()})")
        _say(f"in another terminal: {command}")
        _say("Ctrl+C ends it")
        await serve_models(models, path, stop)
    finally:
        await engines.close_engines()
    _say("the engine has stopped")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
