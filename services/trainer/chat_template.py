"""A chat template for training data: errors name the row that the template refuses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from trinity.errors import UserError

Message = dict[str, object]
Tools = list[object]
Span = tuple[int, int]
"""Start and end of a range of characters; the end is exclusive."""

MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
STAND_IN = "7c1b0standin4e92d"
NOT_RENDERED = (TemplateError, TypeError, ValueError, LookupError)
"""Exceptions that templates raise for messages they do not expect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages of a row, or a prefix of them."""

    index: int
    """The row's index."""
    messages: Sequence[Message]
    tools: Tools | None = None

    @property
    def answers(self) -> list[int]:
        """Indexes of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

    def until(self, place: int) -> "Conversation":
        """Returns the messages before that one."""
        return replace(self, messages=self.messages[:place])

    def followed_by(self, messages: Sequence[Message]) -> "Conversation":
        """Returns the conversation with more messages at its end."""
        return replace(self, messages=[*self.messages, *messages])

    def with_stand_in(self, place: int) -> "Conversation":
        """Returns the conversation with the text of that message replaced by a stand-in."""
        other: Message = {"role": self.messages[place]["role"], "content": STAND_IN}
        return replace(self, messages=[*self.messages[:place], other, *self.messages[place + 1 :]])


class ChatTemplate:
    """A tokenizer's chat template with the switches that are set.

    template.text(conversation.until(3), with_answer_to_come=True)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, switches: Mapping[str, bool]) -> None:
        self._tokenizer = tokenizer
        self._switches = dict(switches)

    def text(self, conversation: Conversation, *, with_answer_to_come: bool = False) -> str:
        """Renders the conversation as the model reads it.

        Raises: UserError when the template refuses it.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                list(conversation.messages),
                tools=conversation.tools,
                tokenize=False,
                add_generation_prompt=with_answer_to_come,
                **self._switches,
            )
        except NOT_RENDERED as error:
            raise _refused(conversation, error) from error
        assert isinstance(text, str)
        return text

    def marks_answers(self, conversation: Conversation) -> bool:
        """Returns True if the template marks what the assistant generates by `{% generation %}`."""
        return MARK.search(self._template(conversation)) is not None

    def marked(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """Renders the conversation as the model reads it, with the spans that are marked.

        Raises: UserError when the template refuses it.
        """
        try:
            (text,), (spans,) = render_jinja_template(
                [list(conversation.messages)],
                tools=conversation.tools,
                chat_template=self._template(conversation),
                return_assistant_tokens_mask=True,
                **{**self._tokenizer.special_tokens_map, **self._switches},
            )
        except NOT_RENDERED as error:
            raise _refused(conversation, error) from error
        return text, spans

    def _template(self, conversation: Conversation) -> str:
        template: str = self._tokenizer.get_chat_template(None, conversation.tools)
        return template


def _refused(conversation: Conversation, error: Exception) -> UserError:
    return UserError(
        f"row {conversation.index}: the chat template refuses it ({' '.join(str(error).split())}): "
        "correct its messages, or set `format.chat_template`"
    )
