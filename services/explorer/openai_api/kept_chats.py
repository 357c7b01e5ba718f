"""The chats of earlier responses, which later requests of the same address may go on."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.types import JsonObject, JsonValue

MAX_KEPT_CHARACTERS = 64 << 20
"""The oldest chats are forgotten first."""


@dataclass(slots=True)
class KeptChats:
    """Chats by the response that each ends with; they are lost with the process."""

    _chats: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _num_characters: int = 0

    def keep(self, response_id: str, messages: Sequence[JsonObject]) -> None:
        """Keeps the messages up to and with a response."""
        chat = json.dumps(list(messages))
        self._chats[response_id] = chat
        self._num_characters += len(chat)
        while self._num_characters > MAX_KEPT_CHARACTERS:
            _, oldest = self._chats.popitem(last=False)
            self._num_characters -= len(oldest)

    def messages_of(self, response_id: JsonValue) -> list[JsonObject]:
        """Returns the messages; raises InvalidApiRequest for a response that is not kept."""
        if response_id is None:
            return []
        if not isinstance(response_id, str) or response_id not in self._chats:
            raise InvalidApiRequest(
                f"the response {response_id!r:.80} is not kept here (any more): send the whole "
                "history as `input`",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        messages: list[JsonObject] = json.loads(self._chats[response_id])
        return messages
