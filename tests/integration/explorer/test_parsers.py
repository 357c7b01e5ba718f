"""Calls of tools and thoughts, found in responses by vLLM's own parsers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from services.explorer.openai_api.chat import ResponseWriter, read_request
from services.explorer.openai_api.tools import ResponseParsers, load_parsers
from trinity.config.schema.explorer import AuxiliaryModelConfig, EngineConfig, RolloutModelConfig
from trinity.errors import UserError
from trinity.types import Experience, JsonObject, VersionSpan
from trinity.types import Sequence as TokenSequence

END = 0
ADD: JsonObject = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class Bytes:
    """As much of a tokenizer as parsers look at: one token a byte, and those of the tags."""

    name_or_path = "bytes"
    chat_template = "{{ messages }}"
    vocab = {"<think>": 256, "</think>": 257, "<tool_call>": 258, "</tool_call>": 259}  # noqa: RUF012

    def get_vocab(self) -> dict[str, int]:
        return self.vocab

    def encode(self, text: str, **_: object) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        return bytes(tokens).decode()


def parsers(engine: type[EngineConfig] = RolloutModelConfig, **keys: object) -> ResponseParsers:
    tokenizer = HuggingFaceTokenizer(Bytes(), None, (END,))
    found = load_parsers(engine.model_validate(keys), tokenizer)
    assert found is not None
    return found


def response(text: str) -> Experience:
    tokens = [*text.encode(), END]
    return Experience(
        body=TokenSequence(
            tokens=np.array([1, *tokens], dtype=np.int32),
            prompt_length=1,
            action_mask=np.ones(len(tokens), dtype=np.bool_),
            rollout_logprobs=np.zeros(len(tokens), dtype=np.float32),
            response_text=text,
        ),
        version_spans=(VersionSpan(start=0, end=len(tokens), version=1, incarnation=1),),
    )


def answered(found: ResponseParsers, text: str) -> JsonObject:
    """The first choice of an answer to a request with a tool."""
    asked = read_request({"messages": [{"role": "user", "content": "1+1"}], "tools": [ADD]})
    writer = ResponseWriter(model_path="m", tokenizer=found.tokenizer, parsers=found)
    writer.check_supported(asked)
    choices = writer.response_body(asked, [response(text)])["choices"]
    assert isinstance(choices, list) and isinstance(choices[0], dict)
    return choices[0]


@pytest.mark.parametrize("engine", [RolloutModelConfig, AuxiliaryModelConfig])
def test_a_call_of_a_tool_is_found(engine: type[EngineConfig]) -> None:
    found = parsers(engine, enable_auto_tool_choice=True, tool_call_parser="hermes")
    choice = answered(found, f"I add.\n{CALL}")
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert isinstance(message, dict) and isinstance(message["tool_calls"], list)
    [call] = message["tool_calls"]
    assert isinstance(call, dict)
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert str(message["content"]).strip() == "I add."


def test_a_response_without_a_call_is_a_text() -> None:
    found = parsers(enable_auto_tool_choice=True, tool_call_parser="hermes")
    choice = answered(found, "It is 2.")
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": "It is 2."}


def test_thoughts_are_apart_from_what_is_said() -> None:
    found = parsers(reasoning_parser="deepseek_r1")
    said = found.parse_reply(response("<think>One and one.</think>It is 2."), ())
    assert (said.reasoning, said.content) == ("One and one.", "It is 2.")


def test_a_parser_that_does_not_suit_the_model_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Bytes, "vocab", {})
    with pytest.raises(UserError, match="does not suit the parser"):
        parsers(reasoning_parser="deepseek_r1")


@pytest.mark.parametrize(
    "keys",
    [
        {"enable_auto_tool_choice": True, "tool_call_parser": "none-such"},
        {"reasoning_parser": "none-such"},
    ],
)
def test_a_parser_that_vllm_does_not_have_is_named(keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="vLLM has no parser `none-such`"):
        parsers(**keys)
