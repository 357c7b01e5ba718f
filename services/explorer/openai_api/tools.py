"""Tool calls and reasoning in responses: calls that a request forces, and the model's parsers."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.fields import Body
from services.explorer.openai_api.response import response_tokens
from trinity.config.schema.explorer import EngineConfig
from trinity.errors import UserError
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.generation import ANY_OBJECT

if TYPE_CHECKING:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParser
    from vllm.tool_parsers import ToolParser


NAME, ARGUMENTS = "name", "parameters"
"""Keys of a call when the model chooses among tools."""
TOOL_CHOICES = '`tool_choice` is "auto", "none", "required" or a function with the name of a tool'


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedCalls:
    """One call of the named tool, or a list of calls of tools that the model chooses."""

    name: str = ""
    """Empty if the model chooses."""
    json_schema: str
    """The schema of the response: the arguments of the named tool, or the list of calls."""

    def message(self, response: str, reason: str) -> tuple[JsonObject, str]:
        """Returns the message and its finish reason; a truncated list yields no calls."""
        if self.name:
            return _tool_call_message([_call(self.name, response)]), reason
        try:
            chosen = json.loads(response)
            calls = [_call(call[NAME], json.dumps(call[ARGUMENTS])) for call in chosen]
        except (ValueError, LookupError, TypeError):
            return {"role": "assistant", "content": response}, reason
        return _tool_call_message(calls), "tool_calls"


def read_forced(body: Body, tools: tuple[JsonObject, ...]) -> ForcedCalls | None:
    """Returns the forced calls, or None if the model may answer in words.

    Raises: InvalidApiRequest naming the key.
    """
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none"):
        return None
    functions = {str(function[NAME]): function for function in map(_function, tools)}
    if not functions:
        raise InvalidApiRequest("`tool_choice` forces a call: give `tools`", param="tool_choice")
    if body.get("response_format") not in (None, {"type": "text"}):
        raise InvalidApiRequest(
            "`response_format` is for answers in words, but `tool_choice` forces a call: leave one "
            "of them out",
            param="response_format",
        )
    if choice == "required":
        most = 1 if body.get("parallel_tool_calls") is False else None
        return ForcedCalls(json_schema=json.dumps(_call_list_schema(functions, most)))
    name = _choice_name(choice)
    if name not in functions:
        raise InvalidApiRequest(TOOL_CHOICES, param="tool_choice")
    return ForcedCalls(name=name, json_schema=json.dumps(_arguments(functions[name])))


def _choice_name(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _function(tool: JsonObject) -> JsonObject:
    function = tool["function"]
    assert isinstance(function, dict)  # `read_tools` has checked it
    return function


def _arguments(function: JsonObject) -> JsonObject:
    """Returns the schema of a tool's arguments; a tool without one takes any object."""
    schema = function.get("parameters") or json.loads(ANY_OBJECT)
    if not isinstance(schema, dict):
        raise InvalidApiRequest(
            f"`parameters` of the tool `{function[NAME]}` is not an object", param="tools"
        )
    return schema


def _call_list_schema(functions: Mapping[str, JsonObject], most: int | None) -> JsonObject:
    """Returns the schema of a list of calls, with the tools' `$defs` moved to the top level."""
    calls: list[JsonValue] = []
    definitions: JsonObject = {}
    for name, function in functions.items():
        arguments = dict(_arguments(function))
        own = arguments.pop("$defs", {})
        for key, value in own.items() if isinstance(own, dict) else ():
            if definitions.setdefault(key, value) != value:
                raise InvalidApiRequest(
                    f"two of `tools` mean different things by `$defs.{key}`: rename one",
                    param="tools",
                )
        calls.append(_call_schema(name, arguments))
    schema: JsonObject = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if most is not None:
        schema["maxItems"] = most
    return schema | ({"$defs": definitions} if definitions else {})


def _call_schema(name: str, arguments: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": {NAME: {"enum": [name]}, ARGUMENTS: arguments},
        "required": [NAME, ARGUMENTS],
        "additionalProperties": False,
    }


def _tool_call_message(calls: list[JsonObject]) -> JsonObject:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


