"""Renders and tokenizes conversations, with the spans of the assistant's answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from trinity.errors import UserError
from trinity.json_values import JsonObject

Message = dict[str, object]
Tools = list[object]
Span = tuple[int, int]
"""Start and end of a range of characters; the end is exclusive."""

GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
PLACEHOLDER = "7c1b0standin4e92d"
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

    def messages_before(self, place: int) -> "Conversation":
        """Returns the messages before that one."""
        return replace(self, messages=self.messages[:place])

    def with_messages(self, messages: Sequence[Message]) -> "Conversation":
        """Returns the conversation with more messages at its end."""
        return replace(self, messages=[*self.messages, *messages])

    def with_placeholder(self, place: int) -> "Conversation":
        """Returns the conversation with the text of that message replaced by a placeholder."""
        other: Message = {"role": self.messages[place]["role"], "content": PLACEHOLDER}
        return replace(self, messages=[*self.messages[:place], other, *self.messages[place + 1 :]])


class ChatTemplate:
    """A tokenizer's chat template with the variables that are set.

    template.text(conversation.messages_before(3), with_answer_to_come=True)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: JsonObject) -> None:
        self._tokenizer = tokenizer
        self._variables = dict(variables)

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
                **self._variables,
            )
        except NOT_RENDERED as error:
            raise _refused(conversation, error) from error
        assert isinstance(text, str)
        return text

    def marks_answers(self, conversation: Conversation) -> bool:
        """Returns True if the template marks what the assistant generates by `{% generation %}`."""
        return GENERATION_TAG.search(self._template(conversation)) is not None

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
                **{**self._tokenizer.special_tokens_map, **self._variables},
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


def find_assistant_spans(
    template: ChatTemplate, conversation: Conversation
) -> tuple[str, list[Span]]:
    """Returns the text of a conversation that ends with an answer, and the spans of its answers.

    A template that marks answers by `{% generation %}` is trusted. Otherwise an answer begins where
    the prompt that the model is given ends, and reaches to the end of the text of the messages up
    to it; this requires that both are prefixes of the whole text. They are not where the template
    writes an earlier turn differently from the last one, as templates do that drop the thoughts of
    earlier turns. An earlier answer is then the part of the text that changes when a placeholder
    replaces it: the text before and after it belongs to the other messages, in any form. Text with
    which the template closes a turn belongs to the answer, where it follows it.

    Raises: UserError when the template does not let answers be told from the text around them.
    """
    if template.marks_answers(conversation):
        whole, spans = template.marked(conversation)
        return whole, _check_order(spans, conversation)
    whole = template.text(conversation)
    spans = [_span(template, conversation, place, whole) for place in conversation.answers]
    return whole, _check_order(spans, conversation)


def _span(template: ChatTemplate, conversation: Conversation, place: int, whole: str) -> Span:
    before = template.text(conversation.messages_before(place), with_answer_to_come=True)
    through = template.text(conversation.messages_before(place + 1))
    if through.startswith(before) and whole.startswith(through):
        return len(before), len(through)
    is_last = place == len(conversation.messages) - 1
    span = None if is_last else _span_by_placeholder(template, conversation, place, whole)
    if span is None:
        raise _ambiguous_answer_error(conversation, f"the answer in message {place}")
    return span


def _span_by_placeholder(
    template: ChatTemplate, conversation: Conversation, place: int, whole: str
) -> Span | None:
    try:
        parts = template.text(conversation.with_placeholder(place)).split(PLACEHOLDER)
        as_last = template.text(
            conversation.messages_before(place + 1).with_placeholder(place)
        ).split(PLACEHOLDER)
    except UserError:  # e.g. the template wants a tool call before a tool's answer
        return None
    if len(parts) != 2 or len(as_last) != 2:
        return None
    before, after = parts
    start, end = len(before), len(whole) - len(after)
    if start > end or not (whole.startswith(before) and whole.endswith(after)):
        return None
    closing = as_last[1].rstrip()
    return start, end + len(closing) if after.startswith(closing) else end


def _check_order(spans: list[Span], conversation: Conversation) -> list[Span]:
    ends = [0, *(end for _, end in spans)]
    if any(start < end for (start, _), end in zip(spans, ends, strict=False)):
        raise _ambiguous_answer_error(conversation, "one answer")
    return spans


