"""Conversations as tokens: the chat template's text, prompt and answer tokenised apart."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from trinity.errors import UserError

Message = dict[str, object]


class ChatText:
    """A tokenizer with the tokens that end an answer.

    tokens, prompt_length = chat.encode(messages[:-1], messages[-1:], index=0)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens

    def encode(
        self, prompt: Sequence[Message], answer: Sequence[Message], *, index: int
    ) -> tuple[list[int], int]:
        """All tokens and how many of them are prompt, which ends where the answer begins.

        Raises: UserError when the template does not let them be told apart.
        """
        before = self._render(prompt, with_answer_to_come=True)
        text = self._render([*prompt, *answer], with_answer_to_come=False)
        if not text.startswith(before):
            raise UserError(
                f"row {index} of the training data cannot be split into prompt and answer: the "
                "chat template writes the prompt otherwise once the answer follows"
            )
        answer_tokens = self._cut_after_end(self._tokens(text[len(before) :]))
        prompt_tokens = self._tokens(before)
        return prompt_tokens + answer_tokens, len(prompt_tokens)

    def _render(self, messages: Sequence[Message], *, with_answer_to_come: bool) -> str:
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=with_answer_to_come
        )
        assert isinstance(text, str)
        return text

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _cut_after_end(self, answer: list[int]) -> list[int]:
        """Templates write line breaks after the end token, which no rollout ever sees."""
        ends = [place for place, token in enumerate(answer) if token in self._end_tokens]
        return answer[: ends[-1] + 1] if ends else answer
