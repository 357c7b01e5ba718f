"""What every rollout engine must do, shown on vLLM with an untrained model."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.addition.model import save_model
from services.explorer.engine import Engine, EngineOptions
from services.explorer.vllm_engine import VllmEngine, start_vllm
from trinity.config.explorer import RolloutModelConfig
from trinity.types import FinishReason, SamplingParams
from trinity.workflows.generation import Generation

PROMPT = [3, 21, 22, 15, 23, 24, 33, 1, 4]
END = 1
MAX_MODEL_LEN = 96
TOLERANCE = 1e-4

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two sets of weights of one architecture."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        save_model(folder / str(seed), seed)
    return folder / "0", folder / "1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(models: tuple[Path, Path]) -> AsyncIterator[Engine]:
    """One engine for all these tests: it takes ten seconds to start."""
    options = EngineOptions(
        model_path=str(models[0]),
        max_model_len=MAX_MODEL_LEN,
        end_token_ids=(END,),
        rollout=RolloutModelConfig(dtype="float32"),
    )
    engine = await start_vllm(options)
    try:
        yield engine
    finally:
        await engine.close()


def sampling(seed: int = 11, max_tokens: int = 24, **others: object) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=max_tokens, **others)  # type: ignore[arg-type]


def reference_logprobs(
    model: Path, prompt: list[int], generation: Generation, temperature: float = 1.0
) -> torch.Tensor:
    """What transformers says about the tokens, after temperature."""
    logprobs = torch.log_softmax(step_logits(model, prompt, generation) / temperature, -1)
    return logprobs.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]


def step_logits(model: Path, prompt: list[int], generation: Generation) -> torch.Tensor:
    """What transformers makes of the tokens before each of the response's."""
    tokens = torch.tensor([prompt + generation.token_ids])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(tokens).logits
    return logits[0, len(prompt) - 1 : -1]  # type: ignore[no-any-return]


def assert_agree(expected: torch.Tensor, generation: Generation) -> None:
    assert (expected - torch.tensor(generation.logprobs)).abs().max() < TOLERANCE


async def test_a_seed_gives_the_same_tokens_and_logprobs_alone_and_in_a_batch(
    engine: Engine,
) -> None:
    seeds = [(1 << 62) + 7919 * number for number in range(64)]
    together = await asyncio.gather(*(engine.generate(PROMPT, sampling(s)) for s in seeds))
    alone = [await engine.generate(PROMPT, sampling(seed)) for seed in seeds[:4]]
    assert alone == together[:4]
    assert len({tuple(one.token_ids) for one in together}) == len(seeds)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.5])
async def test_logprobs_are_those_of_the_model_after_temperature(
    engine: Engine, models: tuple[Path, Path], temperature: float
) -> None:
    generation = await engine.generate(PROMPT, sampling(temperature=temperature))
    assert_agree(reference_logprobs(models[0], PROMPT, generation, temperature), generation)


