"""An engine that starts once and stays, for workflows that are tried on it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from services.explorer.debug.client import is_answering, socket_path
from services.explorer.engines import EngineManager, LoadedModel, LoadedStageModels, StartEngine
from services.explorer.rollout.isolated_workflows import tokenizer_value
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.process.calls import CallServer, Message, OnDelta
from trinity.workflows.generation import (
    ChatTokenizer,
    GenerationDelta,
    RatedChat,
    ReadsTemplate,
    rater_of,
    sampling_from_json,
)

CHECK_SECONDS = 1.0
MAX_LINE_BYTES = 256 * 1024**2


async def _serve_client(
    models: Sequence[LoadedModel], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answers the calls of one client until it disconnects, then cancels the open ones."""

    def write(message: Mapping[str, object]) -> None:
        if not writer.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")

    calls = CallServer(partial(_value, models), write)
    try:
        while line := await reader.readline():
            calls.accept(json.loads(line))
    except (ConnectionError, ValueError):
        pass  # disconnected, or not our protocol
    finally:
        await calls.close()
        writer.close()


async def _value(models: Sequence[LoadedModel], call: Message, send: OnDelta) -> object:
    model = models[call["model"]]
    match call["function"]:
        case "generate":
            streamed = partial(_send_delta, send) if call["streams"] else None
            generation = await model.engine.generate(
                call["prompt"],
                sampling_from_json(call["sampling"]),
                min_tokens=call["min_tokens"],
                on_delta=streamed,
            )
            return asdict(generation)
        case "score":
            scored = await model.engine.score(call["tokens"], num_likeliest=call["num_likeliest"])
            return asdict(scored)
        case "rate":
            return await rater_of(model.engine).rate(RatedChat(**call["chat"]))
        case "check":
            await model.engine.check()
            return None
        case "describe":
            return _description(model.tokenizer)
    return tokenizer_value(model.tokenizer, call)


def _send_delta(send: OnDelta, delta: GenerationDelta) -> None:
    send({"value": asdict(delta)})


def _description(tokenizer: ChatTokenizer) -> Message:
    reads = tokenizer.template_variables if isinstance(tokenizer, ReadsTemplate) else None
    return {
        "template_sha256": tokenizer.template_sha256.hex(),
        "template_variables": None if reads is None else sorted(reads),
    }


async def serve_models(models: LoadedStageModels, path: Path, stop: asyncio.Event) -> None:
    """Answers at the socket until `stop` is set or an engine dies, and removes the socket.

    Raises: EngineDied.
    """
    served = (models.policy, *models.auxiliary)
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve_client(served, reader, writer))
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
