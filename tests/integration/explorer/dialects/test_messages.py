"""Anthropic's Messages, asked for by Anthropic's client."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.integration.explorer.dialects.asking import ADDING, CALL, THOUGHT, Asked, thinking

TOOL: anthropic.types.ToolParam = {
    "name": "add",
    "description": "Adds.",
    "input_schema": ADDING,
    "cache_control": {"type": "ephemeral"},
}
HISTORY: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "1+1?"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "One more.", "signature": "s"},
            {"type": "text", "text": "I add."},
            {"type": "tool_use", "id": "call-1", "name": "add", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "call-1",
                "content": [{"type": "text", "text": "2"}],
            },
            {"type": "text", "text": "So?"},
        ],
    },
    {"role": "system", "content": "Be brief."},
]
CHAT = [
    {"role": "system", "content": "You add."},
    {"role": "user", "content": "1+1?"},
    {
        "role": "assistant",
        "content": "I add.",
        "reasoning_content": "One more.",
        "tool_calls": [
            {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": "2"},
    {"role": "user", "content": "So?\n\nBe brief."},
]


@thinking
async def test_a_history_of_messages_is_the_chat_that_templates_take(asked: Asked) -> None:
    asked.will_say(f"{THOUGHT}It is 2.")
    said = await asked.messages.messages.create(
        model="any",
        max_tokens=32_000,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: 17"},
            {"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}},
        ],
        tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],
        messages=HISTORY,
        timeout=60,  # without one the client refuses so many tokens
        extra_query={"beta": "true"},
        extra_body={
            "temperature": 0.5,
            "context_management": {"edits": []},
            "thinking": {"type": "adaptive"},
        },
    )
    assert asked.chats.messages == CHAT
    assert [tool["function"] for tool in asked.chats.tools] == [
        {"name": "add", "description": "Adds.", "parameters": ADDING}
    ]
    assert [block.type for block in said.content] == ["thinking", "text"]
    (recorded,) = asked.model.extract_experience_from_history()
    assert recorded.sampling is not None and recorded.sampling.temperature == 0.5
    assert said.usage.output_tokens == recorded.sequence.response_length
    assert said.usage.input_tokens == recorded.sequence.prompt_length
    assert (said.stop_reason, said.content[1].text) == ("end_turn", "It is 2.")  # type: ignore[union-attr]


@thinking
@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_of_a_tool_comes_as_a_block(asked: Asked, streams: bool) -> None:
    asked.will_say(f"{THOUGHT}I add.\n{CALL}")
    request: dict[str, Any] = {"model": "any", "max_tokens": 500, "messages": HISTORY[:1]}
    if streams:
        async with asked.messages.messages.stream(**request, tools=[TOOL]) as stream:
            said = await stream.get_final_message()
    else:
        said = await asked.messages.messages.create(**request, tools=[TOOL])
    thought, text, call = said.content
    assert thought.type == "thinking" and thought.thinking == "One more."
    assert text.type == "text" and text.text.strip() == "I add."
    assert call.type == "tool_use" and (call.name, call.input) == ("add", {"a": 1})
    assert said.stop_reason == "tool_use"


async def test_a_stream_of_messages_has_anthropics_events(asked: Asked) -> None:
    asked.will_say("It is two.")
    raw = await asked.http.post(
        "/v1/messages",
        json={"model": "m", "max_tokens": 7, "stream": True, "messages": HISTORY[:1]},
    )
    frames = [frame.split("\n", 1) for frame in raw.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [kind for kind, _ in frames] == [f"event: {event['type']}" for event in events]
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_a_stop_sequence_is_named(asked: Asked) -> None:
    asked.will_say("one two three")
    said = await asked.messages.messages.create(
        model="m", max_tokens=50, messages=HISTORY[:1], stop_sequences=["xy", " three"]
    )
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", " three")


async def test_tokens_are_counted_as_they_are_sampled_on(asked: Asked) -> None:
    counted = await asked.messages.messages.count_tokens(model="m", messages=HISTORY[:1])
    asked.will_say("ok")
    said = await asked.messages.messages.create(model="m", max_tokens=5, messages=HISTORY[:1])
    assert counted.input_tokens == said.usage.input_tokens


async def test_models_are_listed_for_both_clients(asked: Asked) -> None:
    listed = [model.id async for model in asked.messages.models.list()]
    assert listed == [model.id async for model in asked.openai.models.list()] == ["m"]
    assert (await asked.messages.models.retrieve("m")).display_name == "m"
    assert (await asked.openai.models.retrieve("m")).id == "m"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        await asked.openai.models.retrieve("other")


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "`messages`"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "no role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "neither a URL nor base64"),
    ({"messages": [{"role": "user", "content": "a" * 400_100}]}, "prompt is too long"),
    ({"tools": [{"name": 1}]}, "`tools[0]` has no name"),
    ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice"),
    ({"temperature": -1}, "temperature"),
    ({"max_tokens": None}, "max_tokens"),
]


async def test_mistakes_are_anthropics_errors(asked: Asked, subtests: pytest.Subtests) -> None:
    for change, words in MISTAKES:
        with subtests.test(words):
            body = {"model": "m", "max_tokens": 5, "messages": HISTORY[:1], **change}
            answer = await asked.http.post("/v1/messages", json=body)
            said = answer.json()
            assert (answer.status_code, said["type"]) == (400, "error")
            assert said["error"]["type"] == "invalid_request_error"
            assert words in said["error"]["message"]
    keyless = asked.messages.with_options(api_key="another")
    with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
        await keyless.messages.create(model="m", max_tokens=5, messages=HISTORY[:1])


async def test_what_fails_within_a_stream_is_anthropics_event(asked: Asked) -> None:
    asked.engine.fails_after = 1
    asked.will_say("It is two.")
    with pytest.raises(anthropic.APIStatusError, match="api_error"):
        async with asked.messages.messages.stream(
            model="m", max_tokens=50, messages=HISTORY[:1]
        ) as stream:
            await stream.get_final_message()
