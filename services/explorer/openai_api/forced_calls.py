"""Tool calls that a request forces: the response is constrained to a schema and parsed by it."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from services.explorer.openai_api.fields import Body
from services.explorer.openai_api.refusals import InvalidRequest
from trinity.types import JsonObject, JsonValue
from trinity.workflows.generation import ANY_OBJECT

NAME, ARGUMENTS = "name", "parameters"
"""Keys of a call when the model chooses among tools."""
CHOICES = '`tool_choice` is "auto", "none", "required" or a function with the name of a tool'


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
            return _saying([_call(self.name, response)]), reason
        try:
            chosen = json.loads(response)
            calls = [_call(call[NAME], json.dumps(call[ARGUMENTS])) for call in chosen]
        except (ValueError, LookupError, TypeError):
            return {"role": "assistant", "content": response}, reason
        return _saying(calls), "tool_calls"


def read_forced(body: Body, tools: tuple[JsonObject, ...]) -> ForcedCalls | None:
    """Returns the forced calls, or None if the model may answer in words.

    Raises: InvalidRequest naming the key.
    """
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none"):
        return None
    functions = {str(function[NAME]): function for function in map(_function, tools)}
    if not functions:
        raise InvalidRequest("`tool_choice` forces a call: give `tools`", param="tool_choice")
    if body.get("response_format") not in (None, {"type": "text"}):
        raise InvalidRequest(
            "`response_format` is for answers in words, but `tool_choice` forces a call: leave one "
            "of them out",
            param="response_format",
        )
    if choice == "required":
        most = 1 if body.get("parallel_tool_calls") is False else None
        return ForcedCalls(json_schema=json.dumps(_list_of(functions, most)))
    name = _named(choice)
    if name not in functions:
        raise InvalidRequest(CHOICES, param="tool_choice")
    return ForcedCalls(name=name, json_schema=json.dumps(_arguments(functions[name])))


def _named(choice: object) -> str:
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
        raise InvalidRequest(
            f"`parameters` of the tool `{function[NAME]}` is not an object", param="tools"
        )
    return schema


def _list_of(functions: Mapping[str, JsonObject], most: int | None) -> JsonObject:
    """Returns the schema of a list of calls, with the tools' `$defs` moved to the top level."""
    calls: list[JsonValue] = []
    definitions: JsonObject = {}
    for name, function in functions.items():
        arguments = dict(_arguments(function))
        own = arguments.pop("$defs", {})
        for key, value in own.items() if isinstance(own, dict) else ():
            if definitions.setdefault(key, value) != value:
                raise InvalidRequest(
                    f"two of `tools` mean different things by `$defs.{key}`: rename one",
                    param="tools",
                )
        calls.append(
            {
                "type": "object",
                "properties": {NAME: {"enum": [name]}, ARGUMENTS: arguments},
                "required": [NAME, ARGUMENTS],
                "additionalProperties": False,
            }
        )
    form: JsonObject = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if most is not None:
        form["maxItems"] = most
    return form | ({"$defs": definitions} if definitions else {})


def _saying(calls: list[JsonObject]) -> JsonObject:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


def _call(name: str, arguments: str) -> JsonObject:
    return {
        "id": f"call_{uuid.uuid4().hex}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
