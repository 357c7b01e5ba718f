"""Chat messages, and the forms that chat templates take of them."""

import json
from typing import Any, NotRequired, TypedDict

from trinity.json_values import JsonValue


class Message(TypedDict):
    """One message of a chat, in the form that chat templates take."""

    role: str
    content: str
    name: NotRequired[str]
    tool_calls: NotRequired[JsonValue]
    """Functions that the assistant called, with arguments as objects."""
    tool_call_id: NotRequired[str]
    """The call that a tool's message answers."""


def content_of(message: Any) -> str:
    """Returns the text of a message, whose content may be null, missing or in parts."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "".join(str(text) for text in texts if text is not None)
    return "" if content is None else str(content)


def for_template(message: Any) -> Any:
    """Returns a message as chat templates take it: a text, and arguments of calls as objects."""
    plain = {**message, "content": content_of(message)}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return plain


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
