"""Encodes rows of training data as tokens: an encoder for each kind, and their formatter."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from services.trainer.batch_rows import BatchImages
from services.trainer.data.chat import ChatEncoder, Encoded
from services.trainer.types import PairSide, TrainRow
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.schema.data import FormatConfig
from trinity.config.schema.model import merge_template_kwargs
from trinity.config.training_rows import (
    PromptRow,
    label_of,
    read_cpt_row,
    read_dpo_row,
    read_kto_row,
    read_sft_row,
)
from trinity.data.chat_spans import Conversation, Message, Tools
from trinity.data.conversations import FAMILIES
from trinity.data.images import images_of
from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.types import JsonObject

logger = logging.getLogger(__name__)

MAX_CACHED_TOKENS = 25_000_000
"""Limits the cache to 125 MB in each rank, masks included."""
PAIR: tuple[PairSide, PairSide] = ("chosen", "rejected")


class Encoder(Protocol):
    """Returns one sequence for a row, or the two of a pair, the chosen one first."""

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]: ...


class SftEncoder:
    """Encoder for sft: trains on the last message, all the assistant's, or the response."""

    def __init__(
        self, chat: ChatEncoder, row_format: FormatConfig, images: BatchImages | None = None
    ) -> None:
        self._chat = chat
        self._format = row_format
        self._images = images

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and the missing part."""
        form = self._format
        read = read_sft_row(row, form, row_name(index))
        if form.prompt_type == "messages" and form.enable_concatenated_multi_turn:
            turns = self._chat.encode_turns(_conversation(read.conversation, read, index))
            return [_with_images(turns, read.conversation, self._images)]
        prompt = _conversation(read.prompt, read, index)
        return [
            _with_images(self._chat.encode(prompt, _plain(answer)), read.prompt, self._images)
            for answer in read.answers
        ]


class DpoEncoder:
    """Encoder for dpo: a better and a worse answer to the same prompt, both trained on."""

    def __init__(
        self, chat: ChatEncoder, row_format: FormatConfig, images: BatchImages | None = None
    ) -> None:
        self._chat = chat
        self._format = row_format
        self._images = images

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and the missing part."""
        read = read_dpo_row(row, self._format, row_name(index))
        prompt = _conversation(read.prompt, read, index)
        return [
            _with_images(self._chat.encode(prompt, _plain(answer)), read.prompt, self._images)
            for answer in read.answers
        ]


