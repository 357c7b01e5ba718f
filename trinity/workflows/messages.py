"""Chat messages."""

from typing import TypedDict


class Message(TypedDict):
    """One message of a chat, as chat templates know it."""

    role: str
    content: str
