"""The messages and tools of a request, as chat templates know them."""

import json

from services.explorer.openai_api.refusals import InvalidRequest
from trinity.types import JsonObject, JsonValue
from trinity.workflows.messages import Message


def read_messages(given: object) -> list[Message]:
    """Raises: InvalidRequest naming the message."""
    if not isinstance(given, list) or not given:
        raise InvalidRequest("`messages` is not a list with a message in it", param="messages")
    return [_message(one, f"messages[{i}]") for i, one in enumerate(given)]


def read_tools(given: object) -> tuple[JsonObject, ...]:
    """Raises: InvalidRequest naming the tool."""
    if given is None:
        return ()
    if not isinstance(given, list):
        raise InvalidRequest("`tools` is not a list", param="tools")
    for i, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                f"`tools[{i}]` is no function with a name", param=f"tools[{i}].function"
            )
    return tuple(given)


def _message(given: object, where: str) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise InvalidRequest(f"`{where}` has no role", param=where)
    calls = given.get("tool_calls")
    content = given.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(part, where) for part in content)
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise InvalidRequest(f"`{where}.content` is not a text", param=f"{where}.content")
    message = Message(role=given["role"], content=content)
    if calls:
        message["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    if isinstance(given.get("tool_call_id"), str):
        message["tool_call_id"] = given["tool_call_id"]
    if isinstance(given.get("name"), str):
        message["name"] = given["name"]
    return message


def _text_of(part: object, where: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        raise InvalidRequest(
            f"`{where}.content` has a part that is not a text", param=f"{where}.content"
        )
    return str(part["text"])


def _calls(given: object, where: str) -> list[JsonValue]:
    """Chat templates write arguments as JSON themselves: they are given objects."""
    if not isinstance(given, list):
        raise InvalidRequest(f"`{where}` is not a list", param=where)
    calls: list[JsonValue] = []
    for i, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"`{where}[{i}]` is no call of a function", param=where)
        arguments = _arguments(function.get("arguments"), f"{where}[{i}].function.arguments")
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return calls


def _arguments(given: object, where: str) -> JsonValue:
    if not isinstance(given, str):
        return given if isinstance(given, dict) else {}
    try:
        found: JsonValue = json.loads(given) if given else {}
    except ValueError as error:
        raise InvalidRequest(f"`{where}` is not JSON: {error}", param=where) from error
    return found
