"""Reads the messages and tools of a request into the form of chat templates."""

import json

from services.explorer.openai_api.refusals import InvalidRequest
from trinity.types import JsonObject, JsonValue
from trinity.workflows.messages import Message


def read_messages(value: object) -> list[Message]:
    """Reads the messages; raises InvalidRequest naming the message."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest("`messages` is not a list with a message in it", param="messages")
    return [_message(item, f"messages[{i}]") for i, item in enumerate(value)]


def read_tools(value: object) -> tuple[JsonObject, ...]:
    """Reads the tools; raises InvalidRequest naming the tool."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest("`tools` is not a list", param="tools")
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                f"`tools[{i}]` is not a function with a name", param=f"tools[{i}].function"
            )
    return tuple(value)


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise InvalidRequest(f"`{where}` has no role", param=where)
    calls = value.get("tool_calls")
    content = value.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(part, where) for part in content)
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise InvalidRequest(f"`{where}.content` is not a text", param=f"{where}.content")
    message = Message(role=value["role"], content=content)
    if calls:
        message["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    if isinstance(value.get("tool_call_id"), str):
        message["tool_call_id"] = value["tool_call_id"]
    if isinstance(value.get("name"), str):
        message["name"] = value["name"]
    return message


def _text_of(part: object, where: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        raise InvalidRequest(
            f"`{where}.content` has a part that is not a text", param=f"{where}.content"
        )
    return str(part["text"])


def _calls(value: object, where: str) -> list[JsonValue]:
    """Parses arguments into objects, because chat templates write the JSON themselves."""
    if not isinstance(value, list):
        raise InvalidRequest(f"`{where}` is not a list", param=where)
    calls: list[JsonValue] = []
    for i, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"`{where}[{i}]` is not a function call", param=where)
        arguments = _arguments(function.get("arguments"), f"{where}[{i}].function.arguments")
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return calls


def _arguments(value: object, where: str) -> JsonValue:
    if not isinstance(value, str):
        return value if isinstance(value, dict) else {}
    try:
        found: JsonValue = json.loads(value) if value else {}
    except ValueError as error:
        raise InvalidRequest(f"`{where}` is not JSON: {error}", param=where) from error
    return found
