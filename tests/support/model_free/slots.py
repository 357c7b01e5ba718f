"""An engine of many slots, whose tokens each tell the weights, the prefix and the seed."""

import asyncio
import hashlib
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.explorer.engine.interface import EngineOptions
from tests.support.model_free.model import read_digest
from tests.support.said import said_logprob
from trinity.types import FinishReason, SamplingParams, VersionSpan
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, GenerationDelta, OnDelta, Scores

MEDIAN_TOKENS = 24
SPREAD = 1.0
"""Of the logarithm of lengths: the longest of a hundred is ten times the median."""
END_TOKEN = 0
JOURNAL_VARIABLE = "TRINITY_TEST_SLOTS_JOURNAL"
"""A file, which gets a line for each load: the directory and the digest of its weights."""
TICK_SECONDS = 0.005
SLOTS = "slots"
"""A folder: where engines are chosen by their model, one in it has this engine."""


def slot_token(digest: bytes, prefix: Sequence[int], seed: int) -> int:
    """The token after a prefix: anybody can compute it again."""
    text = f"{digest.hex()}{list(prefix)}{seed}".encode()
    return 97 + hashlib.sha256(text).digest()[0] % 26


def wrong_tokens(
    tokens: Sequence[int],
    prompt_length: int,
    spans: Sequence[VersionSpan],
    seed: int,
    digest_of: Callable[[VersionSpan], bytes],
) -> int:
    """Counts the tokens that the weights of their span would not have drawn.

    The last one says that the response has ended, by whatever weights.
    """
    return sum(
        tokens[place] != slot_token(digest_of(span), tokens[:place], seed)
        for span in spans
        for place in range(
            prompt_length + span.start, min(prompt_length + span.end, len(tokens) - 1)
        )
    )


def slot_length(prompt: Sequence[int], seed: int) -> int:
    """Log-normal, by prompt and seed."""
    drawn = random.Random(f"{list(prompt)}{seed}").lognormvariate(0.0, SPREAD)
    return max(1, round(MEDIAN_TOKENS * drawn))


@dataclass(eq=False)
class SlotRequest:
    """A request, as the core and as the front end know it."""

    prompt: list[int]
    seed: int
    length: int
    on_delta: OnDelta | None
    cache: bytes | None = None
    """The weights that its prefix was computed with; None until it is."""
    drawn: list[int] = field(default_factory=list)
    """By the core."""
    arrived: list[int] = field(default_factory=list)
    """At the front end."""
    logprobs: list[float] = field(default_factory=list)
    swaps: list[int] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class SlotEngine:
    """A `PausingEngine` without a model: one token a slot and tick, and a way to the front end."""

    def __init__(self, digest: bytes, *, slots: int = 64, tick_seconds: float = 0.0) -> None:
        self.digest = digest
        self._caches: dict[tuple[int, ...], bytes] = {}
        """By prompt, the weights that it was computed with."""
        self._slots = slots
        self._tick_seconds = tick_seconds
        self._running: list[SlotRequest] = []
        self._waiting: deque[SlotRequest] = deque()
        self._on_the_way: deque[tuple[SlotRequest, int]] = deque()
        self._is_paused = False
        self._core: asyncio.Task[None] | None = None

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Letters, and the end token."""
        length = min(slot_length(prompt_token_ids, sampling.seed), sampling.max_tokens)
        request = SlotRequest(prompt_token_ids, sampling.seed, length, on_delta)
        self._waiting.append(request)
        self._core = self._core or asyncio.create_task(self._generate_all())
        try:
            await request.done.wait()
        finally:
            self._running = [other for other in self._running if other is not request]
            self._waiting = deque(other for other in self._waiting if other is not request)
        return Generation(
            token_ids=request.arrived,
            logprobs=request.logprobs,
            finish_reason=FinishReason.STOP,
            swaps=tuple(request.swaps),
        )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Not asked for."""
        return Scores(logprobs=[-1.0] * (len(token_ids) - 1))

    async def pause_requests(self) -> None:
        """Stops the core, drops what it has computed, and lets what is on its way arrive."""
        self._is_paused = True
        self._drop_caches()
        await self._arrivals()

    async def resume_requests(self) -> None:
        """Notes the tokens so far, and goes on."""
        for request in [*self._running, *self._waiting]:
            request.swaps.append(len(request.arrived))
        self._is_paused = False

    async def load_weights(self, directory: Path) -> None:
        """Takes the digest of published weights, which is all that they are."""
        self.digest = read_digest(directory)
        if journal := os.environ.get(JOURNAL_VARIABLE):
            with open(journal, "a") as lines:  # noqa: ASYNC230  # one line of a test
                lines.write(f"{directory.name} {self.digest.hex()}\n")

    receivers = Receivers(count=1, have_gpu=False)

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Refuses: weights are files here."""
        return f"weights are files here, not {slot}"

    async def check(self) -> None:
        """It never dies alone."""

    async def close(self) -> None:
        """Ends the core."""
        if self._core is not None:
            self._core.cancel()

    def _drop_caches(self) -> None:
        self._caches.clear()
        for request in self._running:
            request.cache = None

    async def _arrivals(self) -> None:
        while self._on_the_way:
            self._deliver()
            await asyncio.sleep(0)

    async def _generate_all(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            if not self._is_paused:
                self._tick()
            self._deliver(len(self._on_the_way) // 2)

    def _tick(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            self._running.append(self._waiting.popleft())
        for request in self._running:
            if len(request.drawn) < request.length:
                prefix = [*request.prompt, *request.drawn]
                is_last = len(request.drawn) == request.length - 1
                digest = self._digest_over_cache(request)
                token = END_TOKEN if is_last else slot_token(digest, prefix, request.seed)
                request.drawn.append(token)
                request.logprobs.append(said_logprob(token, len(prefix), digest[0]))
                self._on_the_way.append((request, token))

    def _digest_over_cache(self, request: SlotRequest) -> bytes:
        """The weights, unless they follow keys and values of others: those are no weights' own."""
        if request.cache is None:
            request.cache = self._caches.setdefault(tuple(request.prompt), self.digest)
        if request.cache == self.digest:
            return self.digest
        return hashlib.sha256(request.cache + self.digest).digest()

    def _deliver(self, num_left: int = 0) -> None:
        while len(self._on_the_way) > num_left:
            request, token = self._on_the_way.popleft()
            request.arrived.append(token)
            if request.on_delta is not None:
                request.on_delta(GenerationDelta(token_ids=[token], logprobs=[-1.0]))
            if len(request.arrived) == request.length:
                self._running.remove(request)
                request.done.set()


async def start_slot_engine(options: EngineOptions) -> SlotEngine:
    """A `StartEngine`."""
    return SlotEngine(read_digest(Path(options.model_path)), tick_seconds=TICK_SECONDS)
