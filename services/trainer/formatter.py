"""Rows of training data as tokens: the chat template's text, trained on from the last answer on."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from services.trainer.rows import TrainRow
from trinity.config.data_format import FormatConfig
from trinity.errors import UserError
from trinity.types import JsonObject

Message = dict[str, object]
MAX_CACHED_ROWS = 200_000


class SftFormatter:
    """Turns rows into sequences whose mask covers the last message's answer, end token included.

    Prompt and answer are tokenised apart, as in a rollout: the prompt ends where the answer begins.
    """

    def __init__(
        self,
        *,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: frozenset[int],
        row_format: FormatConfig,
        max_length: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._format = row_format
        self._max_length = max_length
        self._cache: dict[int, tuple[list[int], int]] = {}

    def __call__(self, row: JsonObject, *, index: int, position: int, weight: float) -> TrainRow:
        """The row's tokens, cut at the longest length.

        Raises: UserError naming the row and what it lacks.
        """
        if index not in self._cache:
            encoded = self._encode(row, index)
            if len(self._cache) < MAX_CACHED_ROWS:
                self._cache[index] = encoded
        else:
            encoded = self._cache[index]
        tokens = encoded[0][: self._max_length]
        prompt_length = min(encoded[1], self._max_length)
        response_length = len(tokens) - prompt_length
        return TrainRow(
            position=position,
            tokens=np.asarray(tokens, dtype=np.int32),
            prompt_length=prompt_length,
            mask=np.ones(response_length, dtype=np.bool_),
            old_logprobs=np.zeros(response_length, dtype=np.float32),
            advantages=np.zeros(response_length, dtype=np.float32),
            weight=weight,
            is_truncated=len(encoded[0]) > self._max_length,
        )

    def _encode(self, row: JsonObject, index: int) -> tuple[list[int], int]:
        """All tokens, and how many of them are prompt."""
        messages = self._messages(row, index)
        prompt = self._render(messages[:-1], with_answer_to_come=True)
        text = self._render(messages, with_answer_to_come=False)
        if not text.startswith(prompt):
            raise UserError(
                f"row {index} of the training data cannot be split into prompt and answer: the "
                "chat template writes the prompt otherwise once the answer follows"
            )
        answer = self._cut_after_end(self._tokens(text[len(prompt) :]))
        prompt_tokens = self._tokens(prompt)
        return prompt_tokens + answer, len(prompt_tokens)

    def _messages(self, row: JsonObject, index: int) -> list[Message]:
        form = self._format
        if form.prompt_type == "messages":
            messages = _column(row, form.messages_key, index)
            parsed = json.loads(messages) if isinstance(messages, str) else messages
            if not isinstance(parsed, list) or not parsed:
                raise UserError(
                    f"row {index}, column {form.messages_key!r}: not a list of messages"
                )
            return parsed
        system = form.system_prompt
        if form.system_prompt_key is not None:
            system = str(_column(row, form.system_prompt_key, index))
        turns = [
            {"role": "user", "content": _column(row, form.prompt_key, index)},
            {"role": "assistant", "content": _column(row, form.response_key, index)},
        ]
        return [{"role": "system", "content": system}, *turns] if system else turns

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


def load_formatter(
    model_directory: Path, *, chat_template: str | None, row_format: FormatConfig, max_length: int
) -> SftFormatter:
    """A formatter with the model's tokenizer.

    Raises: UserError when the model has no tokenizer or no chat template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_directory)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the tokenizer in {model_directory} cannot be read: {str(error).splitlines()[0]}"
        ) from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {model_directory} has no chat template: "
            "give `model.chat_template_path`"
        )
    return SftFormatter(
        tokenizer=tokenizer,
        end_tokens=_end_tokens(model_directory, tokenizer),
        row_format=row_format,
        max_length=max_length,
    )


def _end_tokens(model_directory: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    ends = {tokenizer.eos_token_id}
    if (model_directory / "generation_config.json").exists():
        configured = GenerationConfig.from_pretrained(model_directory).eos_token_id
        ends |= set(configured) if isinstance(configured, list) else {configured}
    return frozenset(end for end in ends if end is not None)


def _column(row: JsonObject, key: str, index: int) -> object:
    if key not in row:
        raise UserError(
            f"row {index} of the training data has no column {key!r}; "
            f"it has {', '.join(sorted(row))}"
        )
    return row[key]
