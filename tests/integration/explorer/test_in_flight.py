"""vLLM takes weights amid requests, and each token is that of an engine with its span's weights."""

import asyncio
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.explorer.engine.in_flight import InFlightEngine, PausingEngine
from services.explorer.engine.vllm import VllmEngine
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.types import WeightsId, WeightsVersion
from tests.integration.explorer.conftest import END, MAX_MODEL_LEN, SharedEngines
from tests.integration.explorer.test_engine import PROMPT, sampling
from trinity.runtime.telemetry import metrics
from trinity.types import FloatArray
from trinity.workflows.generation import Generation, GenerationDelta, OnDelta

NUM_REQUESTS = 6
NUM_SWAPS = 5
TOKENS_BETWEEN = 6
NUM_TOKENS = MAX_MODEL_LEN - len(PROMPT) - 2
TOLERANCE = 1e-3
OTHER_MODEL = 0.1

pytestmark = pytest.mark.asyncio(loop_scope="session")


def weights_of(version: int, models: tuple[Path, Path]) -> WeightsVersion:
    """Versions take turns between two models."""
    return WeightsVersion(
        id=WeightsId(version=version, incarnation=1),
        path=models[version % 2],
        manifest_sha256=b"",
        weights_sha256=b"",
    )


class DeltaListener:
    """Counts the tokens that requests have so far."""

    def __init__(self, number: int) -> None:
        self.heard = [0] * number
        self._has_more = asyncio.Event()

    def of(self, request: int) -> OnDelta:
        """Counts a request's."""

        def on_delta(delta: GenerationDelta) -> None:
            self.heard[request] += len(delta.token_ids)
            self._has_more.set()

        return on_delta

    async def wait_until(self, num_tokens: int) -> None:
        """Returns once all have that many tokens, or one has all."""
        while min(self.heard) < num_tokens and max(self.heard) < NUM_TOKENS:
            self._has_more.clear()
            await self._has_more.wait()


async def generate_with_swaps(
    part: InFlightEngine, loader: WeightLoader, models: tuple[Path, Path]
) -> list[Generation]:
    """Answers of requests during which the weights change several times."""
    listener = DeltaListener(number=1)

    async def ask(seed: int) -> Generation:
        params = sampling(seed=seed, max_tokens=NUM_TOKENS)
        on_delta = listener.of(0) if seed == 0 else None
        return await part.generate(PROMPT, params, min_tokens=NUM_TOKENS, on_delta=on_delta)

    asking = [asyncio.create_task(ask(seed)) for seed in range(NUM_REQUESTS)]
    for version in range(1, NUM_SWAPS + 1):
        await listener.wait_until(listener.heard[0] + TOKENS_BETWEEN)
        await loader.load_published(weights_of(version, models))
    return await asyncio.gather(*asking)


def drawn_by_transformers(model: Path, response: list[int]) -> FloatArray:
    """Log-probabilities of the response; requests of a least length draw no end token."""
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits_TV = weights(torch.tensor([[*PROMPT, *response]])).logits[0, len(PROMPT) - 1 : -1]
    logits_TV[:, END] = -torch.inf
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    found: FloatArray = logprobs_TV.gather(1, torch.tensor(response)[:, None])[:, 0].numpy()
    return found


