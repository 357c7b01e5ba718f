"""Answers that are held to a form over HTTP: what the engine is asked, and what clients get."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from services.explorer.openai_api.server import AttemptApiServer
from tests.unit.explorer.offering import QUESTION, ROLLOUT
from tests.unit.workflows.scripted import ScriptedEngine, TurnTokenizer, scripted_model
from trinity.errors import UserError
from trinity.types import JsonObject
from trinity.workflows.model import ModelWrapper

GRADE: JsonObject = {"type": "object", "properties": {"grade": {"type": "integer"}}}
NUMBERS: JsonObject = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/number"}},
    "$defs": {"number": {"type": "integer"}},
}
ADD = {"type": "function", "function": {"name": "add", "parameters": NUMBERS}}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = [ADD, STOP]
NAMED = {"type": "function", "function": {"name": "add"}}
CHOSEN = '[{"name": "add", "parameters": {"a": 1}}, {"name": "stop", "parameters": {}}]'


class Answers:
    """An engine that says what it is told, behind an address."""

    def __init__(self, client: openai.AsyncOpenAI, engine: ScriptedEngine, model: ModelWrapper):
        self._client = client
        self._engine = engine
        self.model = model

    async def to(self, **asked: Any) -> Any:
        """The first choice."""
        body = {"model": "m", "messages": QUESTION, **asked}
        return (await self._client.chat.completions.create(**body)).choices[0]

    async def streamed(self, **asked: Any) -> list[Any]:
        """The first choice of each chunk."""
        body = {"model": "m", "messages": QUESTION, "stream": True, **asked}
        return [one.choices[0] async for one in await self._client.chat.completions.create(**body)]

    async def completion(self, **asked: Any) -> Any:
        """Of plain text."""
        return await self._client.completions.create(model="m", prompt="a", **asked)

    @property
    def schemas(self) -> list[JsonObject | None]:
        """What the engine was asked to hold its answers to."""
        asked = [one.json_schema for one in self._engine.samplings]
        return [json.loads(one) if one else None for one in asked]


@asynccontextmanager
async def saying(*answers: str, max_tokens: int = 4000) -> AsyncIterator[Answers]:
    engine = ScriptedEngine(list(answers))
    api = AttemptApiServer(model_path="m", rollout=ROLLOUT, tokenizer=TurnTokenizer())
    await api.start_api()
    model = scripted_model(engine, max_tokens=max_tokens)
    model.keep_history()
    model.enable_api(api.register_attempt(model))
    try:
        async with model.get_openai_async_client() as client:
            yield Answers(client, engine, model)
    finally:
        await api.stop_api()


def described(schema: JsonObject) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "graded", "schema": schema}}


def called(calls: Sequence[Any]) -> list[tuple[str, str]]:
    assert len({one.id for one in calls}) == len(calls)
    return [(one.function.name, one.function.arguments) for one in calls]


async def test_the_engine_holds_an_answer_to_the_schema_and_the_experience_says_so() -> None:
    async with saying('{"grade": 3}', "{}", "hello", "{}") as answers:
        graded = await answers.to(response_format=described(GRADE))
        await answers.to(response_format={"type": "json_object"})
        await answers.to(response_format={"type": "text"})
        await answers.completion(extra_body={"response_format": described(GRADE)})
        recorded = answers.model.extract_experience_from_history()
    assert answers.schemas == [GRADE, {"type": "object"}, None, GRADE]
    assert graded.message.content == '{"grade": 3}'
    assert [one.sampling and one.sampling.json_schema for one in recorded] == [
        json.dumps(GRADE),
        '{"type": "object"}',
        "",
        json.dumps(GRADE),
    ]


async def test_a_call_of_the_named_tool_is_forced() -> None:
    async with saying('{"a": 1}', '{"a": 1}') as answers:
        choice = await answers.to(tools=TOOLS, tool_choice=NAMED)
        chunks = await answers.streamed(tools=TOOLS, tool_choice=NAMED)
        first, second = answers.model.extract_experience_from_history()
    assert answers.schemas == [NUMBERS, NUMBERS]
    assert called(choice.message.tool_calls) == [("add", '{"a": 1}')]
    assert (choice.message.content, choice.finish_reason) == (None, "stop")
    told = [one for chunk in chunks for one in chunk.delta.tool_calls or ()]
    assert (called(told), told[0].index) == ([("add", '{"a": 1}')], 0)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert first.response_text == second.response_text == '{"a": 1}'
    assert first.tools_sha256 and first.sequence.action_mask.all()


async def test_log_probabilities_come_with_the_piece_in_which_a_call_is_told() -> None:
    async with saying('{"a": 1}', '{"a": 1}') as answers:
        asked = {"tools": TOOLS, "tool_choice": NAMED, "logprobs": True, "top_logprobs": 1}
        whole = await answers.to(**asked)
        chunks = await answers.streamed(**asked)
    told = [one for chunk in chunks if chunk.logprobs for one in chunk.logprobs.content]
    assert told == whole.logprobs.content
    assert len(told) == len('{"a": 1}') + 1


async def test_some_call_is_forced_and_the_model_chooses() -> None:
    async with saying(CHOSEN, '[{"name": "stop", "parameters": {}}]') as answers:
        choice = await answers.to(tools=TOOLS, tool_choice="required")
        await answers.to(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert called(choice.message.tool_calls) == [("add", '{"a": 1}'), ("stop", "{}")]
    assert choice.finish_reason == "tool_calls"
    several, one = answers.schemas
    assert several is not None and one is not None
    assert one == several | {"maxItems": 1}
    assert several["$defs"] == NUMBERS["$defs"], "where references look for them"
    assert several["minItems"] == 1


async def test_a_forced_call_that_is_cut_is_told_as_far_as_it_goes() -> None:
    async with saying('{"a": 1}', CHOSEN) as answers:
        named = await answers.to(tools=TOOLS, tool_choice=NAMED, max_tokens=6)
        chosen = await answers.to(tools=TOOLS, tool_choice="required", max_tokens=6)
    assert called(named.message.tool_calls) == [("add", '{"a": ')]
    assert chosen.message.tool_calls is None
    assert chosen.message.content == CHOSEN[:6]
    assert (named.finish_reason, chosen.finish_reason) == ("length", "length")


async def test_tools_that_mean_different_things_by_a_name_are_refused() -> None:
    other = {**NUMBERS, "$defs": {"number": {"type": "string"}}}
    twin = {"type": "function", "function": {"name": "twin", "parameters": other}}
    async with saying() as answers:
        with pytest.raises(openai.BadRequestError, match=r"`\$defs.number`"):
            await answers.to(tools=[ADD, twin], tool_choice="required")


async def test_a_workflow_gives_the_text_of_a_schema() -> None:
    async with saying("{}") as answers:
        with pytest.raises(UserError, match=r"json\.dumps"):
            await answers.model.chat_async(
                QUESTION,
                json_schema=GRADE,
            )
        await answers.model.chat_async(
            QUESTION,
            json_schema=json.dumps(GRADE),
        )
    assert answers.schemas == [GRADE]
