"""The models of an engine that stays, as a workflow's process calls them at its socket."""

import asyncio
import hashlib
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from services.explorer.engine.interface import EngineDied, FixedWeights
from services.explorer.engines import StageModel, stage_models
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.runtime.process.calls import Message, OpenCalls
from trinity.runtime.process.calls import OnDelta as CallDelta
from trinity.types import JsonObject, SamplingParams
from trinity.workflows.generation import (
    Generation,
    GenerationDelta,
    OnDelta,
    Prompt,
    RatedChat,
    Scores,
)
from trinity.workflows.messages import Message as ChatMessage

CONNECT_SECONDS = 5.0
MAX_SOCKET_PATH_BYTES = 107
GONE = "the engine is gone: start it again with `trinity debug --module inference_model`"


def socket_folder() -> Path:
    """Returns this user's folder of sockets; it is made if it is missing.

    Raises: UserError when another user has made it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"trinity-debug-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_private = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    if not is_private or folder.is_symlink():
        raise UserError(
            f"{folder} must be yours and closed to others (mode 0700), as one who can write there "
            "answers in place of the engine: remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
    return folder


def socket_path(plan: StagePlan) -> Path:
    """Returns the socket of the engine that serves a stage's models.

    Raises: UserError when its path is longer than the system allows.
    """
    text = json.dumps([_identity(model) for model in stage_models(plan)]).encode()
    path = socket_folder() / f"{hashlib.sha256(text).hexdigest()[:16]}.sock"
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH_BYTES:
        raise UserError(
            f"the path of a socket may have {MAX_SOCKET_PATH_BYTES} bytes, {path} has {length}: "
            "set XDG_RUNTIME_DIR to a folder of yours with a shorter path"
        )
    return path


def _identity(model: StageModel) -> list[object]:
    """Returns what two files must agree on to use the same engine."""
    return [model.name, model.path, model.max_len, model.chat_template, model.template_kwargs]


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
    """Calls of this process to the engine, any number of them at a time, from any thread.

    connection = EngineConnection(path)
    prompt = connection.calls.call("encode", model=0, text="a b").result()
    connection.close()
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lock = threading.Lock()
        self.calls = OpenCalls(self._write, EngineDied)
        self._thread = threading.Thread(target=self._read, name="engine", daemon=True)
        self._thread.start()

    def _write(self, message: Mapping[str, object]) -> None:
        try:
            with self._lock:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise EngineDied(GONE) from error

    def _read(self) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self.calls.receive(json.loads(line))
        self.calls.fail(EngineDied(GONE))

    def close(self) -> None:
        """Closes the connection, which ends the engine's work on open calls."""
        with suppress(OSError):  # the engine may be gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


class RemoteEngine(FixedWeights):
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
        """Continues the prompt; a cancelled call stops the engine's work on it."""
        loop = asyncio.get_running_loop()

        def pass_on(message: Message) -> None:
            assert on_delta is not None
            loop.call_soon_threadsafe(on_delta, GenerationDelta.from_json(message["value"]))

        made = await self._call(
            "generate",
            pass_on if on_delta is not None else None,
            prompt=prompt_token_ids,
            sampling=asdict(sampling),
            min_tokens=min_tokens,
        )
        return Generation.from_json(made)

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores given tokens."""
        scored = await self._call("score", tokens=token_ids, num_likeliest=num_likeliest)
        return Scores.from_json(scored)

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        """Scores a chat."""
        return cast(list[list[float]], await self._call("rate", chat=asdict(chat)))

    async def check(self) -> None:
        """Raises EngineDied if the engine is gone."""
        await self._call("check")

    async def _call(self, function: str, on_delta: CallDelta | None = None, **values: Any) -> Any:
        reply = self._connection.calls.call(function, on_delta, model=self._model, **values)
        return await asyncio.wrap_future(reply)

    async def close(self) -> None:
        """Does not close the engine, which stays."""


class DebugTokenizer:
    """A `ChatTokenizer` in the engine's process; its calls wait for the answer.

    The process of the workflow saves the seconds that the tokenizer's library takes to import.
    """

    def __init__(self, connection: EngineConnection, model: int) -> None:
        self._connection = connection
        self._model = model
        described = self._call("describe")
        self.template_sha256 = bytes.fromhex(described["template_sha256"])
        if described["template_variables"] is not None:
            self.template_variables = frozenset(described["template_variables"])

    def encode_chat(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject] = ()
    ) -> Prompt:
        """Applies the chat template."""
        made = self._call("encode_chat", messages=list(messages), tools=list(tools))
        return Prompt.from_json(made)

    def encode(self, text: str) -> Prompt:
        """Encodes plain text."""
        return Prompt.from_json(self._call("encode", text=text))

    def decode(self, token_ids: list[int]) -> str:
        """Decodes tokens to text without special tokens."""
        return str(self._call("decode", tokens=token_ids))

    def _call(self, function: str, **values: Any) -> Any:
        return self._connection.calls.call(function, None, model=self._model, **values).result()