async def test_tokens_after_a_cache_of_older_weights_are_of_no_weights(
    engines: SharedEngines, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with a cache that is kept, the comparison below fails."""
    engine = cast(VllmEngine, await engines.get())
    pause = engine._engine.pause_generation

    async def keep_cache(*, mode: Literal["keep"], clear_cache: bool) -> None:
        del clear_cache
        await pause(mode=mode, clear_cache=False)

    monkeypatch.setattr(engine._engine, "pause_generation", keep_cache)
    part = InFlightEngine(engine, WeightsId(version=0, incarnation=1))
    loader = WeightLoader(part, loaded=weights_of(0, models), in_flight=[part])
    answers = await generate_with_swaps(part, loader, models)
    await engine._engine.reset_prefix_cache()
    off = [
        np.abs(drawn_by_transformers(model, answer.token_ids) - answer.logprobs)
        for answer in answers
        for model in models
    ]
    for number, answer in enumerate(answers):
        *_, last = answer.version_spans
        own = off[2 * number + last.version % 2][last.start : last.end]
        assert own.max() > 10 * TOLERANCE


async def test_each_token_has_the_log_probability_of_its_spans_weights(
    engines: SharedEngines, models: tuple[Path, Path]
) -> None:
    engine = await engines.get()
    part = InFlightEngine(cast(PausingEngine, engine), WeightsId(version=0, incarnation=1))
    loader = WeightLoader(part, loaded=weights_of(0, models), in_flight=[part])
    answers = await generate_with_swaps(part, loader, models)
    for answer in answers:
        assert len(answer.token_ids) == NUM_TOKENS
        assert [span.version for span in answer.version_spans] == list(range(NUM_SWAPS + 1))
    for number, model in enumerate(models):
        for answer in answers:
            off = np.abs(drawn_by_transformers(model, answer.token_ids) - answer.logprobs)
            for span in answer.version_spans:
                worst = off[span.start : span.end].max()
                if span.version % 2 == number:
                    assert worst < TOLERANCE
                else:  # the control: the other model is told apart
                    assert worst > OTHER_MODEL


async def test_tokens_of_calls_that_are_cancelled_in_a_pause_are_counted_as_lost(
    engines: SharedEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = cast(VllmEngine, await engines.get())
    lost: list[float] = []
    monkeypatch.setattr(metrics.LOST_TOKENS, "_record", lambda value, _: lost.append(value))
    listener = DeltaListener(NUM_REQUESTS // 2)

    async def ask(number: int) -> Generation:
        params = sampling(seed=number, max_tokens=NUM_TOKENS)
        on_delta = listener.of(number // 2) if number % 2 else None
        return await engine.generate(PROMPT, params, min_tokens=NUM_TOKENS, on_delta=on_delta)

    asking = [asyncio.create_task(ask(number)) for number in range(NUM_REQUESTS)]
    await listener.wait_until(TOKENS_BETWEEN)
    await engine.pause_requests()
    for call in asking:
        call.cancel()
    await asyncio.wait(asking)
    await engine.resume_requests()
    assert lost[1::2] == listener.heard
    assert len(lost) == NUM_REQUESTS and min(lost) > 0
    ended = await engine.generate(PROMPT, sampling(max_tokens=3), min_tokens=3)
    assert (len(ended.token_ids), ended.swaps, len(lost)) == (3, (), NUM_REQUESTS)


async def test_an_answer_that_ends_as_requests_pause_has_no_part_in_the_change(
    engines: SharedEngines, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front end reads its last tokens after the core has paused."""
    engine = cast(VllmEngine, await engines.get())
    core, pause = engine._engine.engine_core, engine._engine.pause_generation
    read, may_read = core.get_output_async, asyncio.Event()
    may_read.set()

    async def read_later() -> object:
        await may_read.wait()
        return await read()

    async def pause_first(*, mode: Literal["keep"], clear_cache: bool) -> None:
        await pause(mode=mode, clear_cache=clear_cache)
        may_read.set()

    monkeypatch.setattr(core, "get_output_async", read_later)
    monkeypatch.setattr(engine._engine, "pause_generation", pause_first)
    part = InFlightEngine(engine, WeightsId(version=0, incarnation=1))
    loader = WeightLoader(part, loaded=weights_of(0, models), in_flight=[part])
    listener, length = DeltaListener(1), 2 * TOKENS_BETWEEN
    params, on_delta = sampling(max_tokens=length), listener.of(0)
    call = part.generate(PROMPT, params, min_tokens=length, on_delta=on_delta)
    asking = asyncio.create_task(call)
    await listener.wait_until(2)
    may_read.clear()
    while listener.heard[0] + _num_unread(engine) < length:  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(0)
    await loader.load_published(weights_of(1, models))
    assert [span.version for span in (await asking).version_spans] == [0]
    await loader.load_published(weights_of(2, models))  # those that other tests begin with


def _num_unread(engine: VllmEngine) -> int:
    messages = engine._engine.engine_core.outputs_queue._queue
    return sum(len(output.new_token_ids) for one in messages for output in one.outputs)