class KtoEncoder:
    """Encoder for kto: an answer that is labelled good or bad."""

    def __init__(
        self, chat: ChatEncoder, row_format: FormatConfig, images: BatchImages | None = None
    ) -> None:
        self._chat = chat
        self._format = row_format
        self._images = images

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and the missing part."""
        read = read_kto_row(row, self._format, row_name(index))
        prompt = _conversation(read.prompt, read, index)
        encoded = self._chat.encode(prompt, _plain(read.answers[0]))
        return [_with_images(encoded, read.prompt, self._images)]

    def sign_of(self, row: JsonObject, index: int) -> float:
        """Returns 1 for a good answer, -1 for a bad one."""
        return 1.0 if label_of(row, self._format, row_name(index)) else -1.0


def _conversation(messages: Sequence[JsonObject], read: PromptRow, index: int) -> Conversation:
    tools: Tools | None = list(read.tools) or None
    return Conversation(index=index, messages=_plain(messages), tools=tools)


def _with_images(
    encoded: Encoded, messages: Sequence[JsonObject], images: BatchImages | None
) -> Encoded:
    """Expands the placeholders of the messages' images.

    Raises: UserError if there are not as many of them, or the model reads text alone.
    """
    refs = images_of(messages)
    if images is None:
        if refs:
            raise UserError(
                "a message has an image, and the model reads text alone: choose one of "
                f"{', '.join(FAMILIES)}, or leave `format.image_key` out"
            )
        return encoded
    repeats_L = images.repeats(encoded.tokens, refs)
    of_prompt_L, of_rest_L = np.split(repeats_L, [encoded.prompt_length])
    return Encoded(
        tokens=np.repeat(encoded.tokens, repeats_L).tolist(),
        prompt_length=int(of_prompt_L.sum()),
        mask=None if encoded.mask is None else np.repeat(encoded.mask, of_rest_L).tolist(),
        images=images.contents(refs),
    )


def _plain(messages: Sequence[JsonObject]) -> list[Message]:
    return [dict(message) for message in messages]


class CptEncoder:
    """Encoder for cpt: a text and its end token; all but the first token is trained on."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, row_format: FormatConfig) -> None:
        self._tokenizer = tokenizer
        self._format = row_format

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and the missing part."""
        text = read_cpt_row(row, self._format, row_name(index))
        tokens: list[int] = self._tokenizer(text)["input_ids"]
        begin, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        if begin is not None and begin != end and tokens[:2] == [begin, begin]:
            tokens = tokens[1:]  # the text already begins with the tokenizer's first token
        if end is not None and tokens[-1:] != [end]:
            tokens = [*tokens, end]
        return [Encoded(tokens, min(1, len(tokens)))]


@dataclass(frozen=True, slots=True)
class _TokenizedRow:
    """A sequence to train on, cut to the maximum length."""

    tokens_L: NDArray[np.int32]
    mask_R: NDArray[np.bool_]
    """True for those of the last tokens, the response, that are trained on."""
    is_truncated: bool
    images: tuple[bytes, ...] = ()
    num_image_tokens: int = 0


class Formatter:
    """Returns one row to train on, or the two of a pair, for each row of data."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        name: str,
        max_length: int,
        sign_of: Callable[[JsonObject, int], float] | None = None,
        images: BatchImages | None = None,
    ) -> None:
        """`sign_of` tells labelled answers apart: it becomes the advantage of all their tokens."""
        self._encoder = encoder
        self._sign_of = sign_of
        self._images = images
        self._name = name
        self._max_length = max_length
        self._cache: dict[int, Sequence[_TokenizedRow]] = {}
        self._num_cached_tokens = 0

    def __call__(
        self, row: JsonObject, *, index: int, position: int, weight: float
    ) -> Sequence[TrainRow]:
        """Returns the row's tokens, cut to the maximum length.

        Raises: UserError naming the data, the row and the missing part.
        """
        sequences = self._cache.get(index)
        if sequences is None:
            sequences = [self._cut(encoded, index) for encoded in self._encode(row, index)]
            self._cache_row(index, sequences)
        sides = PAIR if len(sequences) == len(PAIR) else (None,)
        rows = [
            _row(cut, side=side, position=position, weight=weight)
            for cut, side in zip(sequences, sides, strict=True)
        ]
        if self._sign_of is None:
            return rows
        sign = self._sign_of(row, index)
        return [replace(each, advantages=each.advantages + np.float32(sign)) for each in rows]

    def _encode(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        try:
            return self._encoder(row, index)
        except UserError as error:
            raise UserError(
                f"training data `{self._name}`: {error} (messages count from 0)"
            ) from error

    def _cut(self, encoded: Encoded, index: int) -> _TokenizedRow:
        """Raises: UserError for a row whose images do not fit."""
        all_tokens, num_untrained, mask, images = encoded
        tokens = all_tokens[: self._max_length]
        num_image_tokens = 0
        if self._images is not None:
            num_image_tokens = self._images.count_tokens(np.asarray(tokens))
            if num_image_tokens < self._images.count_tokens(np.asarray(all_tokens)):
                raise UserError(
                    f"training data `{self._name}`: {row_name(index)}: its images do not fit into "
                    f"{self._max_length} tokens: make them smaller, or raise `model.max_model_len`"
                )
        response_length = max(len(tokens) - num_untrained, 0)
        is_trained = [True] * response_length if mask is None else mask[:response_length]
        return _TokenizedRow(
            tokens_L=np.asarray(tokens, dtype=np.int32),
            mask_R=np.asarray(is_trained, dtype=np.bool_),
            is_truncated=len(all_tokens) > self._max_length,
            images=images,
            num_image_tokens=num_image_tokens,
        )

    def _cache_row(self, index: int, sequences: Sequence[_TokenizedRow]) -> None:
        num_tokens = sum(len(cut.tokens_L) for cut in sequences)
        if self._num_cached_tokens + num_tokens <= MAX_CACHED_TOKENS:
            self._cache[index] = sequences
            self._num_cached_tokens += num_tokens


def _row(cut: _TokenizedRow, *, side: PairSide | None, position: int, weight: float) -> TrainRow:
    response_length = len(cut.mask_R)
    return TrainRow(
        position=position,
        tokens=cut.tokens_L,
        prompt_length=len(cut.tokens_L) - response_length,
        mask=cut.mask_R,
        rollout_logprobs=np.zeros(response_length, dtype=np.float32),
        advantages=np.zeros(response_length, dtype=np.float32),
        weight=weight,
        side=side,
        is_truncated=cut.is_truncated,
        images=cut.images,
        num_image_tokens=cut.num_image_tokens,
    )


def load_formatter(
    model_directory: Path,
    *,
    name: str,
    schema: RowSchema,
    chat_template: str | None,
    row_format: FormatConfig,
    max_length: int,
    template_kwargs: JsonObject | None = None,
    trusts_code: bool = False,
    images: BatchImages | None = None,
) -> Formatter:
    """Loads a formatter with the model's tokenizer; data among rollouts is formatted as for sft.

    The name is that of the data, for messages about its rows.

    Raises: UserError when the model has no tokenizer or no chat template.
    """
    tokenizer = _load_tokenizer(model_directory, trusts_code)
    if tokenizer.eos_token_id is None:
        logger.warning(
            "the tokenizer has no end token, so that rows are trained without one behind them, "
            "unless their template writes it: set `eos_token` in its tokenizer_config.json",
            extra={"model": str(model_directory), "data": name},
        )
    if schema == "cpt":
        return Formatter(CptEncoder(tokenizer, row_format), name=name, max_length=max_length)
    tokenizer.chat_template = row_format.chat_template or chat_template or tokenizer.chat_template
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {model_directory} has no chat template: "
            "give `model.chat_template_path`"
        )
    variables = merge_template_kwargs(template_kwargs or {}, row_format.enable_thinking)
    chat = ChatEncoder(tokenizer, _end_tokens(model_directory, tokenizer), variables)
    if schema == "kto":
        own = KtoEncoder(chat, row_format, images)
        return Formatter(own, name=name, max_length=max_length, sign_of=own.sign_of, images=images)
    kind = DpoEncoder if schema == "dpo" else SftEncoder
    encoder = kind(chat, row_format, images)
    return Formatter(encoder, name=name, max_length=max_length, images=images)


def _load_tokenizer(model_directory: Path, trusts_code: bool) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(model_directory, trust_remote_code=trusts_code)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the tokenizer in {model_directory} cannot be read: {str(error).splitlines()[0]}"
        ) from error


def _end_tokens(model_directory: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    ends = {tokenizer.eos_token_id}
    if (model_directory / "generation_config.json").exists():
        configured = GenerationConfig.from_pretrained(model_directory).eos_token_id
        ends |= set(configured) if isinstance(configured, list) else {configured}
    return frozenset(end for end in ends if end is not None)
