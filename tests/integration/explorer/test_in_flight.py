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
from trinity.types import FloatArray
from trinity.workflows.generation import Generation, GenerationDelta

NUM_REQUESTS = 6
NUM_SWAPS = 5
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


async def generate_with_swaps(
    part: InFlightEngine, loader: WeightLoader, models: tuple[Path, Path]
) -> list[Generation]:
    """Answers of requests during which the weights change several times."""
    has_more = asyncio.Event()

    def on_delta(_: GenerationDelta) -> None:
        has_more.set()

    async def ask(seed: int) -> Generation:
        params = sampling(seed=seed, max_tokens=NUM_TOKENS)
        listener = on_delta if seed == 0 else None
        return await part.generate(PROMPT, params, min_tokens=NUM_TOKENS, on_delta=listener)

    asking = [asyncio.create_task(ask(seed)) for seed in range(NUM_REQUESTS)]
    for version in range(1, NUM_SWAPS + 1):
        for _ in range(NUM_TOKENS // (NUM_SWAPS + 2)):
            has_more.clear()
            await has_more.wait()
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