def _call(name: str, arguments: str) -> JsonObject:
    return {
        "id": f"call_{uuid.uuid4().hex}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A parsed response."""

    content: str | None
    reasoning: str | None = None
    tool_calls: list[JsonObject] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseParsers:
    """The parsers of one model; either may be missing. Use `load_parsers` to make them."""

    tokenizer: HuggingFaceTokenizer
    tools: "type[ToolParser] | None"
    reasoning: "type[ReasoningParser] | None"

    def parses_response(self, has_tools: bool) -> bool:
        """Returns true if a response may be more than its plain text."""
        return self.reasoning is not None or (has_tools and self.tools is not None)

    def parse_reply(self, answer: Experience, tools: Sequence[JsonObject]) -> ParsedReply:
        """Parses a whole response, including its special tokens."""
        request = _vllm_request(tools)
        parsed = ParsedReply(content=self._text_of(answer))
        if self.reasoning is not None:
            parser = self.reasoning(self.tokenizer.hf_tokenizer)
            reasoning, content = parser.extract_reasoning(parsed.content or "", request)
            parsed = ParsedReply(content=content, reasoning=reasoning)
        if self.tools is not None and tools:
            parsed = self._with_calls(parsed, request)
        return parsed

    def _with_calls(self, parsed: ParsedReply, request: "ChatCompletionRequest") -> ParsedReply:
        assert self.tools is not None
        parser = self.tools(self.tokenizer.hf_tokenizer, list(request.tools or ()))
        found = parser.extract_tool_calls(parsed.content or "", request)
        if not found.tools_called:
            return parsed
        calls: list[JsonObject] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in found.tool_calls
        ]
        return ParsedReply(
            content=found.content or None, reasoning=parsed.reasoning, tool_calls=calls
        )

    def _text_of(self, answer: Experience) -> str:
        """Returns the text up to the end token, or up to a stop text."""
        if answer.sampling is not None and answer.sampling.stop:
            return answer.response_text
        tokens = response_tokens(answer)
        while tokens and tokens[-1] in self.tokenizer.end_token_ids:
            tokens.pop()
        return str(self.tokenizer.hf_tokenizer.decode(tokens, skip_special_tokens=False))


def load_parsers(rollout: EngineConfig, tokenizer: HuggingFaceTokenizer) -> ResponseParsers | None:
    """Loads the configured parsers, which are heavy to import.

    Raises: UserError when vLLM has no parser of that name, or it does not suit the model.
    """
    if not rollout.enable_auto_tool_choice and rollout.reasoning_parser is None:
        return None
    tools = _tool_parser(rollout.tool_call_parser) if rollout.enable_auto_tool_choice else None
    reasoning = _reasoning_parser(rollout.reasoning_parser)
    try:
        for parser in (tools, reasoning):
            if parser is not None:
                parser(tokenizer.hf_tokenizer)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            "the model's tokenizer does not suit the parser that is named in "
            f"`explorer.rollout_model`: {error}"
        ) from error
    return ResponseParsers(tokenizer=tokenizer, tools=tools, reasoning=reasoning)


def _tool_parser(name: str | None) -> "type[ToolParser] | None":
    from vllm.tool_parsers import ToolParserManager

    if name is None:
        return None
    try:
        found: type[ToolParser] = ToolParserManager.get_tool_parser(name)
    except (KeyError, ImportError) as error:
        raise UserError(
            f"vLLM has no parser `{name}` (`explorer.rollout_model.tool_call_parser`): {error}"
        ) from error
    return found


def _reasoning_parser(name: str | None) -> "type[ReasoningParser] | None":
    from vllm.reasoning import ReasoningParserManager

    if name is None:
        return None
    try:
        found: type[ReasoningParser] = ReasoningParserManager.get_reasoning_parser(name)
    except (KeyError, ImportError) as error:
        raise UserError(
            f"vLLM has no parser `{name}` (`explorer.rollout_model.reasoning_parser`): {error}"
        ) from error
    return found


def _vllm_request(tools: Sequence[JsonObject]) -> "ChatCompletionRequest":
    """Returns a vLLM request with the tools, which the parsers read from it."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    values: JsonObject = {"messages": [{"role": "user", "content": ""}]}
    if tools:
        values |= {"tools": list(tools), "tool_choice": "auto"}
    return ChatCompletionRequest.model_validate(values)
