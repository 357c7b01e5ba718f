"""Chat messages."""

from typing import NotRequired, TypedDict

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
