"""Chat messages."""

from typing import NotRequired, TypedDict

from trinity.json_values import JsonValue


class Message(TypedDict):
    """One message of a chat, as chat templates know it."""

    role: str
    content: str
    name: NotRequired[str]
    tool_calls: NotRequired[JsonValue]
    """Of the assistant: which functions it called, arguments as objects."""
    tool_call_id: NotRequired[str]
    """Of a tool: the call that it answers."""