def _ambiguous_answer_error(conversation: Conversation, what: str) -> UserError:
    return UserError(
        f"row {conversation.index}: {what} cannot be told from the text around it, as the chat "
        "template writes that text differently once the answer is there: set "
        "`format.enable_thinking` as the answers were written, or `format.chat_template` to a "
        "template with {% generation %} around what the assistant writes"
    )


class Encoded(NamedTuple):
    """A row's tokens."""

    tokens: list[int]
    prompt_length: int
    """Number of tokens before the first that is trained on."""
    mask: list[bool] | None = None
    """True for those of the remaining tokens that are trained on; None means all."""


class ChatEncoder:
    """A tokenizer with the tokens that end an answer, and the template's variables.

    tokens, prompt_length, _ = chat.encode(prompt, messages[-1:])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: frozenset[int],
        variables: JsonObject | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._template = ChatTemplate(tokenizer, variables or {})

    def encode(self, prompt: Conversation, answer: Sequence[Message]) -> Encoded:
        """Encodes a prompt and its answer; the prompt ends where the answer begins.

        Raises: UserError when the template does not let prompt and answer be separated.
        """
        before = self._template.text(prompt, with_answer_to_come=True)
        text = self._template.text(prompt.with_messages(answer))
        if not text.startswith(before):
            raise UserError(
                f"row {prompt.index} cannot be split into prompt and answer: the chat template "
                "writes the prompt differently once the answer follows: set "
                "`format.enable_thinking` as the answers were written, or `format.chat_template`"
            )
        prompt_tokens = self._tokens(before)
        trained, _ = self._split_at_end_token(self._tokens(text[len(before) :]))
        return Encoded(prompt_tokens + self._ended(trained), len(prompt_tokens))

    def encode_turns(self, conversation: Conversation) -> Encoded:
        """Encodes a conversation to train on all its answers, with everything between them masked.

        The tokens are those of the whole text, up to the last answer. Each answer is trained on as
        it stands in that text: a template that drops the thoughts of earlier turns drops them here
        too, as it does where the model is asked for the last answer. An end token that follows an
        answer belongs to it, also where it opens the next turn. Where the template ends no answer
        with an end token, the last one gets the tokenizer's.

        Raises: UserError when the template does not let answers be told from the text around them.
        """
        last = conversation.answers[-1]
        text, spans = find_assistant_spans(self._template, conversation.messages_before(last + 1))
        tokens: list[int] = []
        mask: list[bool] = []
        done, after_end = 0, list[int]()
        for start, end in spans:
            untrained = after_end + self._tokens(text[done:start])
            trained, after_end = self._split_at_end_token(self._tokens(text[start:end]))
            if end == spans[-1][1]:
                trained = self._ended(trained)
            mask += self._ends(tokens, untrained) + [True] * len(trained)
            tokens += untrained + trained
            done = end
        if True not in mask:
            raise UserError(
                f"row {conversation.index}: the chat template marks nothing of it as generated: "
                "set `format.chat_template`"
            )
        first = mask.index(True)
        return Encoded(tokens, first, mask[first:])

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _ends(self, before: list[int], between: list[int]) -> list[bool]:
        """Returns the mask of tokens between answers: true for one that ends the answer before."""
        is_end = bool(before and between) and between[0] in self._end_tokens
        ends_answer = is_end and before[-1] not in self._end_tokens
        return [ends_answer and place == 0 for place in range(len(between))]

    def _says(self, tokens: list[int]) -> bool:
        return bool(str(self._tokenizer.decode(tokens)).strip())

    def _ended(self, answer: list[int]) -> list[int]:
        """Appends the tokenizer's end token to a last answer that the template does not end."""
        end = self._tokenizer.eos_token_id
        is_ended = bool(answer) and answer[-1] in self._end_tokens
        return answer if is_ended or not isinstance(end, int) else [*answer, end]

    def _split_at_end_token(self, answer: list[int]) -> tuple[list[int], list[int]]:
        """Splits off what follows the end token: templates add line breaks that no rollout sees.

        Some write another end token behind these.
        """
        ends = [place for place, token in enumerate(answer) if token in self._end_tokens]
        while len(ends) > 1 and not self._says(answer[ends[-2] + 1 : ends[-1]]):
            ends.pop()
        end = ends[-1] + 1 if ends else len(answer)
        return answer[:end], answer[end:]
