"""Renders and tokenizes conversations, with the spans of the assistant's answers."""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from trinity.data.chat_spans import (
    ChatTemplate,
    Conversation,
    Message,
    Span,
    find_answer,
    find_assistant_spans,
    refused,
)
from trinity.data.chat_template import NOT_RENDERED, render_with_calls
from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject


class TokenizersTemplate(ChatTemplate):
    """A tokenizer's chat template, rendered by transformers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: JsonObject) -> None:
        self._tokenizer = tokenizer
        self._own = dict(variables)
        super().__init__(self._template, {**tokenizer.special_tokens_map, **variables})

    def render(self, conversation: Conversation, with_answer_to_come: bool) -> str:
        """Renders it; raises one of NOT_RENDERED."""
        text = self._tokenizer.apply_chat_template(
            list(conversation.messages),
            tools=conversation.tools,
            tokenize=False,
            add_generation_prompt=with_answer_to_come,
            **self._own,
        )
        assert isinstance(text, str)
        return text

    def marked(self, conversation: Conversation) -> tuple[str, list[Span]] | None:
        """Returns text and spans if the template marks answers with `{% generation %}`.

        Raises: UserError when the template refuses the conversation.
        """
        if super().marked(conversation) is None:
            return None
        template, spans = self._template(conversation), list[Span]()

        def render(messages: Sequence[Message]) -> str:
            (text,), (found,) = render_jinja_template(
                [list(messages)],
                tools=conversation.tools,
                chat_template=template,
                return_assistant_tokens_mask=True,
                **{**self._tokenizer.special_tokens_map, **self._own},
            )
            spans[:] = found
            return str(text)

        try:
            text, _ = render_with_calls(render, conversation.messages, template)
        except NOT_RENDERED as error:
            raise refused(conversation, error) from error
        return text, spans

    def _template(self, conversation: Conversation) -> str:
        template: str = self._tokenizer.get_chat_template(None, conversation.tools)
        return template


class Encoded(NamedTuple):
    """A row's tokens."""

    tokens: list[int]
    prompt_length: int
    """Number of tokens before the first that is trained on."""
    mask: list[bool] | None = None
    """True for those of the remaining tokens that are trained on; None means all."""
    images: tuple[bytes, ...] = ()
    """Encoded files, in the order of their tokens."""


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
        self._template = TokenizersTemplate(tokenizer, variables or {})

    def encode(self, prompt: Conversation, answer: Sequence[Message]) -> Encoded:
        """Encodes a prompt and its answer; the prompt ends where the answer begins.

        Raises: UserError when the template does not let prompt and answer be separated.
        """
        whole = prompt.with_messages(answer)
        before, text = find_answer(self._template, whole, len(prompt.messages))
        prompt_tokens = self._tokens(before)
        trained, _ = self._split_at_end_token(self._tokens(text))
        return Encoded(prompt_tokens + self._ended(trained), len(prompt_tokens))

    def encode_turns(self, conversation: Conversation) -> Encoded:
        """Encodes a conversation to train on all its answers, with everything between them masked.

        The conversation is tokenized once, up to the last answer. Each answer is trained on as the
        template renders it there: if the template drops the reasoning of earlier turns, as it does
        in a prompt for the last answer, that reasoning is not trained on. An end token that follows
        an answer belongs to it, even if it opens the next turn. If the template ends no answer with
        an end token, the last one gets the tokenizer's.

        Raises: UserError if answers cannot be located in the template's text.
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
                f"{row_name(conversation.index)}: "
                f"the chat template marks no part of it as generated: "
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
