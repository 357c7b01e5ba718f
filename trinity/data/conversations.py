"""Messages and tools of a row, in the form that chat templates take.

    parse_messages([{"role": "user", "content": "1+1=", "tool_calls": None}])
    # [{"role": "user", "content": "1+1="}]

Rows say the same in several ways: a list or its JSON text, a content as text or as parts, nulls
that parquet writes for the fields of other messages, `from` and `value` as ShareGPT has them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject, JsonValue

CALLS = "tool_calls"
MEDIA_MARKS = {"<image>": "images", "<video>": "videos"}
"""Marks in a text whose pictures are in the column of that name."""
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user"}
_NULLS_WITH_MEANING = frozenset({"default", "const"})
"""Keys of a JSON schema that may be null."""


class BadConversation(UserError):
    """Messages that cannot be used; the text describes the error."""


def parse_messages(value: object) -> list[JsonObject]:
    """Returns the messages of a column.

    Raises: BadConversation.
    """
    parsed = _parsed(value)
    if not isinstance(parsed, list) or not parsed:
        raise BadConversation("not a list of messages")
    return [_message(message, place) for place, message in enumerate(parsed)]


def holds_messages(value: object) -> bool:
    """Returns True if a prompt's column holds messages, as a list or as its JSON text."""
    if not isinstance(value, str):
        return isinstance(value, list)
    if not value.lstrip().startswith("[") or '"role"' not in value:
        return False
    try:
        found = _parsed(value)
    except BadConversation:
        return False
    return isinstance(found, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in found
    )


def parse_tools(value: object) -> list[JsonObject]:
    """Returns the tools of a column, empty if it is null or empty.

    Raises: BadConversation.
    """
    if value is None or value == "":
        return []
    tools = _parsed(value)
    if not isinstance(tools, list):
        raise BadConversation("not a list of JSON schemas")
    plain = [without_nulls(tool) for tool in tools]
    found: list[JsonObject] = [tool for tool in plain if isinstance(tool, dict)]
    if len(found) < len(tools):
        raise BadConversation("not a list of JSON schemas")
    return found


def without_nulls(value: JsonValue) -> JsonValue:
    """Returns a tool's schema without the nulls that stand for fields of other tools."""
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_nulls(part)
        for key, part in value.items()
        if part is not None or key in _NULLS_WITH_MEANING
    }


def last_user_text(messages: Sequence[JsonObject]) -> str:
    """Returns the text of the last message of the user; without one, that of the last message."""
    by_user = [message for message in messages if message["role"] == "user"]
    return str([*messages, *by_user][-1].get("content") or "")


def media_column(text: str, row: Mapping[str, object]) -> str | None:
    """Returns the column whose pictures a text refers to, if there are any."""
    named = (column for mark, column in MEDIA_MARKS.items() if mark in text)
    return next((column for column in named if row.get(column)), None)


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadConversation(f"no JSON ({error})") from error


def _message(value: object, place: int) -> JsonObject:
    if isinstance(value, dict) and "role" not in value and isinstance(value.get("from"), str):
        value = _of_sharegpt(value, place)
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise _no_message(place)
    message: JsonObject = {key: part for key, part in value.items() if part is not None}
    if not message.get(CALLS):
        message.pop(CALLS, None)
        if "content" not in message:
            raise _no_message(place)
    else:
        message[CALLS] = [_with_parsed(call, of) for call, of in functions_of(message)]
    # Some templates recognize a tool call by a null content.
    content = message.get("content")
    return message | {"content": _text(content, place) if isinstance(content, list) else content}


def functions_of(message: Mapping[str, Any]) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yields the calls of a message, each with its function: a part of it, or the call itself."""
    calls = message.get(CALLS)
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield call, function


def with_arguments(call: JsonObject, function: JsonObject, arguments: JsonValue) -> JsonObject:
    """Returns a call with other arguments."""
    changed: JsonObject = {**function, "arguments": arguments}
    return {**call, "function": changed} if "function" in call else changed


def _with_parsed(call: JsonObject, function: JsonObject) -> JsonObject:
    """Returns a call with its arguments as an object, which templates write as JSON themselves.

    Objects lose the nulls that stand for arguments of other calls; a JSON text keeps its own.
    """
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return with_arguments(call, function, without_nulls(arguments or {}))
    try:
        return with_arguments(call, function, json.loads(arguments))
    except (ValueError, RecursionError):
        return call


def _of_sharegpt(value: JsonObject, place: int) -> JsonObject:
    by = str(value["from"])
    if by not in SHAREGPT_ROLES:
        known = ", ".join(SHAREGPT_ROLES)
        raise BadConversation(f"message {place} is from {by!r}, none of {known}: give it a `role`")
    return {"role": SHAREGPT_ROLES[by], "content": value.get("value")}


def _no_message(place: int) -> BadConversation:
    return BadConversation(f"message {place} has no `role`, or neither `content` nor `tool_calls`")


def _text(parts: Sequence[JsonValue], place: int) -> str:
    """Returns the text of a content that is given as parts."""
    return "".join(_text_of_part(part, place) for part in parts)


def _text_of_part(part: JsonValue, place: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise BadConversation(
        f"message {place} has a part of type {str(kind)!r}, and prompts here are text alone"
    )
