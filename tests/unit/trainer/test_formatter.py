"""Rows of training data become tokens whose mask covers the answer and its end, nothing else."""

import json
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from services.trainer.data.chat import ChatEncoder
from services.trainer.data.encoders import CptEncoder, SftEncoder, load_formatter
from tests.unit.trainer.formatting import (
    TEMPLATE,
    Load,
    answer_of,
    decoded,
    learned_of,
    make_tokenizer,
    messages_of,
    only_row,
)
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.types import JsonObject, JsonValue


def test_the_mask_covers_exactly_the_answer_and_its_end(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    row = only_row(formatter_of(), {"prompt": "1+2=", "response": "3"})
    assert decoded(tokenizer, row.tokens[: row.prompt_length]) == "<user>1+2=<end>\n<assistant>"
    assert answer_of(tokenizer, row) == "3<end>"
    assert row.mask.tolist() == [True, True]
    assert row.side is None


ENDLESS = TEMPLATE.replace("<end>", "")


def test_an_answer_that_the_template_does_not_end_gets_the_end_token(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    single = only_row(formatter_of(chat_template=ENDLESS), {"prompt": "1", "response": "2"})
    assert answer_of(tokenizer, single) == "2\n<end>"
    assert single.mask.all()
    chosen, rejected = formatter_of("dpo", chat_template=ENDLESS)(
        {"prompt": "1", "chosen": "2", "rejected": "3"}, index=0, position=0, weight=1.0
    )
    assert [answer_of(tokenizer, row)[-5:] for row in (chosen, rejected)] == ["<end>"] * 2


def test_of_several_answers_without_end_the_last_gets_it(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    turns = messages_of(("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"))
    row = only_row(
        formatter_of(
            chat_template=ENDLESS,
            prompt_type="messages",
            messages_key="messages",
            enable_concatenated_multi_turn=True,
        ),
        {"messages": turns},
    )
    assert learned_of(tokenizer, row).count("<end>") == 1
    assert learned_of(tokenizer, row).endswith("4\n<end>")


@pytest.mark.parametrize("schema", ["sft", "dpo", "cpt"])
def test_a_tokenizer_without_an_end_token_is_told(
    schema: RowSchema,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load() -> None:
        load_formatter(
            tmp_path,
            name="d",
            schema=schema,
            chat_template=None,
            row_format=FormatConfig(),
            max_length=9,
        )

    own = make_tokenizer()
    own.save_pretrained(tmp_path)
    load()
    assert not caplog.records
    own.eos_token = None
    own.save_pretrained(tmp_path)
    load()
    assert "has no end token" in caplog.text


def test_a_system_prompt_stands_first(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    row = only_row(formatter_of(system_prompt="add"), {"prompt": "1", "response": "2"})
    assert decoded(tokenizer, row.tokens).startswith("<system>add<end>\n<user>1")


@pytest.mark.parametrize(("own", "system"), [("sum", "sum"), (7, "7"), (None, "add"), ("", "add")])
@pytest.mark.parametrize("answers", [{"response": "2"}, {"chosen": "2", "rejected": "3"}])
def test_a_row_without_a_system_prompt_of_its_own_has_that_of_all(
    tokenizer: PreTrainedTokenizerFast,
    formatter_of: Load,
    own: JsonValue,
    system: str,
    answers: JsonObject,
) -> None:
    formatter = formatter_of(
        "dpo" if "chosen" in answers else "sft", system_prompt_key="rules", system_prompt="add"
    )
    row: JsonObject = {"rules": own, "prompt": "1", **answers}
    for one in formatter(row, index=0, position=0, weight=1.0):
        assert decoded(tokenizer, one.tokens).startswith(f"<system>{system}<end>\n<user>1")


def test_only_the_last_message_of_a_conversation_is_learned(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    turns = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "45")]
    messages = messages_of(*turns)
    formatter = formatter_of(prompt_type="messages", messages_key="messages")
    assert answer_of(tokenizer, only_row(formatter, {"messages": messages})) == "45<end>"


TURNS = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "45"), ("user", "6")]


def test_all_answers_of_a_conversation_are_learned_where_that_is_asked_for(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    formatter = formatter_of(
        prompt_type="messages", messages_key="messages", enable_concatenated_multi_turn=True
    )
    row = only_row(formatter, {"messages": messages_of(*TURNS)})
    assert decoded(tokenizer, row.tokens) == (
        "<user>1<end>\n<assistant>2<end>\n<user>3<end>\n<assistant>45<end>"
    )
    learned = row.tokens[row.prompt_length :][row.mask]
    assert decoded(tokenizer, learned) == "2<end>45<end>"
    assert decoded(tokenizer, row.tokens[: row.prompt_length]) == "<user>1<end>\n<assistant>"


def test_a_conversation_that_is_too_long_keeps_its_mask(formatter_of: Load) -> None:
    formatter = formatter_of(
        max_length=9,
        prompt_type="messages",
        messages_key="messages",
        enable_concatenated_multi_turn=True,
    )
    row = only_row(formatter, {"messages": messages_of(*TURNS)})
    assert (row.length, row.mask.tolist()) == (9, [True, True, False, False])


def test_a_conversation_without_an_answer_is_named(formatter_of: Load) -> None:
    formatter = formatter_of(
        prompt_type="messages", messages_key="messages", enable_concatenated_multi_turn=True
    )
    with pytest.raises(
        UserError, match=r"row 5 \(from 0\), column 'messages': .* no answer of the assistant"
    ):
        only_row(formatter, {"messages": messages_of(("user", "1"))}, index=5)


@pytest.mark.parametrize(
    ("given", "model_has", "text"),
    [
        ({}, None, "5<end>7<end>"),
        ({}, True, "5<end>17<end>"),
        ({"enable_thinking": False}, True, "5<end>07<end>"),
    ],
)
def test_data_may_have_its_own_template_and_switch(
    tokenizer: PreTrainedTokenizerFast,
    formatter_of: Load,
    given: dict[str, object],
    model_has: bool | None,
    text: str,
) -> None:
    formatter = formatter_of(
        model_template=TEMPLATE,
        model_thinks=model_has,
        chat_template=thinking_before_answer(),
        **given,
    )
    row = only_row(formatter, {"prompt": "5", "response": "7"})
    assert decoded(tokenizer, row.tokens) == text


@pytest.mark.parametrize(("own", "text"), [(None, "5<end>817<end>"), (False, "5<end>807<end>")])
def test_the_models_variables_reach_the_template_of_data(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load, own: bool | None, text: str
) -> None:
    template = thinking_before_answer().replace("<end>{%", "<end>{{ effort }}{%", 1)
    formatter = formatter_of(
        model_template=template,
        model_thinks=True,
        model_variables={"effort": 8},
        enable_thinking=own,
    )
    row = only_row(formatter, {"prompt": "5", "response": "7"})
    assert decoded(tokenizer, row.tokens) == text


def thinking_before_answer() -> str:
    """What the switch writes stands before the answer, whether it is there or still to come."""
    switch = "{% if enable_thinking is defined %}{{ '1' if enable_thinking else '0' }}{% endif %}"
    return (
        "{{ messages[0]['content'] }}<end>" + switch + "{% for one in messages[1:] %}"
        "{{ one['content'] }}<end>{% endfor %}"
    )


@pytest.mark.parametrize("tools", [[{"name": "8"}], '[{"name": "8"}]'])
def test_tools_of_a_row_are_offered_in_its_prompt(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load, tools: JsonValue
) -> None:
    formatter = formatter_of(
        prompt_type="messages",
        messages_key="messages",
        tools_key="offered",
        chat_template="{% for tool in tools or [] %}{{ tool['name'] }}{% endfor %}" + TEMPLATE,
    )
    messages = messages_of(("user", "1"), ("assistant", "2"))
    row = only_row(formatter, {"messages": messages, "offered": tools})
    assert decoded(tokenizer, row.tokens) == "8<user>1<end>\n<assistant>2<end>"
    plain = only_row(formatter, {"messages": messages}, index=1)
    assert decoded(tokenizer, plain.tokens) == "<user>1<end>\n<assistant>2<end>"
    with pytest.raises(UserError, match=r"row 2 \(from 0\), column 'offered': no JSON"):
        only_row(formatter, {"messages": messages, "offered": "x"}, index=2)


def test_a_row_that_is_too_long_is_cut_and_counted(formatter_of: Load) -> None:
    row = only_row(formatter_of(max_length=10), {"prompt": "1+2=", "response": "3456"})
    assert (row.length, row.mask.tolist()) == (10, [True, True])
    assert row.is_truncated
    whole = only_row(formatter_of(max_length=10), {"prompt": "1+2=", "response": "3"})
    assert (whole.length, whole.is_truncated) == (10, False)


def test_a_prompt_that_is_too_long_leaves_nothing_to_learn(formatter_of: Load) -> None:
    row = only_row(formatter_of(max_length=4), {"prompt": "1+2=", "response": "3"})
    assert (row.length, row.mask.size) == (4, 0)


def test_a_missing_column_is_named_with_those_there_are(formatter_of: Load) -> None:
    with pytest.raises(UserError, match=r"row 7 .* no column 'response'; it has answer, prompt"):
        only_row(formatter_of(), {"prompt": "1", "answer": "2"}, index=7)


def test_a_preference_becomes_two_neighbouring_rows_after_one_prompt(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    data: JsonObject = {"prompt": "1+2=", "chosen": "3", "rejected": "45"}
    chosen, rejected = formatter_of("dpo")(data, index=0, position=4, weight=0.5)
    assert (chosen.side, rejected.side) == ("chosen", "rejected")
    assert (chosen.position, rejected.position) == (4, 4)
    assert (chosen.weight, rejected.weight) == (0.5, 0.5)
    assert chosen.tokens[: chosen.prompt_length].tolist() == (
        rejected.tokens[: rejected.prompt_length].tolist()
    )
    assert answer_of(tokenizer, chosen) == "3<end>"
    assert answer_of(tokenizer, rejected) == "45<end>"


def test_a_preference_may_be_given_as_messages(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    data: JsonObject = {
        "messages": messages_of(("user", "1"), ("assistant", "2"), ("user", "3")),
        "better": messages_of(("assistant", "4")),
        "worse": json.dumps(messages_of(("assistant", "5"))),
    }
    keys = {"messages_key": "messages", "chosen_key": "better", "rejected_key": "worse"}
    formatter = formatter_of("dpo", prompt_type="messages", **keys)
    chosen, rejected = formatter(data, index=0, position=0, weight=1.0)
    assert decoded(tokenizer, chosen.tokens).endswith("<user>3<end>\n<assistant>4<end>")
    assert answer_of(tokenizer, rejected) == "5<end>"


def test_a_preference_without_a_worse_answer_is_named(formatter_of: Load) -> None:
    with pytest.raises(UserError, match=r"row 3 .* no column 'rejected'; it has chosen, prompt"):
        formatter_of("dpo")({"prompt": "1", "chosen": "2"}, index=3, position=0, weight=1.0)


def test_a_text_is_trained_on_from_its_second_token_to_its_end(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    row = only_row(formatter_of("cpt", prompt_key="text"), {"text": "1+2=3"})
    assert decoded(tokenizer, row.tokens) == "1+2=3<end>"
    assert (row.prompt_length, int(row.mask.sum())) == (1, 5)
    ended = only_row(formatter_of("cpt", prompt_key="text"), {"text": "1+2=3<end>"})
    assert ended.tokens.tolist() == row.tokens.tolist(), "it has its end already"


def test_a_text_that_is_too_long_loses_its_end(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    row = only_row(formatter_of("cpt", max_length=3), {"prompt": "1+2=3"})
    assert decoded(tokenizer, row.tokens) == "1+2"
    assert row.is_truncated


def test_an_empty_text_teaches_nothing(formatter_of: Load) -> None:
    assert not only_row(formatter_of("cpt"), {"prompt": ""}).mask.any()


def test_a_directory_without_a_tokenizer_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        load_formatter(
            tmp_path,
            name="rows",
            schema="sft",
            chat_template=None,
            row_format=FormatConfig(),
            max_length=8,
        )


@pytest.mark.parametrize("text", ["1+2", "<user>1+2"])
def test_a_text_begins_once_with_what_the_tokenizer_adds(text: str) -> None:
    own = make_tokenizer()
    own.bos_token = "<user>"
    begin = ("<user>", own.convert_tokens_to_ids("<user>"))
    own.backend_tokenizer.post_processor = TemplateProcessing("<user> $0", None, [begin])
    (encoded,) = CptEncoder(own, FormatConfig(prompt_key="text"))({"text": text}, 0)
    assert decoded(own, encoded.tokens) == "<user>1+2<end>"


def test_a_chat_is_what_its_template_writes_whatever_the_tokenizer_adds() -> None:
    own = make_tokenizer()
    begin = ("<tool>", own.convert_tokens_to_ids("<tool>"))
    own.backend_tokenizer.post_processor = TemplateProcessing("<tool> $0", None, [begin])
    encoder = SftEncoder(ChatEncoder(own, frozenset({0})), FormatConfig(prompt_type="plaintext"))
    (encoded,) = encoder({"prompt": "1", "response": "2"}, 0)
    assert decoded(own, encoded.tokens) == "<user>1<end>\n<assistant>2<end>"


def test_labels_become_the_sign_of_every_token(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    formatter = formatter_of("kto", response_key="completion")
    labels: list[tuple[JsonValue, float]] = [(True, 1.0), ("false", -1.0)]
    for index, (label, sign) in enumerate(labels):
        data: JsonObject = {"prompt": "1+2=", "completion": "3", "label": label}
        row = only_row(formatter, data, index)
        assert answer_of(tokenizer, row) == "3<end>"
        assert row.advantages.tolist() == [sign, sign] and row.side is None
    with pytest.raises(UserError, match=r"row 5 \(from 0\), column 'label': 'maybe' is no label"):
        only_row(formatter, {"prompt": "1", "completion": "2", "label": "maybe"}, 5)


@pytest.mark.parametrize(
    ("configured", "learned"),
    [([0, 4], "2<tool>"), (4, "2<tool>"), (None, "2<tool>\n<end>"), (2, "2<tool>\n<end>")],
)
def test_an_answer_may_end_with_any_token_that_ends_the_models_own(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, configured: JsonValue, learned: str
) -> None:
    """Token 4 is <tool>, 2 is <user>."""
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": configured}))
    formatter = load_formatter(
        tmp_path,
        name="rows",
        schema="sft",
        chat_template=TEMPLATE.replace("<end>", "<tool>"),
        row_format=FormatConfig(prompt_type="plaintext"),
        max_length=64,
    )
    row = only_row(formatter, {"prompt": "1", "response": "2"})
    assert answer_of(tokenizer, row) == learned


@pytest.mark.parametrize(
    ("said", "learned"),
    [
        ("2<end>7", "2<end>7<end>"),
        ("2<end>78", "2<end>78<end>"),
        ("2<end>7<end> ", "2<end>7<end>"),
        ("2<end><end>", "2<end>"),
    ],
)
def test_an_end_token_within_an_answer_ends_it_where_nothing_is_said_behind(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load, said: str, learned: str
) -> None:
    row = only_row(formatter_of(), {"prompt": "1", "response": said})
    assert answer_of(tokenizer, row) == learned
