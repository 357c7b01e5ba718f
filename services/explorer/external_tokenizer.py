"""A stand-in tokenizer for models that others serve."""

import hashlib
import json
from collections.abc import Sequence

from trinity.errors import UserError
from trinity.types import JsonObject
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

END_TOKEN = 256
"""Greater than any byte."""


class ExternalTokenizer:
    """Uses UTF-8 bytes as tokens; a prompt's are its messages as JSON, to be sent unchanged.

    They stand for the model's own tokens in experiences that are never trained on.
    """

    template_sha256 = hashlib.sha256(b"messages of a model that others serve").digest()

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Encodes the messages; the model continues a last one of the assistant.

        Raises: UserError for tools, which would have to be in the model's chat template.
        """
        if tools:
            raise UserError("a model that others serve is asked without `tools`")
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        body = json.dumps(list(messages), ensure_ascii=False)
        return Prompt(text=text, token_ids=list(body.encode(errors="replace")))

    def encode(self, text: str) -> Prompt:
        """Encodes a text as one user message."""
        return self.encode_chat([Message(role="user", content=text)])

    def decode(self, token_ids: list[int]) -> str:
        """Decodes an answer, without its end token."""
        return bytes(token for token in token_ids if token < END_TOKEN).decode(errors="replace")


def messages_of(prompt_token_ids: list[int]) -> list[Message]:
    """Returns the messages that a prompt was made of.

    Raises: UserError for other tokens, such as a workflow's own.
    """
    try:
        messages: list[Message] = json.loads(bytes(prompt_token_ids))
    except ValueError as error:
        raise UserError("a model that others serve is asked with text, not with tokens") from error
    return messages


def tokens_of(answer: str) -> list[int]:
    """Returns the tokens of an answer with an end token, which even an empty one has."""
    return [*answer.encode(errors="replace"), END_TOKEN]
