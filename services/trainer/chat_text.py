"""Conversations as tokens: the chat template's text, prompt and answers tokenised apart."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from trinity.errors import UserError

Message = dict[str, object]
Tools = list[object]


class Encoded(NamedTuple):
    """A row's tokens."""

    tokens: list[int]
    prompt_length: int
    """How many come before the first that is trained on."""
    mask: list[bool] | None = None
    """Which of the others are trained on; None is all."""


class ChatText:
    """A tokenizer with the tokens that end an answer, and the template's switches.

    tokens, prompt_length, _ = chat.encode(messages[:-1], messages[-1:], index=0)
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: frozenset[int],
        switches: Mapping[str, bool] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._switches = dict(switches or {})

    def encode(
        self,
        prompt: Sequence[Message],
        answer: Sequence[Message],
        *,
        index: int,
        tools: Tools | None = None,
    ) -> Encoded:
        """The prompt ends where the answer begins.

        Raises: UserError when the template does not let them be told apart.
        """
        before = self._render(prompt, tools, with_answer_to_come=True)
        text = self._render([*prompt, *answer], tools, with_answer_to_come=False)
        prompt_tokens = self._tokens(before)
        trained, _ = self._cut_after_end(self._tokens(_rest(text, before, index)))
        return Encoded(prompt_tokens + trained, len(prompt_tokens))

    def encode_turns(
        self, messages: Sequence[Message], *, index: int, tools: Tools | None = None
    ) -> Encoded:
        """All answers of a conversation, with everything between them masked.

        Raises: UserError when there is none, or the template does not let them be told apart.
        """
        tokens: list[int] = []
        mask: list[bool] = []
        text, after_end = "", list[int]()
        for place in (i for i, one in enumerate(messages) if one.get("role") == "assistant"):
            before = self._render(messages[:place], tools, with_answer_to_come=True)
            untrained = after_end + self._tokens(_rest(before, text, index))
            text = self._render(messages[: place + 1], tools, with_answer_to_come=False)
            trained, after_end = self._cut_after_end(self._tokens(_rest(text, before, index)))
            tokens += untrained + trained
            mask += [False] * len(untrained) + [True] * len(trained)
        if True not in mask:
            raise UserError(f"row {index} of the training data has no answer of the assistant")
        first = mask.index(True)
        return Encoded(tokens, first, mask[first:])

    def _render(
        self, messages: Sequence[Message], tools: Tools | None, *, with_answer_to_come: bool
    ) -> str:
        text = self._tokenizer.apply_chat_template(
            list(messages),
            tools=tools,
            tokenize=False,
            add_generation_prompt=with_answer_to_come,
            **self._switches,
        )
        assert isinstance(text, str)
        return text

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _cut_after_end(self, answer: list[int]) -> tuple[list[int], list[int]]:
        """Templates write line breaks after the end token, which no rollout ever sees."""
        ends = [place for place, token in enumerate(answer) if token in self._end_tokens]
        end = ends[-1] + 1 if ends else len(answer)
        return answer[:end], answer[end:]


def _rest(text: str, beginning: str, index: int) -> str:
    if not text.startswith(beginning):
        raise UserError(
            f"row {index} of the training data cannot be split into prompt and answer: the "
            "chat template writes the prompt otherwise once the answer follows"
        )
    return text[len(beginning) :]
