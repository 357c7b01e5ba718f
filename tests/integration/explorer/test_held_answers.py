"""Answers of the real engine that are held to a form, and completions of plain text, over HTTP."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer
from services.explorer.engine.vllm import start_vllm
from services.explorer.openai_api.server import AttemptApiServer
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.types import Experience, SamplingParams
from trinity.workflows.generation import ModelLimits
from trinity.workflows.model import ModelWrapper

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]

MAX_MODEL_LEN = 256
QUESTION = [{"role": "user", "content": "1+1="}]
VERDICT = {
    "type": "object",
    "properties": {"good": {"type": "boolean"}, "grade": {"enum": ["a", "b"]}},
    "required": ["good", "grade"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": VERDICT}}
NOTHING = {"type": "object", "additionalProperties": False}
STOP = {"type": "function", "function": {"name": "stop", "parameters": NOTHING}}
JUDGE = {"type": "function", "function": {"name": "judge", "parameters": VERDICT}}
ROLLOUT = RolloutModelConfig(dtype="float32", enable_openai_api=True, gpu_memory_utilization=0.3)
TOLERANCE = 1e-4 if not torch.cuda.is_available() else 1e-2


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that may hold answers to schemas, behind addresses."""

    engine: Engine
    tokenizer: HuggingFaceTokenizer
    api: AttemptApiServer
    path: Path

    def attempt(self) -> "Attempt":
        """One more with the same seeds."""
        model = ModelWrapper(
            generator=self.engine,
            tokenizer=self.tokenizer,
            limits=ModelLimits(max_model_len=MAX_MODEL_LEN, max_prompt_tokens=60, min_tokens=40),
            sampling=SamplingParams(max_tokens=120),
            weights=(0, 0),
            seed_of_call=lambda call: 1000 + call,
            keeps_history=True,
        )
        model.enable_api(self.api.register_attempt(model))
        return Attempt(model)

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """What transformers computes; [T, V]."""
        weights = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)
        with torch.no_grad():
            found: torch.Tensor = weights(torch.tensor([tokens])).logits
        return found[0]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run's model, with a client."""

    model: ModelWrapper

    async def chat(self, **asked: Any) -> Any:
        async with self.model.get_openai_async_client() as client:
            return await client.chat.completions.create(model="m", messages=QUESTION, **asked)  # type: ignore[arg-type]

    async def streamed(self, **asked: Any) -> list[Any]:
        async with self.model.get_openai_async_client() as client:
            stream: Any = await client.chat.completions.create(
                model="m",
                messages=QUESTION,  # type: ignore[arg-type]
                stream=True,
                **asked,
            )
            return [chunk.choices[0] async for chunk in stream]

    def recorded(self) -> list[Experience]:
        return self.model.extract_experience_from_history()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(models: tuple[Path, Path]) -> AsyncIterator[Running]:
    tokenizer = load_tokenizer(str(models[0]), None)
    options = EngineOptions(
        model_path=str(models[0]),
        max_model_len=MAX_MODEL_LEN,
        end_token_ids=tokenizer.end_token_ids,
        rollout=ROLLOUT,
        structured_output=True,
    )
    engine = await start_vllm(options)
    api = AttemptApiServer(model_path="m", rollout=ROLLOUT, tokenizer=tokenizer)
    try:
        await api.start_api()
        yield Running(engine, tokenizer, api, models[0])
    finally:
        await api.stop_api()
        await engine.close()


def response_of(experience: Experience) -> tuple[list[int], list[float]]:
    sequence = experience.sequence
    tokens: list[int] = sequence.tokens[sequence.prompt_length :].tolist()
    return tokens, sequence.rollout_logprobs.tolist()


def assert_verdict(text: str) -> None:
    found = json.loads(text)
    assert isinstance(found["good"], bool) and found["grade"] in ("a", "b")
    assert found.keys() == {"good", "grade"}


