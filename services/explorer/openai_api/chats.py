"""The chats that OpenAI's Responses go on from, as the turns of a session tell them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from services.explorer.openai_api.response_input import not_kept
from trinity.types import JsonObject, JsonValue
from trinity.workflows.answers import TurnNode, TurnTree

PREFIX = "resp_"


@dataclass(frozen=True, slots=True)
class SessionChats:
    """Chats by the response that each ends with: stored with its turn."""

    tree: TurnTree

    def keep(self, response_id: str, messages: Sequence[JsonObject]) -> None:
        """Does nothing: the turn is stored."""

    def messages_of(self, response_id: JsonValue) -> list[JsonObject]:
        """Returns the messages; raises InvalidApiRequest for a response that is not stored."""
        messages: list[JsonObject] = []
        name = response_id
        while name is not None:
            turn = self._turn(name)
            match None if turn is None else turn.told:
                case [dict() as said, _, {"previous": previous, "input": list() as asked}]:
                    own = [message for message in asked if isinstance(message, dict)]
                    content = said.get("content") or ""
                    messages = [*own, {**said, "content": content}, *messages]
                    name = previous
                case _:
                    raise not_kept(response_id)
        return messages

    def _turn(self, name: JsonValue) -> TurnNode | None:
        try:
            return self.tree.turns.get(str(uuid.UUID(str(name).removeprefix(PREFIX))))
        except ValueError:
            return None
