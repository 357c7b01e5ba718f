"""Rows of training data become tokens whose mask covers the answer and its end, nothing else."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from services.trainer.formatter import SftFormatter, load_formatter
from trinity.config.data_format import FormatConfig
from trinity.errors import UserError

TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}>{{ message['content'] }}<end>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    specials = ["<end>", "<system>", "<user>", "<assistant>"]
    characters = sorted(set("0123456789+= \nabcdefghijklmnopqrstuvwxyz"))
    vocabulary = {token: number for number, token in enumerate([*specials, *characters])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>")
    fast.add_special_tokens({"additional_special_tokens": specials[1:]})
    fast.chat_template = TEMPLATE
    return fast


def formatter_of(
    tokenizer: PreTrainedTokenizerFast, max_length: int = 64, **row_format: object
) -> SftFormatter:
    return SftFormatter(
        tokenizer=tokenizer,
        end_tokens=frozenset({tokenizer.eos_token_id}),
        row_format=FormatConfig.model_validate({"prompt_type": "plaintext", **row_format}),
        max_length=max_length,
    )


def decoded(tokenizer: PreTrainedTokenizerFast, tokens: object) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(list(tokens)))  # type: ignore[call-overload]


def test_the_mask_covers_exactly_the_answer_and_its_end(tokenizer: PreTrainedTokenizerFast) -> None:
    row = formatter_of(tokenizer)(
        {"prompt": "1+2=", "response": "3"}, index=0, position=0, weight=1.0
    )
    assert decoded(tokenizer, row.tokens[: row.prompt_length]) == "<user>1+2=<end>\n<assistant>"
    assert decoded(tokenizer, row.tokens[row.prompt_length :]) == "3<end>"
    assert row.mask.tolist() == [True, True]


def test_a_system_prompt_stands_first(tokenizer: PreTrainedTokenizerFast) -> None:
    formatter = formatter_of(tokenizer, system_prompt="add")
    row = formatter({"prompt": "1", "response": "2"}, index=0, position=0, weight=1.0)
    assert decoded(tokenizer, row.tokens).startswith("<system>add<end>\n<user>1")


def test_only_the_last_message_of_a_conversation_is_learned(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    turns = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "45")]
    messages = [{"role": role, "content": content} for role, content in turns]
    formatter = formatter_of(tokenizer, prompt_type="messages", messages_key="messages")
    row = formatter({"messages": messages}, index=0, position=0, weight=1.0)  # type: ignore[dict-item]
    assert decoded(tokenizer, row.tokens[row.prompt_length :]) == "45<end>"


def test_a_row_that_is_too_long_is_cut_and_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    formatter = formatter_of(tokenizer, max_length=10)
    row = formatter({"prompt": "1+2=", "response": "3456"}, index=0, position=0, weight=1.0)
    assert (row.length, row.mask.tolist()) == (10, [True, True])
    assert row.is_truncated


def test_a_prompt_that_is_too_long_leaves_nothing_to_learn(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    formatter = formatter_of(tokenizer, max_length=4)
    row = formatter({"prompt": "1+2=", "response": "3"}, index=0, position=0, weight=1.0)
    assert (row.length, row.mask.size) == (4, 0)


def test_a_missing_column_is_named_with_those_there_are(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match=r"row 7 .* no column 'response'; it has answer, prompt"):
        formatter_of(tokenizer)({"prompt": "1", "answer": "2"}, index=7, position=0, weight=1.0)


def test_a_directory_without_a_tokenizer_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        load_formatter(tmp_path, chat_template=None, row_format=FormatConfig(), max_length=8)
