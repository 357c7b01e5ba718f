"""Over an OpenAI-compatible address only the model's length limits a prompt and its answer."""

import json
import logging
from typing import Any

import openai
import pytest

from tests.unit.explorer.offering import Offered
from trinity.workflows.experience_builder import RatioWarnings
from trinity.workflows.generation import ModelLimits

HEAD = len("user:\n")
MAX_PROMPT, MAX_MODEL = 120, 200
"""The limits of the offered model; the taskset's `max_tokens` is 8. A character is a token."""


def question(num_tokens: int) -> Any:
    return [{"role": "user", "content": "a" * (num_tokens - HEAD)}]


async def ask(offered: Offered, num_tokens: int, **more: Any) -> int:
    """Returns the number of tokens that the engine was allowed."""
    async with offered.client as client:
        await client.chat.completions.create(model="any", messages=question(num_tokens), **more)
    [experience] = offered.model.extract_experience_from_history()
    assert experience.sampling is not None
    return experience.sampling.max_tokens


@pytest.mark.parametrize("num_tokens", [7, MAX_PROMPT, MAX_PROMPT + 1, MAX_MODEL - 1])
async def test_an_answer_may_take_all_that_its_prompt_leaves(
    offered: Offered, num_tokens: int
) -> None:
    assert await ask(offered, num_tokens) == MAX_MODEL - num_tokens


async def test_max_tokens_is_kept(offered: Offered) -> None:
    assert await ask(offered, 20, max_tokens=5) == 5


@pytest.mark.parametrize("num_tokens", [MAX_MODEL, MAX_MODEL + 7])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_leaves_nothing_is_refused_as_openai_does(
    offered: Offered, num_tokens: int, stream: bool
) -> None:
    async with offered.client as client:
        with pytest.raises(openai.BadRequestError) as told:
            await client.chat.completions.create(
                model="any", messages=question(num_tokens), stream=stream
            )
        with pytest.raises(openai.BadRequestError) as of_text:
            await client.completions.create(
                model="any", prompt=["a", "a" * num_tokens], stream=stream
            )
    assert told.value.code == of_text.value.code == "context_length_exceeded"
    assert (told.value.param, of_text.value.param) == ("messages", "prompt")
    assert f"{MAX_MODEL} tokens" in str(told.value) and str(num_tokens) in str(told.value)
    assert offered.model.extract_experience_from_history() == []


async def test_texts_of_different_lengths_are_completed_each_to_its_end(offered: Offered) -> None:
    async with offered.client as client:
        await client.completions.create(model="any", prompt=["a" * 3, "a" * 150])
    made = offered.model.extract_experience_from_history()
    assert [one.sampling.max_tokens for one in made if one.sampling] == [197, 50]


async def test_no_length_is_asked_of_an_answer(offered: Offered) -> None:
    """`min_response_tokens` is for workflows' own calls; a request may give `min_tokens`."""
    offered.model._limits = ModelLimits(max_model_len=200, max_prompt_tokens=120, min_tokens=9)
    async with offered.client as client:
        free = await client.chat.completions.create(model="any", messages=question(9))
        long = await client.chat.completions.create(
            model="any", messages=question(9), extra_body={"min_tokens": 6}
        )
    [own] = await offered.model.chat_async(question(9), max_tokens=20)
    assert free.usage is not None and long.usage is not None
    assert (free.usage.completion_tokens, long.usage.completion_tokens) == (3, 6)
    assert len(own.sequence.tokens) - own.sequence.prompt_length == 9


async def test_a_workflows_own_calls_keep_the_configured_lengths(offered: Offered) -> None:
    """The control: the same call, not over HTTP."""
    [short] = await offered.model.chat_async(question(20))
    [cut] = await offered.model.chat_async(question(MAX_PROMPT + 1))
    assert short.sampling is not None and short.sampling.max_tokens == 8
    assert cut.finish_reason == "prompt_truncated"


def test_a_model_elsewhere_has_lengths_of_its_own() -> None:
    assert not ModelLimits.unknown().is_known
    assert ModelLimits(max_model_len=200, max_prompt_tokens=120).is_known


def test_a_parameter_that_moves_the_ratio_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    warnings = RatioWarnings()
    warnings.check({"temperature": 0.7, "top_p": 1.0, "top_k": 0, "max_tokens": 3})
    assert caplog.messages == []
    for _ in range(3):
        warnings.check({"top_k": 20})
    warnings.check({"top_k": 30, "presence_penalty": 0.5})
    assert len(caplog.messages) == 2
    assert "`top_k: 20`" in caplog.messages[0] and "`presence_penalty: 0.5`" in caplog.messages[1]
    warnings.check({"min_tokens": 0, "json_schema": ""})
    assert len(caplog.messages) == 2
    warnings.check({"min_tokens": 5, "json_schema": json.dumps({"enum": list(range(1000))})})
    told = sorted(caplog.messages[2:])
    assert "`json_schema: {" in told[0] and "no such argument leaves them right" in told[0]
    assert "`min_tokens: 5`" in told[1] and max(map(len, told)) < 300


def test_a_call_without_chance_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    warnings = RatioWarnings()
    for _ in range(2):
        warnings.check({"temperature": 0})
    assert len(caplog.messages) == 1 and "`temperature: 0`" in caplog.messages[0]
    warnings.check({"top_p": 0.9})
    assert caplog.messages[1].endswith("are off; 1.0 leaves them right")
