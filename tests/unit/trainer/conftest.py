"""A tokenizer of characters, and formatters with it; most tests beside need neither."""

from typing import TYPE_CHECKING

import pytest

from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.schema.data import FormatConfig
from trinity.config.schema.model import merge_template_kwargs
from trinity.runtime.json_values import JsonObject

if TYPE_CHECKING:  # it imports torch
    from transformers import PreTrainedTokenizerFast

    from services.trainer.data.encoders import Formatter
    from tests.unit.trainer.formatting import Load


@pytest.fixture(scope="session")
def tokenizer() -> "PreTrainedTokenizerFast":
    from tests.unit.trainer.formatting import make_tokenizer

    return make_tokenizer()


@pytest.fixture(scope="session")
def formatter_of(
    tokenizer: "PreTrainedTokenizerFast", tmp_path_factory: pytest.TempPathFactory
) -> "Load":
    from services.trainer.data.encoders import load_formatter

    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(directory)

    def load(
        schema: RowSchema = "sft",
        max_length: int = 64,
        model_template: str | None = None,
        model_thinks: bool | None = None,
        model_variables: JsonObject | None = None,
        **row_format: object,
    ) -> "Formatter":
        return load_formatter(
            directory,
            name="rows",
            schema=schema,
            chat_template=model_template,
            row_format=FormatConfig.model_validate({"prompt_type": "plaintext", **row_format}),
            max_length=max_length,
            template_kwargs=merge_template_kwargs(model_variables or {}, model_thinks),
        )

    return load
