"""OpenAI's Responses, asked for by OpenAI's client, and vLLM's tokens in and out."""

import json
from typing import Any

import openai
import pytest

from tests.integration.explorer.dialects.asking import ADDING, CALL, THOUGHT, Asked, thinking
from trinity.types import JsonObject

TOOLS: list[Any] = [
    {"type": "function", "name": "add", "description": "Adds.", "parameters": ADDING},
    {"type": "web_search"},
]
PATCH: list[Any] = [{"type": "custom", "name": "apply_patch", "format": {"type": "text"}}]
SPACE: list[Any] = [{"type": "namespace", "name": "mcp__calc__", "tools": TOOLS[:1]}]


async def test_a_whole_history_is_the_chat_that_templates_take(asked: Asked) -> None:
    asked.will_say("It is 2.")
    said = await asked.openai.responses.create(
        model="any",
        instructions="You add.",
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        tools=TOOLS,
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
                {"type": "reasoning_text", "text": "One more."}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "I add.", "annotations": []}]},
            {"type": "function_call", "call_id": "call-1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "call-1", "output": "2"},
            {"role": "user", "content": "So?"},
        ],
    )  # fmt: skip
    call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert asked.chats.messages == [
        {"role": "system", "content": "You add.\n\nBe brief."},
        {"role": "user", "content": "1+1?"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "One more.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "2"},
        {"role": "user", "content": "So?"},
    ]
    assert [tool["function"] for tool in asked.chats.tools] == [
        {"name": "add", "description": "Adds.", "parameters": ADDING}
    ]
    (recorded,) = asked.model.extract_experience_from_history()
    assert said.output_text == "It is 2." and said.status == "completed"
    assert said.usage is not None
    assert said.usage.output_tokens == recorded.sequence.response_length
    with pytest.raises(openai.BadRequestError, match="not kept"):
        await asked.openai.responses.create(model="m", input="a", previous_response_id=said.id)


@thinking
@pytest.mark.parametrize("streams", [False, True])
async def test_thoughts_words_and_calls_are_items(asked: Asked, streams: bool) -> None:
    asked.will_say(f"{THOUGHT}I add.\n{CALL}")
    request: dict[str, Any] = {"model": "any", "input": "1+1?", "tools": TOOLS}
    if streams:
        async with asked.openai.responses.stream(**request) as stream:
            said: Any = await stream.get_final_response()
    else:
        said = await asked.openai.responses.create(**request)
    thought, message, call = said.output
    assert thought.content[0].text == "One more."
    assert message.content[0].text.strip() == "I add."
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1})


async def test_tools_in_namespaces_and_of_free_text_come_back_as_they_were_named(
    asked: Asked,
) -> None:
    asked.will_say(CALL.replace("add", "mcp__calc__add"))
    said = await asked.openai.responses.create(model="m", input="1+1?", tools=SPACE)
    item = said.output[0].to_dict()
    assert (item["namespace"], item["name"]) == ("mcp__calc__", "add")
    asked.will_say(CALL.replace("add", "apply_patch").replace('"a": 1', '"input": "*** x"'))
    said = await asked.openai.responses.create(model="m", input="patch", tools=PATCH)
    item = said.output[0].to_dict()
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** x")


async def test_a_response_goes_on_where_an_earlier_one_ended(asked: Asked) -> None:
    asked.will_say("It is 2.", "It is 3.")
    first = await asked.openai.responses.create(model="m", input="1+1?", instructions="You add.")
    await asked.openai.responses.create(
        model="m", input="And 1 more?", previous_response_id=first.id
    )
    assert asked.chats.messages == [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "It is 2."},
        {"role": "user", "content": "And 1 more?"},
    ]


async def test_a_stream_tells_its_events_in_order_and_ends_incomplete_at_the_limit(
    asked: Asked,
) -> None:
    asked.will_say("It is two.")
    stream = await asked.openai.responses.create(
        model="m", input="1+1?", max_output_tokens=6, stream=True
    )
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if not event.type.endswith(".delta")]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "It is "


MISTAKES: list[tuple[JsonObject, str]] = [
    ({"input": []}, "`input`"),
    ({"input": [{"type": "image_generation_call"}]}, "input[0]"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "neither a URL nor base64",
    ),
    ({"input": [{"type": "function_call", "name": 1}]}, "`call_id`"),
    ({"input": "a" * 400_100}, "maximum context length"),
    ({"tools": "add"}, "`tools`"),
    ({"background": True}, "`background`"),
    ({"max_output_tokens": 0}, "max_tokens"),
    ({"text": {"format": {"type": "json_schema", "schema": 1}}}, "response_format"),
]


async def test_mistakes_are_openais_errors(asked: Asked, subtests: pytest.Subtests) -> None:
    for change, words in MISTAKES:
        with subtests.test(words):
            answer = await asked.http.post("/v1/responses", json={"input": "a", **change})
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]


async def test_what_fails_within_a_stream_is_an_event(asked: Asked) -> None:
    asked.engine.fails_after = 1
    asked.will_say("It is two.")
    stream = await asked.openai.responses.create(model="m", input="1+1?", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "error"


async def test_tokens_go_in_and_come_out(asked: Asked) -> None:
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3, "logprobs": 0, "n": 2}}
    asked.will_say("abcd", "efgh")
    answer = (await asked.http.post("/inference/v1/generate", json=body)).json()
    recorded = asked.model.extract_experience_from_history()
    for choice, one in zip(answer["choices"], recorded, strict=True):
        assert choice["token_ids"] == one.sequence.tokens[2:].tolist()
        assert [token["logprob"] for token in choice["logprobs"]["content"]] == [-0.5] * 3
        assert choice["finish_reason"] == "length"
    asked.will_say("abcd")
    body["sampling_params"] = {"max_tokens": 3}
    streamed = await asked.http.post("/inference/v1/generate", json={**body, "stream": True})
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    tokens = [json.loads(event)["choices"][0]["token_ids"] for event in events]
    assert [token for piece in tokens for token in piece] == [*b"abc"]
    for wrong in ({"token_ids": "a"}, {"token_ids": [-1]}, {"sampling_params": 1}):
        refused = await asked.http.post("/inference/v1/generate", json={**body, **wrong})
        assert refused.status_code == 400
