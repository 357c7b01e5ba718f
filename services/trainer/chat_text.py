"""Tokenizes conversations: renders the chat template, then tokenizes prompt and answers apart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from services.trainer.answer_places import find_answers
from services.trainer.chat_template import ChatTemplate, Conversation, Message
from trinity.errors import UserError


class Encoded(NamedTuple):
    """A row's tokens."""

    tokens: list[int]
    prompt_length: int
    """Number of tokens before the first that is trained on."""
    mask: list[bool] | None = None
    """True for those of the remaining tokens that are trained on; None means all."""


class ChatText:
    """A tokenizer with the tokens that end an answer, and the template's switches.

    tokens, prompt_length, _ = chat.encode(prompt, messages[-1:])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: frozenset[int],
        switches: Mapping[str, bool] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._template = ChatTemplate(tokenizer, switches or {})

    def encode(self, prompt: Conversation, answer: Sequence[Message]) -> Encoded:
        """Encodes a prompt and its answer; the prompt ends where the answer begins.

        Raises: UserError when the template does not let prompt and answer be separated.
        """
        before = self._template.text(prompt, with_answer_to_come=True)
        text = self._template.text(prompt.followed_by(answer))
        if not text.startswith(before):
            raise UserError(
                f"row {prompt.index} cannot be split into prompt and answer: the chat template "
                "writes the prompt differently once the answer follows: set "
                "`format.enable_thinking` as the answers were written, or `format.chat_template`"
            )
        prompt_tokens = self._tokens(before)
        trained, _ = self._cut_after_end(self._tokens(text[len(before) :]))
        return Encoded(prompt_tokens + trained, len(prompt_tokens))

    def encode_turns(self, conversation: Conversation) -> Encoded:
        """Encodes a conversation to train on all its answers, with everything between them masked.

        The tokens are those of the whole text, up to the last answer. Each answer is trained on as
        it stands in that text: a template that drops the thoughts of earlier turns drops them here
        too, as it does where the model is asked for the last answer.

        Raises: UserError when the template does not let answers be told from the text around them.
        """
        last = conversation.answers[-1]
        text, spans = find_answers(self._template, conversation.until(last + 1))
        tokens: list[int] = []
        mask: list[bool] = []
        done, after_end = 0, list[int]()
        for start, end in spans:
            untrained = after_end + self._tokens(text[done:start])
            trained, after_end = self._cut_after_end(self._tokens(text[start:end]))
            tokens += untrained + trained
            mask += [False] * len(untrained) + [True] * len(trained)
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

    def _cut_after_end(self, answer: list[int]) -> tuple[list[int], list[int]]:
        """Splits off what follows the end token: templates add line breaks that no rollout sees."""
        ends = [place for place, token in enumerate(answer) if token in self._end_tokens]
        end = ends[-1] + 1 if ends else len(answer)
        return answer[:end], answer[end:]
