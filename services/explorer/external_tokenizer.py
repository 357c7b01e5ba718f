"""The text of chats with a model whose tokenizer is others' business."""

import hashlib
import json
from collections.abc import Sequence

from trinity.errors import UserError
from trinity.types import JsonObject
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

END_TOKEN = 256
"""Beyond all bytes."""


class ExternalTokenizer:
    """Tokens are bytes of UTF-8: of the messages as JSON, so that they can be sent as they were.

    They stand for the model's own tokens in experiences that are never trained.
    """

    template_sha256 = hashlib.sha256(b"messages of a model that others serve").digest()

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """The messages; a last one of the assistant is the model's to go on with.

        Raises: UserError for tools, which would have to stand in its chat template.
        """
        if tools:
            raise UserError("a model that others serve is asked without `tools`")
        text = "".join(f"{one['role']}: {one['content']}\n" for one in messages)
        body = json.dumps(list(messages), ensure_ascii=False)
        return Prompt(text=text, token_ids=list(body.encode(errors="replace")))

    def encode(self, text: str) -> Prompt:
        """A text is a message of the user's."""
        return self.encode_chat([Message(role="user", content=text)])

    def decode(self, token_ids: list[int]) -> str:
        """Of an answer, without its end."""
        return bytes(one for one in token_ids if one < END_TOKEN).decode(errors="replace")


def messages_of(prompt_token_ids: list[int]) -> list[Message]:
    """What a prompt was made of.

    Raises: UserError for other tokens, such as a workflow's own.
    """
    try:
        messages: list[Message] = json.loads(bytes(prompt_token_ids))
    except ValueError as error:
        raise UserError("a model that others serve is asked with text, not with tokens") from error
    return messages


def tokens_of(answer: str) -> list[int]:
    """The answer with its end, which also an empty one has."""
    return [*answer.encode(errors="replace"), END_TOKEN]
