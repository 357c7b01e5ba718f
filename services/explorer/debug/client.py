"""The models of an engine that stays, as a workflow's process calls them."""

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from services.explorer.debug.wire import (
    MAX_LINE_BYTES,
    Message,
    delta_from_json,
    encode,
    error_from_json,
    generation_from_json,
    scores_from_json,
)
from services.explorer.engine.interface import EngineDied
from trinity.types import JsonObject, SamplingParams
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, OnDelta, Prompt, Scores
from trinity.workflows.messages import Message as ChatMessage

CONNECT_SECONDS = 5.0
GONE = "the engine is gone: start it again with `trinity debug --module inference_model`"


def is_answering(path: Path) -> bool:
    """Returns true if an engine listens at the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


class EngineConnection:
    """Requests of one process to the engine, any number of them at a time.

    async with EngineConnection(path) as connection:
        generation = await connection.request({"model": 0, "call": "generate", ...})
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count()
        self._open: dict[int, tuple[asyncio.Future[Any], OnDelta | None]] = {}
        self._failure: Exception | None = None

    async def __aenter__(self) -> "EngineConnection":
        self._reader, self._writer = await asyncio.open_unix_connection(
            str(self._path), limit=MAX_LINE_BYTES
        )
        self._task = asyncio.create_task(self._receive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def request(self, message: Message, on_delta: OnDelta | None = None) -> Any:
        """Returns the result; a cancelled call stops the engine's work on it.

        Raises: EngineDied, and the errors of the call.
        """
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[number] = future, on_delta
        self._writer.write(encode({"id": number, **message}))
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionError):
                self._writer.write(encode({"id": number, "call": "cancel"}))
            raise
        finally:
            self._open.pop(number, None)

    async def _receive(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except ConnectionError:
            pass
        self._failure = EngineDied(GONE)
        for future, _ in self._open.values():
            if not future.done():
                future.set_exception(self._failure)

    def _take(self, answer: Message) -> None:
        future, on_delta = self._open.get(answer["id"], (None, None))
        if future is None or future.done():
            return
        if "delta" in answer:
            if on_delta is not None:
                on_delta(delta_from_json(answer["delta"]))
        elif "ok" in answer:
            future.set_result(answer["ok"])
        else:
            future.set_exception(error_from_json(answer))


class RemoteEngine:
    """An `Engine` in another process; its weights stay as they are."""

    def __init__(self, connection: EngineConnection, model: int) -> None:
        self._connection = connection
        self._model = model

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt."""
        request = {
            "model": self._model,
            "call": "generate",
            "prompt": prompt_token_ids,
            "sampling": asdict(sampling),
            "min_tokens": min_tokens,
            "streams": on_delta is not None,
        }
        return generation_from_json(await self._connection.request(request, on_delta))

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores given tokens."""
        request = {
            "model": self._model,
            "call": "score",
            "tokens": token_ids,
            "num_likeliest": num_likeliest,
        }
        return scores_from_json(await self._connection.request(request))

    async def check(self) -> None:
        """Raises EngineDied if the engine is gone."""
        await self._connection.request({"model": self._model, "call": "check"})

    async def load_weights(self, directory: Path) -> None:
        """Refuses: others may be using the engine."""
        raise NotImplementedError(f"{directory}: the engine keeps its weights")

    @property
    def receivers(self) -> Receivers:
        """No process receives weights."""
        return Receivers(count=0, have_gpu=False)

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Refuses, as `load_weights` does."""
        raise NotImplementedError(f"{slot}: the engine keeps its weights")

    async def close(self) -> None:
        """Does not close the engine, which stays."""


class DebugTokenizer:
    """A `ChatTokenizer` in the engine's process; its calls wait for the answer.

    It has a separate connection and may be called from any thread. The process of the workflow
    saves the seconds that the tokenizer's library takes to import.
    """

    def __init__(self, path: Path, model: int) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")
        described = self._request({"call": "describe"})[model]
        self.template_sha256 = bytes.fromhex(described["template_sha256"])
        if described["template_variables"] is not None:
            self.template_variables = frozenset(described["template_variables"])

    def encode_chat(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject] = ()
    ) -> Prompt:
        """Applies the chat template."""
        request = {"call": "encode_chat", "messages": list(messages), "tools": list(tools)}
        return Prompt.from_json(self._request(request))

    def encode(self, text: str) -> Prompt:
        """Encodes plain text."""
        return Prompt.from_json(self._request({"call": "encode", "text": text}))

    def decode(self, token_ids: list[int]) -> str:
        """Decodes tokens to text without special tokens."""
        return str(self._request({"call": "decode", "tokens": token_ids}))

    def close(self) -> None:
        """Closes the connection."""
        self._answers.close()
        self._socket.close()

    def _request(self, message: Message) -> Any:
        with self._lock:
            self._socket.sendall(encode({"id": 0, "model": self._model, **message}))
            line = self._answers.readline()
        if not line:
            raise EngineDied(GONE)
        answer = json.loads(line)
        if "ok" not in answer:
            raise error_from_json(answer)
        return answer["ok"]
