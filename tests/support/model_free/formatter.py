"""A formatter without a tokenizer: bytes are tokens. It takes the place of the trainer's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from services.trainer.types import TrainRow
from trinity.config.schema.data import FormatConfig
from trinity.types import JsonObject


class Formatter:
    """Makes one row of a prompt and its response."""

    def __init__(self, row_format: FormatConfig) -> None:
        self._format = row_format

    def __call__(
        self, row: JsonObject, *, index: int, position: int, weight: float
    ) -> Sequence[TrainRow]:
        """As the trainer's."""
        del index
        prompt = str(row[self._format.prompt_key]).encode()
        response = str(row[self._format.response_key]).encode()
        return [
            TrainRow(
                position=position,
                tokens=np.frombuffer(prompt + response, dtype=np.uint8).astype(np.int32),
                prompt_length=len(prompt),
                mask=np.ones(len(response), dtype=np.bool_),
                rollout_logprobs=np.zeros(len(response), dtype=np.float32),
                advantages=np.zeros(len(response), dtype=np.float32),
                weight=weight,
            )
        ]


def load_formatter(directory: Path, *, row_format: FormatConfig, **unused: object) -> Formatter:
    """Of the row's format alone."""
    del directory, unused
    return Formatter(row_format)
