"""An engine whose tokens are a hash of its weights, the prompt and the seed."""

import asyncio
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.explorer.engine.interface import DeviceRequest, EngineOptions
from tests.support.model_free.device import SimulatedDevice, device_folder
from tests.support.model_free.model import TENSOR, as_digest, read_digest
from tests.support.said import said_logprobs
from trinity.data.conversations import text_of_content
from trinity.data.images import images_of, part_of
from trinity.errors import TransferFailed
from trinity.runtime.device_lock import DeviceLock, Holder
from trinity.runtime.threads import in_daemon_thread
from trinity.types import FinishReason, JsonObject, SamplingParams
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, GenerationDelta, OnDelta, Prompt, Scores
from trinity.workflows.messages import Message

RUN_SECONDS_VARIABLE = "TRINITY_TEST_RUN_SECONDS"
"""How long a generation takes."""
SPREAD_VARIABLE = "TRINITY_TEST_SPREADS_RUNS"
"""Set to 1, generations take up to twice as long or less, each its own time, as a model's do."""
HOLD_VARIABLE = "TRINITY_TEST_HOLD"
"""A file: while it is there, no generation ends."""
LOG_VARIABLE = "TRINITY_TEST_ENGINE_LOG"
"""A file that takes a line for each answer: the directory of the weights, prompt, tokens and
log-probabilities."""
NUM_TOKENS = 4
END_TOKEN = 0


