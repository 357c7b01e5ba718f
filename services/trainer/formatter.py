"""Rows of training data as rows to train on; each is tokenised once."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from services.trainer.chat_text import ChatText, Encoded
from services.trainer.encoders import AnswerEncoder, Encoder, PairEncoder, TextEncoder
from services.trainer.rows import PairSide, TrainRow
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.data_format import FormatConfig
from trinity.errors import UserError
from trinity.types import JsonObject

MAX_CACHED_ROWS = 200_000
PAIR: tuple[PairSide, PairSide] = ("chosen", "rejected")


class Formatter:
    """Gives one row to train on, or the two of a pair, for each row of data."""

    def __init__(self, encoder: Encoder, *, name: str, max_length: int) -> None:
        self._encoder = encoder
        self._name = name
        self._max_length = max_length
        self._cache: dict[int, Sequence[Encoded]] = {}

    def __call__(
        self, row: JsonObject, *, index: int, position: int, weight: float
    ) -> Sequence[TrainRow]:
        """The row's tokens, cut at the longest length.

        Raises: UserError naming the data, the row and what it lacks.
        """
        encoded = self._cache.get(index)
        if encoded is None:
            encoded = self._encode(row, index)
            if len(self._cache) < MAX_CACHED_ROWS:
                self._cache[index] = encoded
        sides = PAIR if len(encoded) == len(PAIR) else (None,)
        return [
            self._row(one, side=side, position=position, weight=weight)
            for one, side in zip(encoded, sides, strict=True)
        ]

    def _encode(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        try:
            return self._encoder(row, index)
        except UserError as error:
            raise UserError(
                f"training data `{self._name}`: {error} (rows and messages count from 0)"
            ) from error

    def _row(
        self, encoded: Encoded, *, side: PairSide | None, position: int, weight: float
    ) -> TrainRow:
        all_tokens, num_untrained, mask = encoded
        tokens = all_tokens[: self._max_length]
        prompt_length = min(num_untrained, self._max_length)
        response_length = len(tokens) - prompt_length
        is_trained = [True] * response_length if mask is None else mask[:response_length]
        return TrainRow(
            position=position,
            tokens=np.asarray(tokens, dtype=np.int32),
            prompt_length=prompt_length,
            mask=np.asarray(is_trained, dtype=np.bool_),
            rollout_logprobs=np.zeros(response_length, dtype=np.float32),
            advantages=np.zeros(response_length, dtype=np.float32),
            weight=weight,
            side=side,
            is_truncated=len(all_tokens) > self._max_length,
        )


def load_formatter(
    model_directory: Path,
    *,
    name: str,
    schema: RowSchema,
    chat_template: str | None,
    row_format: FormatConfig,
    max_length: int,
    enable_thinking: bool | None = None,
) -> Formatter:
    """A formatter with the model's tokenizer; training data among rollouts is formatted as for sft.

    The name is the data's own, for what is said of its rows.

    Raises: UserError when the model has no tokenizer or no chat template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_directory)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the tokenizer in {model_directory} cannot be read: {str(error).splitlines()[0]}"
        ) from error
    if schema == "cpt":
        return Formatter(TextEncoder(tokenizer, row_format), name=name, max_length=max_length)
    tokenizer.chat_template = row_format.chat_template or chat_template or tokenizer.chat_template
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {model_directory} has no chat template: "
            "give `model.chat_template_path`"
        )
    own = row_format.enable_thinking
    thinking = enable_thinking if own is None else own
    switches = {} if thinking is None else {"enable_thinking": thinking}
    chat = ChatText(tokenizer, _end_tokens(model_directory, tokenizer), switches)
    encoder = PairEncoder(chat, row_format) if schema == "dpo" else AnswerEncoder(chat, row_format)
    return Formatter(encoder, name=name, max_length=max_length)


def _end_tokens(model_directory: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    ends = {tokenizer.eos_token_id}
    if (model_directory / "generation_config.json").exists():
        configured = GenerationConfig.from_pretrained(model_directory).eos_token_id
        ends |= set(configured) if isinstance(configured, list) else {configured}
    return frozenset(end for end in ends if end is not None)
