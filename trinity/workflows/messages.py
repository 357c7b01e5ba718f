"""Chat messages, and the forms that chat templates take of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from trinity.data.images import is_image_part, parts_of
from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue


class Message(TypedDict):
    """One message of a chat, in the form that chat templates take."""

    role: str
    content: str
    name: NotRequired[str]
    tool_calls: NotRequired[JsonValue]
    """Functions that the assistant called, with arguments as objects."""
    tool_call_id: NotRequired[str]
    """The call that a tool's message answers."""
    reasoning_content: NotRequired[str]
    """The thoughts of the assistant before its answer."""


def as_mapping(message: Any) -> Mapping[str, Any]:
    """Returns a message as a dictionary: clients of OpenAI's API give objects, as their calls.

    Raises: UserError for anything else.
    """
    dump = getattr(message, "model_dump", None)
    plain = dump(exclude_none=True) if callable(dump) else message
    if not isinstance(plain, Mapping):
        raise _no_message(message)
    calls = plain.get("tool_calls")
    if not calls or (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        return plain
    return {**plain, "tool_calls": _calls_of(plain)}


def as_mappings(messages: Sequence[Any]) -> list[Message]:
    """Returns messages as dictionaries, of which objects of clients are made some."""
    return cast(list[Message], [as_mapping(message) for message in messages])


def role_of(message: Any) -> str:
    """Returns who says a message.

    Raises: UserError if it does not say so.
    """
    role = as_mapping(message).get("role")
    if not isinstance(role, str):
        raise _no_message(message)
    return role


def _no_message(message: object) -> UserError:
    return UserError(
        f"a message of a chat is {type(message).__name__} {message!r:.60}: give a dictionary with "
        "`role` and `content`"
    )


def content_of(message: Any) -> str:
    """Returns the text of a message, whose content may be null, missing or in parts."""
    content = as_mapping(message).get("content")
    if isinstance(content, list | tuple):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(str(text) for text in texts if text is not None)
    return "" if content is None else str(content)


def for_template(message: Any) -> Any:
    """Returns a message as chat templates take it: arguments of calls as objects, and a text.

    The content of one with images stays in parts.
    """
    given = as_mapping(message)
    has_images = any(map(is_image_part, parts_of(given.get("content"))))
    plain = {**given, "content": given["content"] if has_images else content_of(given)}
    if given.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in _calls_of(given)]
    return plain


def names_of_calls(message: Any) -> list[str]:
    """Returns the functions that a message calls; an empty text for a call without a name."""
    given = as_mapping(message)
    functions = [call.get("function", call) for call in _calls_of(given) if isinstance(call, dict)]
    if isinstance(legacy := given.get("function_call"), dict):
        functions.append(legacy)
    return [str(of.get("name") or "") if isinstance(of, dict) else "" for of in functions]


def values_of_calls(message: Any) -> list[str]:
    """Returns the texts and whole numbers that a message passes to functions, at any depth.

    Arguments that are not JSON are skipped.
    """
    plain = for_template(message)
    calls = [*_calls_of(plain), plain.get("function_call")]
    functions = [call.get("function", call) for call in calls if isinstance(call, dict)]
    return [
        value
        for function in functions
        if isinstance(function, dict)
        if not isinstance(function.get("arguments"), str)
        for value in _leaves(function.get("arguments"))
    ]


def _leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for own in value.values() for leaf in _leaves(own)]
    if isinstance(value, list | tuple):
        return [leaf for own in value for leaf in _leaves(own)]
    is_simple = isinstance(value, str | int) and not isinstance(value, bool)
    return [str(value)] if is_simple else []


def _calls_of(message: Mapping[str, Any]) -> list[Any]:
    """Returns the calls of a message as dictionaries, where they can be made such."""
    calls = message.get("tool_calls") or []
    listed = list(calls) if isinstance(calls, list | tuple) else [calls]
    return [_as_dict(call) for call in listed]


def _as_dict(value: Any) -> Any:
    """Returns the dictionary that an object of a client stands for."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(exclude_none=True)
    fields = getattr(value, "__dict__", None)
    return value if fields is None else {name: _as_dict(own) for name, own in fields.items()}


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