class HashEngine:
    """An `Engine` without a model."""

    def __init__(self, options: EngineOptions) -> None:
        self._digest = read_digest(Path(options.model_path))
        self._weights = ""
        self._num_generating = 0
        self._swaps: list[list[int]] = []
        """Of each request, a 0 for each change of weights: its tokens come all at once, at its end.
        """
        self._hold = os.environ.get(HOLD_VARIABLE, "")
        folder = device_folder(options.model_path)
        self._device = SimulatedDevice(folder, "engine") if options.sleeps else None
        self._lock: DeviceLock | None = None
        self._is_awake = asyncio.Event()
        self._wake_device()

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Letters, and the end token."""
        self._num_generating += 1
        swaps: list[int] = []
        self._swaps.append(swaps)
        try:
            hashed = await self._generate(prompt_token_ids, sampling.seed, swaps)
        finally:
            self._swaps = [other for other in self._swaps if other is not swaps]
            self._num_generating -= 1
        letters = [97 + byte % 26 for byte in hashed[: NUM_TOKENS - 1]]
        tokens = [*letters, END_TOKEN][: max(sampling.max_tokens, 1)]
        reason = FinishReason.STOP if tokens[-1] == END_TOKEN else FinishReason.LENGTH
        logprobs = said_logprobs(prompt_token_ids, tokens, self._digest[0])
        if on_delta is not None:
            for token, logprob in zip(tokens, logprobs, strict=True):
                on_delta(GenerationDelta(token_ids=[token], logprobs=[logprob]))
        if log := os.environ.get(LOG_VARIABLE):
            line = json.dumps([self._weights, prompt_token_ids, tokens, logprobs])
            with open(log, "a") as file:  # noqa: ASYNC230 (of a test)
                file.write(line + "\n")
        return Generation(
            token_ids=tokens, logprobs=logprobs, finish_reason=reason, swaps=tuple(swaps)
        )

    async def pause_requests(self) -> None:
        """No token is on its way."""

    async def resume_requests(self) -> None:
        """They go on with the weights of now."""
        for swaps in self._swaps:
            swaps.append(0)

    async def _generate(
        self, prompt: Sequence[int], seed: int | None, swaps: Sequence[int]
    ) -> bytes:
        """Takes its time with one set of weights, and waits where the engine sleeps meanwhile."""
        await self._awake()
        digest = self._digest
        hashed = self._hash_of(digest, prompt, seed)
        spreads = os.environ.get(SPREAD_VARIABLE) == "1"
        seconds = float(os.environ.get(RUN_SECONDS_VARIABLE, "0"))
        await asyncio.sleep(seconds * (hashed[-1] / 128 if spreads else 1.0))
        while self._hold and os.path.exists(self._hold):  # noqa: ASYNC110, ASYNC240 (of a test)
            await asyncio.sleep(0.05)
        await self._awake()
        assert swaps or digest == self._digest, "weights changed under a run"
        return self._hash_of(self._digest, prompt, seed)

    async def _awake(self) -> None:
        while not self._is_awake.is_set():
            await self._is_awake.wait()
        if self._device is not None:
            self._device.check_awake()

    @staticmethod
    def _hash_of(digest: bytes, prompt: Sequence[int], seed: int | None) -> bytes:
        return hashlib.sha256(f"{digest.hex()}{list(prompt)}{seed}".encode()).digest()

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Follows from the weights and the tokens before."""
        seen = [f"{self._digest.hex()}{token_ids[:end]}" for end in range(1, len(token_ids))]
        return Scores(logprobs=[-hashlib.sha256(one.encode()).digest()[0] / 64 for one in seen])

    async def load_weights(self, directory: Path) -> None:
        """Take the digest of published weights."""
        self._digest = read_digest(directory)
        self._weights = directory.name

    @property
    def receivers(self) -> Receivers:
        """Weights are files here."""
        return Receivers(count=1, have_gpu=False)

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Take the digest that a trainer sends."""
        digest, failure = await in_daemon_thread(lambda: _received(slot))
        if not failure:
            self._digest = digest
        return failure

    async def sleep(self, level: int, *, keeps_requests: bool = False) -> None:
        """Leave the device; after level 2 it has no weights."""
        assert keeps_requests or not self._num_generating, "runs would not go on"
        self._is_awake.clear()
        if self._device is not None and self._num_generating:
            self._device.note("kept")
        if level > 1:
            self._digest = b""
        if self._device is not None:
            self._device.sleep()
        if self._lock is not None:
            self._lock.release()

    async def wake_up(self, device: DeviceRequest) -> bool:
        """Take the lock, as a worker of vLLM does, then the device."""
        self._lock = self._lock or DeviceLock(device.path)
        holder = Holder.of_this_process("engine", device.reason)
        lock = self._lock
        if not await in_daemon_thread(lambda: lock.take(holder, device.seconds)):
            return False
        self._wake_device()
        return True

    def _wake_device(self) -> None:
        if self._device is not None:
            self._device.wake()
        self._is_awake.set()

    async def check(self) -> None:
        """It never dies alone."""

    async def close(self) -> None:
        """Nothing to free."""


def _received(slot: ReceiverSlot) -> tuple[bytes, str]:
    from trinity.weights.receiving import WeightsReceiver

    try:
        arrival = WeightsReceiver(slot, index=0, device="cpu")
    except TransferFailed as error:
        return b"", str(error)
    digest = as_digest(dict(arrival.tensors())[TENSOR].tolist())
    return digest, arrival.finish()


def _rendered(message: Message) -> str:
    content = text_of_content(message["content"])
    if message["role"] == "assistant":
        return content + chr(END_TOKEN)
    return f"{message['role']}:{content}\n"


async def start_hash_engine(options: EngineOptions) -> HashEngine:
    """A `StartEngine`."""
    return HashEngine(options)


class CharacterTokenizer:
    """One token a character; `end_token_ids` as a model's tokenizer has them."""

    vision = None
    template_sha256 = hashlib.sha256(b"template").digest()
    end_token_ids = (END_TOKEN,)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Role and content of each message; answers as they were sampled, with their end token."""
        prompt = self.encode("".join(map(_rendered, messages)))
        return replace(prompt, images=tuple(map(part_of, images_of(messages))))

    def encode(self, text: str) -> Prompt:
        """Its bytes."""
        return Prompt(text=text, token_ids=list(text.encode()))

    def decode(self, token_ids: list[int]) -> str:
        """Text without the end token."""
        return bytes(token for token in token_ids if token != END_TOKEN).decode()
