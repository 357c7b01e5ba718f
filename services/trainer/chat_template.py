"""A chat template as training data needs it: a row that it refuses is named."""

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
"""From this character up to, and without, that one."""

MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
STAND_IN = "7c1b0standin4e92d"
NOT_RENDERED = (TemplateError, TypeError, ValueError, LookupError)
"""What templates raise at messages that are not as they expect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages of a row, or the first of them."""

    index: int
    """The row's."""
    messages: Sequence[Message]
    tools: Tools | None = None

    @property
    def answers(self) -> list[int]:
        """Which of the messages the assistant wrote."""
        return [i for i, one in enumerate(self.messages) if one["role"] == "assistant"]

    def until(self, place: int) -> "Conversation":
        """What comes before that message."""
        return replace(self, messages=self.messages[:place])

    def followed_by(self, messages: Sequence[Message]) -> "Conversation":
        """The same with more at its end."""
        return replace(self, messages=[*self.messages, *messages])

    def with_stand_in(self, place: int) -> "Conversation":
        """The same with another text in place of that message's."""
        other: Message = {"role": self.messages[place]["role"], "content": STAND_IN}
        return replace(self, messages=[*self.messages[:place], other, *self.messages[place + 1 :]])


class ChatTemplate:
    """A tokenizer's template with the switches that are set.

    template.text(conversation.until(3), with_answer_to_come=True)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, switches: Mapping[str, bool]) -> None:
        self._tokenizer = tokenizer
        self._switches = dict(switches)

    def text(self, conversation: Conversation, *, with_answer_to_come: bool = False) -> str:
        """The conversation as the model reads it.

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
        """Whether it says itself what the assistant generates, by `{% generation %}`."""
        return MARK.search(self._template(conversation)) is not None

    def marked(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """The conversation as the model reads it, and what of it is marked.

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
