"""Calls of tools that a request forces: the response is held to their form, and read by it."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from services.explorer.openai_api.fields import Body
from services.explorer.openai_api.refusals import InvalidRequest
from trinity.types import JsonObject, JsonValue
from trinity.workflows.generation import ANY_OBJECT

NAME, ARGUMENTS = "name", "parameters"
"""Keys of a call, where the model chooses among tools."""
CHOICES = '`tool_choice` is "auto", "none", "required" or a function with the name of a tool'


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedCalls:
    """One call of the named tool, or a list of calls of those that the model chooses."""

    name: str = ""
    """Empty where the model chooses."""
    json_schema: str
    """What the response is held to: the arguments of the named tool, or the list."""

    def message(self, response: str, reason: str) -> tuple[JsonObject, str]:
        """What is said, and why it ends there; a list that was cut has no calls in it."""
        if self.name:
            return _saying([_call(self.name, response)]), reason
        try:
            chosen = json.loads(response)
            calls = [_call(one[NAME], json.dumps(one[ARGUMENTS])) for one in chosen]
        except (ValueError, LookupError, TypeError):
            return {"role": "assistant", "content": response}, reason
        return _saying(calls), "tool_calls"


def read_forced(body: Body, tools: tuple[JsonObject, ...]) -> ForcedCalls | None:
    """None where the model may answer in words.

    Raises: InvalidRequest naming the key.
    """
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none"):
        return None
    functions = {str(one[NAME]): one for one in map(_function, tools)}
    if not functions:
        raise InvalidRequest("`tool_choice` forces a call: give `tools`", param="tool_choice")
    if body.get("response_format") not in (None, {"type": "text"}):
        raise InvalidRequest(
            "`response_format` is of answers in words, and `tool_choice` forces a call: leave one "
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
    assert isinstance(function, dict)  # as `read_tools` has found
    return function


def _arguments(function: JsonObject) -> JsonObject:
    """The schema of a tool's arguments; one that names none takes any."""
    given = function.get("parameters") or json.loads(ANY_OBJECT)
    if not isinstance(given, dict):
        raise InvalidRequest(
            f"`parameters` of the tool `{function[NAME]}` is not an object", param="tools"
        )
    return given


def _list_of(functions: Mapping[str, JsonObject], most: int | None) -> JsonObject:
    """Definitions of the tools' schemas go where references look for them: to the top."""
    calls: list[JsonValue] = []
    definitions: JsonObject = {}
    for name, function in functions.items():
        arguments = dict(_arguments(function))
        own = arguments.pop("$defs", {})
        for key, value in own.items() if isinstance(own, dict) else ():
            if definitions.setdefault(key, value) != value:
                raise InvalidRequest(
                    f"two of `tools` mean different things by `$defs.{key}`: call one otherwise",
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