async def test_a_response_goes_on_after_its_end_token_where_that_is_asked_for(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    """The option is of each request, so both ways share the engine."""
    assert isinstance(engine, VllmEngine)
    options = EngineOptions(
        model_path=str(models[0]),
        max_model_len=MAX_MODEL_LEN,
        end_token_ids=(END,),
        rollout=RolloutModelConfig(dtype="float32", ignore_eos=True),
    )
    endless = VllmEngine(engine._engine, options)
    seeds = range(32)
    usual = [await engine.generate(PROMPT, sampling(seed, max_tokens=64)) for seed in seeds]
    ended = [one for one in zip(seeds, usual, strict=True) if one[1].finish_reason == "stop"]
    assert ended
    for seed, before in ended:
        after = await endless.generate(PROMPT, sampling(seed, max_tokens=64))
        assert after.finish_reason is FinishReason.LENGTH
        assert len(after.token_ids) == 64
        assert after.token_ids[: len(before.token_ids)] == before.token_ids


async def test_temperature_zero_takes_the_likeliest_token(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    once = await engine.generate(PROMPT, sampling(seed=1, temperature=0.0))
    again = await engine.generate(PROMPT, sampling(seed=2, temperature=0.0))
    assert once.token_ids == again.token_ids
    assert_agree(reference_logprobs(models[0], PROMPT, once), once)


async def test_top_k_renormalises_the_logprobs(engine: Engine) -> None:
    generation = await engine.generate(PROMPT, sampling(top_k=1))
    assert generation.logprobs == pytest.approx([0.0] * len(generation.token_ids), abs=TOLERANCE)


async def test_the_token_limit_is_a_finish_reason(engine: Engine) -> None:
    generation = await engine.generate(PROMPT, sampling(max_tokens=3), min_tokens=3)
    assert generation.finish_reason is FinishReason.LENGTH
    assert len(generation.token_ids) == 3


async def test_the_end_token_is_among_the_tokens(engine: Engine) -> None:
    """The untrained model ends about one response in six within 50 tokens."""
    answers = await asyncio.gather(
        *(engine.generate(PROMPT, sampling(seed=seed, max_tokens=50)) for seed in range(64))
    )
    ended = [one for one in answers if one.finish_reason is FinishReason.STOP]
    assert ended
    assert all(one.token_ids[-1] == END and END not in one.token_ids[:-1] for one in ended)
    assert all(len(one.logprobs) == len(one.token_ids) for one in ended)


async def test_no_end_before_the_least_number_of_tokens(engine: Engine) -> None:
    answers = await asyncio.gather(
        *(
            engine.generate(PROMPT, sampling(seed=s, max_tokens=50), min_tokens=50)
            for s in range(64)
        )
    )
    assert {len(one.token_ids) for one in answers} == {50}


async def test_new_weights_give_the_logprobs_of_the_new_model(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    before = await engine.generate(PROMPT, sampling())
    await engine.load_weights(models[1])
    after = await engine.generate(PROMPT, sampling())
    await engine.load_weights(models[0])
    assert_agree(reference_logprobs(models[1], PROMPT, after), after)
    assert after != before
    assert await engine.generate(PROMPT, sampling()) == before


async def test_a_cancelled_call_leaves_the_engine_usable(engine: Engine) -> None:
    calls = [asyncio.create_task(engine.generate(PROMPT, sampling(seed=s))) for s in range(8)]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    assert (await engine.generate(PROMPT, sampling())).token_ids


async def test_logprobs_are_those_after_penalties(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    penalties = {"repetition_penalty": 1.7, "presence_penalty": 0.6, "frequency_penalty": 0.3}
    asked = sampling(temperature=0.8, **penalties)
    generation = await engine.generate(PROMPT, asked)
    expected = []
    for place, logits in enumerate(step_logits(models[0], PROMPT, generation)):
        made = generation.token_ids[:place]
        for token in set(PROMPT + made):
            logits[token] *= 1.7 if logits[token] < 0 else 1 / 1.7
        for token in set(made):
            logits[token] -= 0.6 + 0.3 * made.count(token)
        expected.append(torch.log_softmax(logits / 0.8, -1)[generation.token_ids[place]])
    assert_agree(torch.stack(expected), generation)
    assert await engine.generate(PROMPT, asked) == generation


async def test_min_p_leaves_the_likely_tokens_and_renormalises(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    generation = await engine.generate(PROMPT, sampling(min_p=0.9))
    for place, logits in enumerate(step_logits(models[0], PROMPT, generation)):
        chances = torch.softmax(logits, -1)
        kept = chances >= 0.9 * chances.max()
        token = generation.token_ids[place]
        assert kept[token]
        expected = (chances[token] / chances[kept].sum()).log().item()
        assert generation.logprobs[place] == pytest.approx(expected, abs=TOLERANCE)


async def test_the_likeliest_tokens_are_told_where_they_are_asked_for(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    generation = await engine.generate(PROMPT, sampling(logprobs=3))
    for told, logits in zip(
        generation.likeliest, step_logits(models[0], PROMPT, generation), strict=True
    ):
        best = torch.log_softmax(logits, -1).topk(3)
        assert [token for token, _ in told] == best.indices.tolist()
        assert [one for _, one in told] == pytest.approx(best.values.tolist(), abs=TOLERANCE)
    plain = await engine.generate(PROMPT, sampling())
    assert plain.token_ids == generation.token_ids
    assert plain.likeliest == []


async def test_a_text_ends_the_response_where_it_first_appears(
    engine: Engine, models: tuple[Path, Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    whole = await engine.generate(PROMPT, sampling())
    texts = [tokenizer.decode([token]) for token in whole.token_ids]
    place = next(i for i, text in enumerate(texts) if i > 2 and text.isascii() and text.isalnum())
    assert not any(texts[place] in text for text in texts[:place])
    stopped = await engine.generate(PROMPT, sampling(stop=(texts[place], "not there")))
    assert stopped.token_ids == whole.token_ids[: place + 1]
    assert stopped.finish_reason is FinishReason.STOP