async def test_answers_keep_to_the_schema_and_are_recorded_as_they_were_drawn(
    running: Running,
) -> None:
    """An untrained model says nothing of the kind by itself."""
    attempt = running.attempt()
    answer = await attempt.chat(response_format=FORMAT, n=8, extra_body={"return_token_ids": True})
    recorded = attempt.recorded()
    for choice, one in zip(answer.choices, recorded, strict=True):
        tokens, logprobs = response_of(one)
        assert choice.model_extra["token_ids"] == tokens
        assert one.sequence.action_mask.all()
        logits = running.logits(one.sequence.tokens.tolist())[one.sequence.prompt_length - 1 : -1]
        free = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert logprobs[0] == 0.0, "nothing but a brace could be drawn"
        pairs = zip(logprobs, free.tolist(), strict=True)
        assert all(held >= alone - TOLERANCE for held, alone in pairs)
        if choice.finish_reason == "stop":
            assert tokens[-1] in running.tokenizer.end_token_ids
            assert_verdict(choice.message.content)
    assert any(choice.finish_reason == "stop" for choice in answer.choices)
    assert len({choice.message.content for choice in answer.choices}) > 1


async def test_a_stream_of_a_held_answer_tells_the_same(running: Running) -> None:
    whole = await running.attempt().chat(response_format=FORMAT)
    pieces = await running.attempt().streamed(response_format=FORMAT)
    told = "".join(one.delta.content or "" for one in pieces)
    assert told == whole.choices[0].message.content
    assert len([one for one in pieces if one.delta.content]) > 1


async def test_forced_calls_have_arguments_that_keep_to_the_tools_schema(running: Running) -> None:
    named = {"type": "function", "function": {"name": "judge"}}
    attempt = running.attempt()
    tools: list[Any] = [STOP, JUDGE]
    answer = await attempt.chat(tools=tools, tool_choice=named, n=6)
    chosen = await attempt.chat(
        tools=tools, tool_choice="required", parallel_tool_calls=False, n=16, max_tokens=240
    )
    whole = [one for one in answer.choices if one.finish_reason == "stop"]
    assert whole
    for choice in whole:
        [call] = choice.message.tool_calls
        assert call.function.name == "judge"
        assert_verdict(call.function.arguments)
    called = [one for one in chosen.choices if one.finish_reason == "tool_calls"]
    assert called
    for choice in called:
        [call] = choice.message.tool_calls
        if call.function.name == "judge":
            assert_verdict(call.function.arguments)
        else:
            assert (call.function.name, json.loads(call.function.arguments)) == ("stop", {})


async def test_what_is_no_schema_is_refused_and_other_calls_go_on(running: Running) -> None:
    attempt = running.attempt()
    strange = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "number?"}}}
    going = asyncio.ensure_future(attempt.chat(n=4))
    with pytest.raises(openai.BadRequestError, match="the schema of the response"):
        await attempt.chat(response_format=strange)
    assert len((await going).choices) == 4


async def test_an_answer_in_words_is_what_the_model_says_by_itself(running: Running) -> None:
    attempt = running.attempt()
    await attempt.chat(n=4, temperature=0.7)
    for one in attempt.recorded():
        tokens, logprobs = response_of(one)
        logits = running.logits(one.sequence.tokens.tolist())[one.sequence.prompt_length - 1 : -1]
        expected = torch.log_softmax(logits[40:] / 0.7, -1)
        own = expected.gather(1, torch.tensor(tokens[40:])[:, None])[:, 0]
        assert logprobs[40:] == pytest.approx(own.tolist(), abs=TOLERANCE)
        assert len(tokens) >= 40


async def test_completions_stream_what_they_tell_whole_and_look_at_their_prompt(
    running: Running,
) -> None:
    asked: dict[str, Any] = {"model": "m", "prompt": ["1+1=", "12+34="], "max_tokens": 50}
    first, second = running.attempt(), running.attempt()
    async with (
        first.model.get_openai_async_client() as client,
        second.model.get_openai_async_client() as other,
    ):
        whole = await client.completions.create(
            **asked, logprobs=1, extra_body={"prompt_logprobs": 0}
        )
        pieces = [one async for one in await other.completions.create(**asked, stream=True)]
    for index, one in enumerate(first.recorded()):
        choice = whole.choices[index]
        own = [c.text for piece in pieces for c in piece.choices if c.index == index]
        assert "".join(own) == choice.text == one.response_text
        assert choice.logprobs.token_logprobs == pytest.approx(response_of(one)[1])
        prompt = one.sequence.tokens[: one.sequence.prompt_length].tolist()
        logits = torch.log_softmax(running.logits(prompt), -1)
        told = choice.model_extra["prompt_logprobs"]
        for (place, token), known in zip(
            itertools.islice(enumerate(prompt), 1, None), told[1:], strict=True
        ):
            expected = logits[place - 1, token].item()
            assert known[str(token)]["logprob"] == pytest.approx(expected, abs=TOLERANCE)
