"""A row of training data that cannot be used is named at once: which, where, and what to do."""

import pytest
from transformers import PreTrainedTokenizerFast

from services.trainer.rank.__main__ import failure_of
from tests.unit.trainer.formatting import TEMPLATE, Load, learned_of, messages_of, only_row
from trinity.errors import UserError
from trinity.types import JsonObject, JsonValue

MESSAGES = {"prompt_type": "messages", "messages_key": "turns"}
QUESTION, ANSWER = messages_of(("user", "1"), ("assistant", "2"))


@pytest.mark.parametrize("multi_turn", [False, True])
@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([ANSWER], "begins with the assistant"),
        ([ANSWER, QUESTION, ANSWER][:2], "assistant"),
        ([QUESTION], "answer"),
        ([], "not a list of messages"),
        ({"role": "user"}, "not a list of messages"),
        (7, "not a list of messages"),
        (None, "not a list of messages"),
        ([QUESTION, "2"], "message 1"),
        ([QUESTION, {"content": "2"}], "message 1"),
        ([QUESTION, {"role": "assistant"}], "message 1"),
        ([QUESTION, {"role": "assistant", "content": None}], "message 1"),
        ('[{"role": "user", ', "no JSON"),
        ("", "no JSON"),
        ('"text"', "not a list of messages"),
    ],
)
def test_a_bad_conversation_is_named_with_its_place(
    formatter_of: Load, messages: JsonValue, reason: str, multi_turn: bool
) -> None:
    formatter = formatter_of(**MESSAGES, enable_concatenated_multi_turn=multi_turn)
    with pytest.raises(
        UserError, match=rf"`rows`: row 8 \(from 0\), column 'turns': .*{reason}"
    ) as caught:
        only_row(formatter, {"turns": messages}, index=8)
    assert "\n" not in str(caught.value)
    assert not failure_of(caught.value).can_retry


def test_a_conversation_may_begin_with_the_assistant_where_its_last_answer_alone_is_learned(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    row = only_row(formatter_of(**MESSAGES), {"turns": [ANSWER, QUESTION, ANSWER]})
    assert learned_of(tokenizer, row) == "2<end>"


def test_all_answers_of_a_conversation_that_begins_with_the_assistant_cannot_be_learned(
    formatter_of: Load,
) -> None:
    formatter = formatter_of(**MESSAGES, enable_concatenated_multi_turn=True)
    with pytest.raises(
        UserError, match=r"row 8 \(from 0\), column 'turns': it begins with the assistant"
    ):
        only_row(formatter, {"turns": [ANSWER, QUESTION, ANSWER]}, index=8)


def test_a_conversation_that_ends_with_the_user_has_no_last_answer(formatter_of: Load) -> None:
    with pytest.raises(
        UserError, match=r"row 8 \(from 0\), column 'turns': its last message .* 'user'"
    ):
        only_row(formatter_of(**MESSAGES), {"turns": [QUESTION, ANSWER, QUESTION]}, index=8)


def test_a_message_may_call_a_tool_and_say_nothing(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    calls = "{% for call in message['tool_calls'] %}({{ call['name'] }}){% endfor %}<end>"
    template = TEMPLATE.replace("<end>", calls)
    formatter = formatter_of(**MESSAGES, chat_template=template)
    call: JsonValue = {"role": "assistant", "content": None, "tool_calls": [{"name": "x"}]}
    row = only_row(formatter, {"turns": [QUESTION, call]})
    assert learned_of(tokenizer, row) == "(x)<end>"


@pytest.mark.parametrize("side", ["chosen", "rejected"])
@pytest.mark.parametrize("bad", ["[{", [], None])
def test_a_bad_answer_of_a_pair_is_named(formatter_of: Load, side: str, bad: JsonValue) -> None:
    row: JsonObject = {"prompt": "1", "chosen": "2", "rejected": "3", side: bad}
    with pytest.raises(UserError, match=rf"`rows`: row 8 \(from 0\), column '{side}'"):
        formatter_of("dpo")(row, index=8, position=0, weight=1.0)


@pytest.mark.parametrize("schema", ["sft", "cpt"])
@pytest.mark.parametrize("bad", [None, ["1"], {"text": "1"}])
def test_a_prompt_that_is_no_text_is_named(formatter_of: Load, schema: str, bad: JsonValue) -> None:
    said = "message 0 has no `role`" if (schema, bad) == ("sft", ["1"]) else "it holds no text"
    with pytest.raises(UserError, match=rf"`rows`: row 8 \(from 0\), column 'prompt': {said}"):
        only_row(formatter_of(schema), {"prompt": bad, "response": "2"}, index=8)


@pytest.mark.parametrize("bad", [["add"], {"text": "add"}])
def test_a_system_prompt_that_is_no_text_is_named(formatter_of: Load, bad: JsonValue) -> None:
    formatter = formatter_of(system_prompt_key="rules")
    with pytest.raises(UserError, match=r"`rows`: row 8 \(from 0\), column 'rules': .* no text"):
        only_row(formatter, {"rules": bad, "prompt": "1", "response": "2"}, index=8)


def test_a_number_is_a_text(tokenizer: PreTrainedTokenizerFast, formatter_of: Load) -> None:
    row = only_row(formatter_of(), {"prompt": 1, "response": 2})
    assert learned_of(tokenizer, row) == "2<end>"


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages | length > 2 %}{{ raise_exception('two at most') }}{% endif %}" + TEMPLATE,
        "{% for one in messages %}{{ one['content'] + one['name'] }}{% endfor %}",
        "{% for one in messages %}{{ one['content'] + 1 }}{% endfor %}",
    ],
)
@pytest.mark.parametrize("multi_turn", [False, True])
def test_a_row_that_the_template_refuses_is_named(
    formatter_of: Load, template: str, multi_turn: bool
) -> None:
    formatter = formatter_of(
        **MESSAGES, chat_template=template, enable_concatenated_multi_turn=multi_turn
    )
    row: JsonObject = {"turns": [QUESTION, ANSWER, QUESTION, ANSWER]}
    with pytest.raises(UserError, match=r"`rows`: row 8 \(from 0\): the chat template refuses it"):
        only_row(formatter, row, index=8)
